// From planned rows to the input of a step.
#ifndef FARSIGHT_ENGINE_STEP_BATCH_H_
#define FARSIGHT_ENGINE_STEP_BATCH_H_

#include <span>

#include "model/runner.h"
#include "sched/scheduler.h"
#include "spec/strategy.h"

namespace farsight {

// Adds the rows of one sequence with their block tables, `max_blocks` entries each: one, or one for each path of a tree
// of guesses. Which rows select and whose logits are wanted is left to the caller.
void AddRows(const PlannedRows& rows, int max_blocks, Batch* batch);

// Whose lists the rows of a draft attend to in an approximate mode; an exact mode changes nothing. `depths`: [rows] of
// each row of one sequence's draft, which are the next rows of the batch (their tokens may be in it or not yet).
void Approximate(const VerifyMode& mode, std::span<const int32_t> depths, const AttentionPlan& plan, Batch* batch);

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_STEP_BATCH_H_
