// Who runs in the next step: queues, chunked prefill beside decode, preemption. Ids and counts only, never a tensor.
#ifndef FARSIGHT_SCHED_SCHEDULER_H_
#define FARSIGHT_SCHED_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "kv/block_pool.h"
#include "kv/sequence_cache.h"
#include "sched/draft_paths.h"

namespace farsight {

// A request as the scheduler sees it. `tokens` is prompt and answer so far; those already in `cache` are computed.
struct Sequence {
  uint64_t id = 0;
  std::vector<int32_t> tokens;
  int64_t prompt_tokens = 0;
  // Guesses of the tokens after `tokens`, verified in the next step if there is room for them. A step computes them
  // like tokens; whoever judges them tells Commit what was accepted.
  std::vector<int32_t> draft;
  // [1 + draft] of a tree: the row that each row comes after, where row 0 is the last token (-1) and row i the guess
  // draft[i - 1]; parents come first. Empty: a chain.
  std::vector<int32_t> draft_parents;
  SequenceCache cache;
  // Of a tree in the step at hand: its first path is computed in `cache`, path i in forks[i - 1], which shares all
  // blocks before the guesses.
  DraftPaths paths;
  std::vector<SequenceCache> forks;
  int max_chunk = 0;  // rows of this sequence in one step, 0: no limit of its own

  Sequence(uint64_t id_, BlockPool* pool, int block_tokens) : id(id_), cache(pool, block_tokens) {}
  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - cache.length(); }
  void DropDraft() {
    draft.clear();
    draft_parents.clear();
    forks.clear();
  }
  // After a step with a draft: keeps of its rows those down to `row`, `count` of them, and forgets the others.
  void Commit(int row, int count);
  bool decoding() const { return pending() == 1 && static_cast<int64_t>(tokens.size()) > prompt_tokens; }
};

// Rows of one sequence in a step: `count` tokens from position `first` on; where it drafts, the last token and then its
// guesses, which stand where their depth says.
struct PlannedRows {
  Sequence* sequence = nullptr;
  int64_t first = 0;
  int count = 0;

  bool drafts() const { return !sequence->draft.empty(); }
  int64_t Position(int row) const { return first + (drafts() ? sequence->paths.depth[static_cast<size_t>(row)] : row); }
  int32_t Token(int row) const {
    const auto i = static_cast<size_t>(row);
    if (drafts() && row > 0) return sequence->draft[i - 1];
    return sequence->tokens[static_cast<size_t>(first) + i];
  }
};

struct StepPlan {
  std::vector<PlannedRows> rows;
  std::vector<BlockCopy> copies;
  std::vector<Sequence*> preempted;  // lost their blocks; they wait and will be computed again
};

class Scheduler {
 public:
  struct Limits {
    int max_sequences = 1;
    int prefill_chunk = 512;  // prompt rows of a step over all sequences
  };
  explicit Scheduler(Limits limits) : limits_(limits) {}

  void Add(Sequence* sequence) { waiting_.push_back(sequence); }
  void Remove(Sequence* sequence);  // from wherever it is
  bool empty() const { return waiting_.empty() && running_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }

  // Every decoding sequence gets its one row and one for each drafted token; prompts share prefill_chunk rows, the
  // oldest first. Blocks are taken here: when they run out, the newest running sequence gives up all of its own and
  // goes back to the head of the queue. The oldest always gets what it needs, so a pool that can hold the longest
  // sequence never stalls.
  StepPlan Plan();

 private:
  // Takes blocks for the next row of a decoding sequence and its draft, or drops the draft. As Grow otherwise.
  static bool GrowDraft(Sequence* s, StepPlan* plan);
  bool GrowDecoding(Sequence* s, StepPlan* plan);
  // Takes blocks for `count` more tokens of `s`, preempting newer sequences if need be. False: `s` must wait.
  bool Grow(Sequence* s, int64_t count, StepPlan* plan);
  void Preempt(Sequence* s, StepPlan* plan);

  Limits limits_;
  std::vector<Sequence*> running_;  // oldest first
  std::deque<Sequence*> waiting_;
};

}  // namespace farsight

#endif  // FARSIGHT_SCHED_SCHEDULER_H_
