// The retrieval tasks: what is hidden, what is asked, and whether an answer is right. Statements and questions are
// those the models of training/ were trained on; any model with a chat template understands the question form.
#ifndef FARSIGHT_EVAL_TASKS_H_
#define FARSIGHT_EVAL_TASKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/prompts.h"
#include "eval/random.h"

namespace farsight::eval {

enum class Task {
  kNeedle,       // one statement; axis: its depth in percent
  kMultiKey,     // several statements with similar keys, one is asked for; axis: their number
  kMultiNeedle,  // several statements, each is asked for in turn; axis: their number
  kVarTrack,     // a variable assigned through others; axis: the number of assignments between (0: direct)
  kCopy,         // a line of random words again after a gap; axis: the gap in tokens
};
const char* TaskName(Task task);  // "needle", "multikey", "multineedle", "vartrack", "copy"
const char* AxisName(Task task);  // "depth", "keys", "needles", "hops", "gap"
StatusOr<Task> ParseTask(std::string_view name);

// How an answer is compared with what was expected.
enum class Match {
  kNumber,  // the first number of three digits or more
  kWord,    // the answer's first line holds it as a word of its own
  kWords,   // word by word from the beginning
};

struct Query {
  std::vector<int32_t> prompt;
  std::string expected;
  Match match = Match::kNumber;
  int max_new_tokens = 40;
};

// Everything asked about one context. The sample is right when every answer is.
using Sample = std::vector<Query>;

struct Score {
  bool right = false;
  double share = 0;  // kWords: of the words before the first wrong one; else 1 or 0
};
Score Judge(const Query& query, std::string_view answer);
// True when no further text can change the score: generation may stop.
bool Decided(const Query& query, std::string_view answer);

struct TaskSpec {
  Task task = Task::kNeedle;
  int64_t length = 1024;  // tokens of the prompt and the room its answer needs (not kCopy, whose gap decides)
  int64_t axis = 0;       // see Task
  uint64_t seed = 1;
  int sample = 0;  // 0, 1, ... of this cell
};

// The sample of a cell, a function of the spec alone. Samples of one length and number share the beginning of their
// hay over all axis values, so that a cache serves several of them.
StatusOr<Sample> MakeSample(const PromptWriter& writer, const TaskSpec& spec);

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_TASKS_H_
