// One sequence on a runner of its own, whose rows run as those of a draft in any mode: for measurements.
#ifndef FARSIGHT_ENGINE_DRAFT_BENCH_H_
#define FARSIGHT_ENGINE_DRAFT_BENCH_H_

#include <algorithm>
#include <span>

#include "engine/step_batch.h"
#include "kv/sequence_cache.h"
#include "model/runner.h"
#include "sched/draft_paths.h"
#include "spec/strategy.h"

namespace farsight {

class DraftBench {
 public:
  DraftBench(ModelRunner* runner, BlockPool* pool, const AttentionPlan& plan)
      : runner_(*runner), plan_(plan), cache_(pool, plan.options.block_size) {}

  int64_t length() const { return cache_.length(); }
  void Truncate(int64_t length) { cache_.Truncate(length); }

  // With the logits of every row, as rows of a draft in `mode`; nullptr: with none, as while a prompt is read.
  Status Run(std::span<const int32_t> tokens, const VerifyMode* mode, bool scores = false) {
    const bool logits = mode != nullptr;
    batch_.Clear();
    batch_.group_rows = logits ? mode->group : 0;
    batch_.want_scores = scores;
    if (logits) Approximate(*mode, ChainPath(static_cast<int>(tokens.size())).depth, plan_, &batch_);
    const int64_t first = cache_.length();
    if (!cache_.Append(tokens, &batch_.copies)) return Internal("the profiler's cache is too small");
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t position = first + static_cast<int64_t>(i);
      batch_.tokens.push_back(tokens[i]);
      batch_.positions.push_back(static_cast<int32_t>(position));
      batch_.row_seq.push_back(0);
      batch_.selects.push_back(plan_.RowSelects(position, logits) ? 1 : 0);
      if (logits) batch_.logit_rows.push_back(static_cast<int32_t>(i));
    }
    batch_.num_seqs = 1;
    batch_.want_lists = logits;
    batch_.block_tables.assign(static_cast<size_t>(runner_.max_blocks()), -1);
    std::copy(cache_.blocks().begin(), cache_.blocks().end(), batch_.block_tables.begin());
    return runner_.Step(batch_, &result_);
  }

  std::span<const float> logits() const { return result_.logits; }
  const Batch& batch() const { return batch_; }
  const StepResult& result() const { return result_; }

  // Share of a row's chosen blocks that the row before it chose too, over layers and KV heads; 1 where all are read.
  double Overlap(int rows, int top_k) const {
    int64_t common = 0, all = 0;
    for (const auto& list : result_.lists) {
      const size_t heads = list.counts.size() / static_cast<size_t>(rows);
      const auto of = [&](size_t pair) {
        const int32_t* at = list.ids.data() + pair * static_cast<size_t>(top_k);
        return std::span(at, static_cast<size_t>(std::max(list.counts[pair], 0)));
      };
      for (size_t pair = heads; pair < list.counts.size(); ++pair) {
        const auto before = of(pair - heads);
        for (const int32_t id : of(pair)) common += std::binary_search(before.begin(), before.end(), id) ? 1 : 0;
        all += std::max(list.counts[pair], 0);
      }
    }
    return all > 0 ? static_cast<double>(common) / static_cast<double>(all) : 1;
  }

 private:
  ModelRunner& runner_;
  const AttentionPlan& plan_;
  SequenceCache cache_;
  Batch batch_;
  StepResult result_;
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_DRAFT_BENCH_H_
