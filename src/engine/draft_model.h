// A small model that guesses what a larger one with the same tokenizer will say.
#ifndef FARSIGHT_ENGINE_DRAFT_MODEL_H_
#define FARSIGHT_ENGINE_DRAFT_MODEL_H_

#include <memory>

#include "farsight/engine.h"
#include "spec/drafter.h"

namespace farsight {

// A drafter over `draft`, whose vocabulary must be that of `target`, token for token (kInvalidArgument otherwise,
// naming the first that differs). It reads at most the last `context` tokens of a sequence: a drafter that attended to
// a whole long text would read as much memory as the model it helps. Guesses are its most probable tokens; all
// sequences of a step are drafted together.
StatusOr<std::unique_ptr<Drafter>> MakeModelDrafter(std::shared_ptr<Model> draft, const Model& target,
                                                    int max_sequences, int context = 1024);

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_DRAFT_MODEL_H_
