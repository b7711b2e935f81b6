#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

namespace farsight {

void Sequence::Commit(int row, int count) {
  const int64_t length = static_cast<int64_t>(tokens.size()) - 1 + count;
  const int32_t path = paths.table[static_cast<size_t>(row)];
  if (path > 0) cache = std::move(forks[static_cast<size_t>(path) - 1]);
  cache.Truncate(length);
  DropDraft();
}

void Scheduler::Remove(Sequence* sequence) {
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
}

void Scheduler::Preempt(Sequence* s, StepPlan* plan) {
  s->cache.Truncate(0);
  s->DropDraft();
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

// The cache itself grows last: it is the one that must not change where a fork finds no room, and with the forks gone
// their way it need not copy the block they share.
bool Scheduler::GrowDraft(Sequence* s, StepPlan* plan) {
  const auto rows = static_cast<int>(s->draft.size()) + 1;
  s->paths = s->draft_parents.empty() ? ChainPath(rows) : PathsOf(s->draft_parents);
  const size_t copies = plan->copies.size();
  std::vector<int32_t> next;
  for (size_t path = s->paths.rows.size(); path-- > 0;) {
    next.clear();
    for (const int32_t row : s->paths.rows[path]) {
      next.push_back(row == 0 ? s->tokens.back() : s->draft[static_cast<size_t>(row) - 1]);
    }
    if (path > 0) s->forks.insert(s->forks.begin(), s->cache.Fork(s->cache.length()));
    if ((path > 0 ? s->forks.front() : s->cache).Append(next, &plan->copies)) continue;
    plan->copies.resize(copies);
    return false;
  }
  return true;
}

bool Scheduler::GrowDecoding(Sequence* s, StepPlan* plan) {
  s->forks.clear();
  if (!s->draft.empty()) {
    if (GrowDraft(s, plan)) return true;
    s->DropDraft();  // a guess takes nobody's blocks
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
