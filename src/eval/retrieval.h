// Runs the retrieval tasks over a grid of lengths and axis values, for several policies at once.
#ifndef FARSIGHT_EVAL_RETRIEVAL_H_
#define FARSIGHT_EVAL_RETRIEVAL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "eval/policies.h"
#include "eval/tasks.h"

namespace farsight::eval {

// What a caller may want while a long run goes on. Each may be empty.
struct Hooks {
  std::function<void(int64_t done, int64_t total)> progress;
  std::function<bool()> stop;  // true ends the run; what was measured so far is kept
};

struct Grid {
  Task task = Task::kNeedle;
  Form form = Form::kCompletion;
  std::vector<int64_t> lengths;  // tokens; kCopy: one entry, ignored
  std::vector<int64_t> axis;     // see Task
  int samples = 10;              // of each cell
  uint64_t seed = 1;
};

struct Cell {
  size_t variant = 0;
  int64_t length = 0, axis = 0;
  int64_t n = 0, right = 0;
  double share = 0;                          // sum of the answers' shares over all queries ...
  int64_t queries = 0;                       // ... of which there were so many
  int64_t blocks_read = 0, blocks_held = 0;  // while answering
};

// Depths in percent, evenly spread with half a step at both ends: 5, 15, ... 95 for ten.
std::vector<int64_t> Depths(int count);
// Tokens of context that the grid's longest sample needs.
int64_t ContextFor(const Grid& grid);

// Cells in the order length, axis, variant; those of an interrupted run may have n = 0. The same samples are asked
// under every variant.
StatusOr<std::vector<Cell>> RunGrid(const Model& model, const Haystack& hay, const Grid& grid, PolicyEngines& engines,
                                    const Hooks& hooks);

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_RETRIEVAL_H_
