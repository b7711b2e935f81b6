// What a Forecast projection learns: which blocks of a target layer a token will need. Shapes, constants and visibility
// rules shared by the reference and the fast implementation.
//
// Letters: L tokens of the sequence, R trained rows, Hq / Hkv query and KV heads, G = Hq / Hkv, D head size. A *unit*
// is what the Forecast scores one by one: a pooled window, or a token where the summaries are token sketches.
#ifndef FARSIGHT_TRAIN_FORECAST_TASK_H_
#define FARSIGHT_TRAIN_FORECAST_TASK_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "farsight/status.h"
#include "ops/params.h"

namespace farsight {

// The distribution the Forecast is trained towards.
enum class ForecastTeacher {
  kModel,  // the model's own selection: its queries over the same summaries
  kFine,   // finer (arXiv 2606.04511): pooled windows: queries over windows of two keys, max-pooled to the coarse
           // windows; sketches: exact attention mass of every block
};
const char* ForecastTeacherName(ForecastTeacher teacher);  // "model", "fine"
StatusOr<ForecastTeacher> ParseForecastTeacher(const std::string& name);

struct ForecastTask {
  SummaryKind keys = SummaryKind::kPooledKeys;  // kPooledKeys or kSketch
  ForecastTeacher teacher = ForecastTeacher::kFine;
  int heads = 0;     // Hq
  int kv_heads = 0;  // Hkv
  int head_dim = 0;  // D
  int queries = 1;   // Forecasts of a KV head: 1, or G, one a query head
  int block_tokens = 64;
  int top_k = 0;  // blocks of a list, forced ones included
  int init_blocks = 1;
  int local_blocks = 0;  // forced in addition to the row's own block
  int kernel = 32;       // kPooledKeys: tokens of a window; a multiple of stride
  int stride = 16;       // kPooledKeys: divides block_tokens
  int bits = 2;          // kSketch

  int group() const { return heads / kv_heads; }
  bool pooled() const { return keys == SummaryKind::kPooledKeys; }
  int windows_per_block() const { return block_tokens / stride; }
  // Windows that begin in the block before and reach into a block.
  int windows_before() const { return kernel / stride - 1; }
  int64_t forecast_width() const { return static_cast<int64_t>(kv_heads) * queries * head_dim; }
  // Loss entries of one chosen block.
  int entries_per_block() const { return pooled() ? windows_per_block() : 1; }
};

// One sentence about the first constant that can never work, for example a budget that the forced blocks fill.
Status Validate(const ForecastTask& task);

// Units of a sequence of `length` tokens.
inline int64_t NumUnits(const ForecastTask& t, int64_t length) {
  if (!t.pooled()) return length;
  return length < t.kernel ? 0 : (length - t.kernel) / t.stride + 1;
}

// Units a row at `position` sees. A window is visible from its first token on with the fine teacher, from its last one
// on with the model's own selection: as the published loss and the forward have it.
inline int64_t SeenUnits(const ForecastTask& t, int64_t position, int64_t units) {
  int64_t seen = position + 1;
  if (t.pooled() && t.teacher == ForecastTeacher::kFine) seen = position / t.stride + 1;
  if (t.pooled() && t.teacher == ForecastTeacher::kModel) {
    seen = position + 1 < t.kernel ? 0 : (position + 1 - t.kernel) / t.stride + 1;
  }
  return std::min(seen, units);
}

// Blocks a row may choose freely: neither initial nor local.
inline int64_t FreeBegin(const ForecastTask& t) { return t.init_blocks; }
inline int64_t FreeEnd(const ForecastTask& t, int64_t position) {
  return std::max<int64_t>(position / t.block_tokens - t.local_blocks, FreeBegin(t));
}

// Units that the Forecast's softmax runs over. With one query a KV head a softmax only keeps the order, so all that the
// row sees may take part, as published. With several it weighs them against each other and runs, as in the forward,
// over what lies before the local blocks.
inline int64_t VisibleUnits(const ForecastTask& t, int64_t position, int64_t units) {
  const int64_t seen = SeenUnits(t, position, units);
  if (t.queries == 1) return seen;
  return std::min(seen, FreeEnd(t, position) * (t.pooled() ? t.windows_per_block() : t.block_tokens));
}

// Keys the teacher's softmax runs over: units, windows of two keys, or single keys.
inline int64_t NumTeacherKeys(const ForecastTask& t, int64_t length) {
  if (t.teacher == ForecastTeacher::kModel) return NumUnits(t, length);
  return t.pooled() ? length - 1 : length;
}
inline int64_t VisibleTeacherKeys(const ForecastTask& t, int64_t position, int64_t keys) {
  if (t.teacher == ForecastTeacher::kModel) return SeenUnits(t, position, keys);
  return std::min(position + 1, keys);
}

// Free blocks a list of top_k can hold at most.
inline int FreePicks(const ForecastTask& t) { return t.top_k - t.init_blocks - t.local_blocks - 1; }

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_TASK_H_
