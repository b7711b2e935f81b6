#include "sched/scheduler.h"

#include <algorithm>

namespace farsight {

void Scheduler::Remove(Sequence* sequence) {
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
}

void Scheduler::Preempt(Sequence* s, StepPlan* plan) {
  s->cache.Truncate(0);
  s->draft.clear();
  std::erase(running_, s);
  std::erase_if(plan->rows, [s](const PlannedRows& r) { return r.sequence == s; });
  waiting_.push_front(s);
  plan->preempted.push_back(s);
}

bool Scheduler::Grow(Sequence* s, int64_t count, StepPlan* plan) {
  const std::span<const int32_t> next(s->tokens.data() + s->cache.length(), static_cast<size_t>(count));
  while (!s->cache.Append(next, &plan->copies)) {
    Sequence* newest = running_.back();
    if (newest == s) return false;
    Preempt(newest, plan);
  }
  return true;
}

bool Scheduler::GrowDecoding(Sequence* s, StepPlan* plan) {
  if (!s->draft.empty()) {
    std::vector<int32_t> next = {s->tokens.back()};
    next.insert(next.end(), s->draft.begin(), s->draft.end());
    if (s->cache.Append(next, &plan->copies)) return true;
    s->draft.clear();  // a guess takes nobody's blocks
  }
  return Grow(s, 1, plan);
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  while (!waiting_.empty() && num_running() < limits_.max_sequences) {
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  int budget = limits_.prefill_chunk;
  // Index loop: Grow may take newer sequences off the end.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    if (s->pending() == 0) continue;
    const bool decoding = s->decoding();
    int64_t count = decoding ? 1 : std::min<int64_t>(s->pending(), budget);
    if (s->max_chunk > 0) count = std::min<int64_t>(count, s->max_chunk);
    if (count == 0) continue;
    const int64_t first = s->cache.length();
    if (decoding ? !GrowDecoding(s, &plan) : !Grow(s, count, &plan)) {
      // The newest cannot grow. If it is alone it never will; otherwise it gives its blocks to the older ones.
      if (i > 0) Preempt(s, &plan);
      break;
    }
    if (decoding) {
      count += static_cast<int64_t>(s->draft.size());
    } else {
      budget -= static_cast<int>(count);
    }
    plan.rows.push_back({s, first, static_cast<int>(count)});
  }
  return plan;
}

}  // namespace farsight
