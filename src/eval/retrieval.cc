#include "eval/retrieval.h"

#include <algorithm>
#include <optional>

namespace farsight::eval {
namespace {

// The request's completion; none when `stop` said so, which is looked at after every step.
StatusOr<std::optional<Completion>> Finish(Engine& engine, Request request, const std::function<bool()>& stop) {
  std::optional<Completion> out;
  FS_ASSIGN_OR_RETURN(const Engine::Id id,
                      engine.Submit(std::move(request), [&out](Completion c) { out = std::move(c); }));
  bool stopped = false;
  while (!out) {
    if (stop && stop()) {
      stopped = true;
      engine.Cancel(id);
    }
    FS_RETURN_IF_ERROR(engine.Step());
  }
  if (stopped) return std::optional<Completion>();
  if (!out->status.ok()) return out->status;
  return out;
}

// Adds to the cell unless it was stopped.
Status AnswerAll(Engine& engine, const Sample& sample, const Hooks& hooks, Cell* cell) {
  Cell sum = *cell;
  bool all_right = true;
  for (const Query& query : sample) {
    Request r;
    r.prompt = query.prompt;
    r.max_new_tokens = query.max_new_tokens;
    std::string text;
    r.on_token = [&](const TokenEvent& event) {
      text += event.text;
      return !Decided(query, text);
    };
    FS_ASSIGN_OR_RETURN(const std::optional<Completion> c, Finish(engine, std::move(r), hooks.stop));
    if (!c) return OkStatus();
    const Score score = Judge(query, text);
    all_right = all_right && score.right;
    sum.share += score.share;
    ++sum.queries;
    sum.blocks_read += c->blocks_read;
    sum.blocks_held += c->blocks_held;
  }
  ++sum.n;
  sum.right += all_right ? 1 : 0;
  *cell = sum;
  return OkStatus();
}

std::vector<Cell> EmptyCells(const Grid& grid, size_t variants) {
  std::vector<Cell> cells;
  for (const int64_t length : grid.lengths) {
    for (const int64_t axis : grid.axis) {
      for (size_t v = 0; v < variants; ++v) {
        Cell cell;
        cell.variant = v;
        cell.length = length;
        cell.axis = axis;
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

}  // namespace

std::vector<int64_t> Depths(int count) {
  std::vector<int64_t> depths;
  for (int i = 0; i < count; ++i) depths.push_back((100 * i + 50) / count);
  return depths;
}

int64_t ContextFor(const Grid& grid) {
  int64_t longest = 0;
  for (const int64_t n : grid.task == Task::kCopy ? grid.axis : grid.lengths) longest = std::max(longest, n);
  return longest + (grid.task == Task::kCopy ? 512 : 0);  // the line twice
}

StatusOr<std::vector<Cell>> RunGrid(const Model& model, const Haystack& hay, const Grid& grid, PolicyEngines& engines,
                                    const Hooks& hooks) {
  const PromptWriter writer(model, hay, grid.task == Task::kCopy ? Form::kCompletion : grid.form);
  std::vector<Cell> cells = EmptyCells(grid, engines.size());
  const auto total = static_cast<int64_t>(cells.size()) * grid.samples;
  int64_t done = 0;
  for (size_t l = 0; l < grid.lengths.size(); ++l) {
    for (int s = 0; s < grid.samples; ++s) {
      // From the last axis value to the first: the deepest needle leaves the longest beginning of the hay in the cache.
      for (size_t a = grid.axis.size(); a-- > 0;) {
        TaskSpec spec;
        spec.task = grid.task;
        spec.length = grid.lengths[l];
        spec.axis = grid.axis[a];
        spec.seed = grid.seed;
        spec.sample = s;
        FS_ASSIGN_OR_RETURN(const Sample sample, MakeSample(writer, spec));
        for (size_t v = 0; v < engines.size(); ++v) {
          if (hooks.stop && hooks.stop()) return cells;
          FS_ASSIGN_OR_RETURN(Engine* const engine, engines.Use(v));
          FS_RETURN_IF_ERROR(
              AnswerAll(*engine, sample, hooks, &cells[(l * grid.axis.size() + a) * engines.size() + v]));
          if (hooks.progress) hooks.progress(++done, total);
        }
      }
    }
  }
  return cells;
}

}  // namespace farsight::eval
