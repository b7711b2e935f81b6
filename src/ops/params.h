// The params struct of every op: plain pointers, sizes and strides, checked once by whoever fills them.
// All pointers are memory of the backend that runs the op; nothing outside src/ops may dereference them.
//
// Dimension letters: T rows of the step, S sequences of the step, Hq query heads, Hkv key-value heads, G = Hq/Hkv,
// D head size, B tokens of a block, NB blocks a block table can hold.
#ifndef FARSIGHT_OPS_PARAMS_H_
#define FARSIGHT_OPS_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/check.h"
#include "base/dtype.h"

namespace farsight {

// A weight matrix in host memory, as it lies in a file: `rows` outputs of `cols` inputs, rows contiguous.
struct HostMatrix {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;  // a multiple of the dtype's block
  std::span<const std::byte> data;
};

// The rows of one step. Rows of one sequence are contiguous and their positions ascend by one.
// The keys and values of all rows of a step are appended before any of them attends; causality is by position.
struct RowBatch {
  int num_rows = 0;                       // T
  int num_seqs = 0;                       // S
  int max_blocks = 0;                     // NB, the row length of block_tables
  const int32_t* tokens = nullptr;        // [T] token ids, inside the vocabulary
  const int32_t* positions = nullptr;     // [T] absolute 0-based position, < NB * B
  const int32_t* row_seq = nullptr;       // [T] which row of block_tables
  const int32_t* block_tables = nullptr;  // [S, NB] physical block of each logical block; -1 past the end
  // Rows that load a block together at most, where the backend has them share loads; 0: as many as suit it. Only time
  // depends on it.
  int group_rows = 0;
};

// Keys and values of one layer: pages of B tokens of one KV head, K then V, the order inside is the backend's choice.
// The page of (physical block p, head h) is number i = p * block_heads + h, or slots[i] where there are slots.
struct KvView {
  std::byte* pages = nullptr;  // of number 0
  size_t page_bytes = 0;       // from one to the next
  // [physical blocks, block_heads] from this view's first head on. A page that the step neither reads nor writes may be
  // nowhere: -1.
  const int32_t* slots = nullptr;
  DType dtype = DType::kF16;  // kF32, kF16 or kBF16
  int block_tokens = 64;      // B: a multiple of 16
  int num_kv_heads = 0;       // Hkv of this view
  int block_heads = 0;        // heads a physical block holds over all views: more than Hkv in a model with branches
  int head_dim = 0;           // D: a multiple of 8, at most 256

  // The view of `heads` of this view's heads, from `first` on.
  KvView Heads(int first, int heads) const {
    KvView v = *this;
    if (slots != nullptr) {
      v.slots += first;
    } else {
      v.pages += static_cast<size_t>(first) * page_bytes;
    }
    v.num_kv_heads = heads;
    return v;
  }
  // For ops alone.
  std::byte* Page(int32_t block, int head) const {
    int64_t at = static_cast<int64_t>(block) * block_heads + head;
    if (slots != nullptr) {
      at = slots[at];
      FS_CHECK(at >= 0, "a page that is read or written is in memory");
    }
    return pages + static_cast<size_t>(at) * page_bytes;
  }
};

// What a block's keys are summarised by for selection.
enum class SummaryKind : uint8_t {
  kNone,
  // InfLLM-v2 (specs: compressed keys): window j is the mean of the cached (post-RoPE) keys of tokens
  // [j*stride, j*stride+kernel). It is stored with the block that holds its LAST token, so a block's summary depends on
  // nothing after the block: sharing a prefix and truncating need no recomputation. f32. With `unrotate` the keys are
  // turned back to before RoPE first (use_nope). Where tokens have an importance (NOSA, arXiv 2510.13602), a page also
  // holds that of each token and the mean of each window, f32.
  kPooledKeys,
  // NSA (arXiv 2502.11089): windows as above, of keys and of values, each a weighted sum of its tokens with weights by
  // place in the window and channel. In the dtype of the cache.
  kCompressed,
  // Token sketches: per token `bits` bits a channel of (key - centre) and one scale. The centre of a (sequence, layer,
  // head) is the mean of keys 1 .. B-1 of block 0, fixed when block 0 fills; it lives in block 0's page, and block 0's
  // codes are written at that moment. Appending never changes an old code.
  kSketch,
};

struct SummaryView {
  std::byte* pages = nullptr;  // page of (physical block p, head h) at pages + h * head_bytes + p * page_bytes
  size_t page_bytes = 0;
  size_t head_bytes = 0;  // of all blocks: a head's pages lie together, since they are read one after another
  SummaryKind kind = SummaryKind::kNone;
  int kernel = 32;  // kPooledKeys, kCompressed: window length; a multiple of stride
  int stride = 16;  // kPooledKeys, kCompressed: divides block_tokens
  int bits = 2;     // kSketch: 1, 2 or 4
  // kCompressed: weights [Hkv, kernel, D] of keys and values; null: the plain mean.
  const float* key_weights = nullptr;
  const float* value_weights = nullptr;
  // cos and sin of every position of the context, [context, half_dim]: needed by the two flags below.
  const float* cos = nullptr;
  const float* sin = nullptr;
  int half_dim = 0;
  // kPooledKeys: the importance of token t for KV head h is scale[h] * softplus(weight[h] . v_t + bias[h]), v_t being
  // the values of all KV heads as they are cached.
  const float* importance_scale = nullptr;   // [Hkv]; null: tokens have none
  const float* importance_weight = nullptr;  // [Hkv, Hkv * D]
  const float* importance_bias = nullptr;    // [Hkv] or null
  bool unrotate = false;      // kPooledKeys, kCompressed: the cached keys are rotated, the pooled ones shall not be
  bool rotate_start = false;  // kCompressed: pooled keys are then rotated at the window's first position

  bool HasImportance() const { return importance_scale != nullptr; }
  std::byte* Page(int32_t block, int head) const {
    return pages + static_cast<size_t>(head) * head_bytes + static_cast<size_t>(block) * page_bytes;
  }
};

// out[t, :] = scale * table[tokens[t], :]
template <typename Matrix>
struct EmbedParams {
  const Matrix* table = nullptr;    // [vocab, dim]
  const int32_t* tokens = nullptr;  // [num_rows]
  float* out = nullptr;             // [num_rows, dim]
  int num_rows = 0;
  float scale = 1.0f;
};

// out[t, j] = (accumulate ? out[t, j] : 0) + alpha * (sum_k w[j, k] * in[t, k] + bias[j])
// The value of a row does not depend on num_rows or on the other rows, bit for bit.
template <typename Matrix>
struct MatMulParams {
  const Matrix* weight = nullptr;  // [n, k]
  const float* in = nullptr;       // [num_rows, k], rows in_stride apart
  float* out = nullptr;            // [num_rows, n], rows out_stride apart; must not overlap in
  const float* bias = nullptr;     // [n] or null
  int64_t in_stride = 0;
  int64_t out_stride = 0;
  int num_rows = 0;
  float alpha = 1.0f;
  bool accumulate = false;
  // For the product whose rounding shows most, that of the logits: a backend that rounds inputs to few bits adds a
  // second product with what the rounding lost. Not with accumulate.
  bool precise = false;
};

// For each row and each of `groups` consecutive runs of `dim` values: out = in / sqrt(mean(in^2) + eps) * weight.
// In place is allowed. groups > 1 is the per-head norm of queries and keys (Qwen3).
struct RmsNormParams {
  const float* in = nullptr;      // [num_rows, groups * dim], rows in_stride apart
  float* out = nullptr;           // as in, rows out_stride apart
  const float* weight = nullptr;  // [dim]
  int64_t in_stride = 0;
  int64_t out_stride = 0;
  int num_rows = 0;
  int groups = 1;
  int dim = 0;
  float eps = 1e-5f;
};

// cos/sin of one step: angle = position * inv_freq[i], in double, times magnitude, rounded to f32.
struct RopeTableParams {
  const int32_t* positions = nullptr;  // [num_rows]
  const double* inv_freq = nullptr;    // [half_dim], scaling already inside
  float* cos = nullptr;                // [num_rows, half_dim]
  float* sin = nullptr;                // [num_rows, half_dim]
  int num_rows = 0;
  int half_dim = 0;
  double magnitude = 1.0;
};

// Rotate-half RoPE in place over the first 2*half_dim channels of each head:
// x'[i] = x[i] cos - x[i+half] sin, x'[i+half] = x[i+half] cos + x[i] sin. Loaders un-permute interleaved weights.
struct RopeParams {
  float* x = nullptr;          // [num_rows, num_heads * head_dim], rows stride apart
  const float* cos = nullptr;  // [num_rows, half_dim]
  const float* sin = nullptr;
  int64_t stride = 0;
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  int half_dim = 0;
};

// out[t, j] = silu(in[t, j]) * in[t, ffn + j]
struct SwiGluParams {
  const float* in = nullptr;  // [num_rows, 2 * ffn]: gate, then up
  float* out = nullptr;       // [num_rows, ffn]
  int num_rows = 0;
  int ffn = 0;
};

// Writes the keys and values of all rows into their pages (rounded to kv.dtype).
struct AppendKvParams {
  RowBatch rows;
  const float* k = nullptr;  // [T, Hkv * D] after RoPE, rows stride apart
  const float* v = nullptr;  // [T, Hkv * D]
  int64_t stride = 0;
  KvView kv;
};

// Extends the key summaries by the step's rows, from the keys as they lie in the cache (AppendKv ran before).
struct SummariseParams {
  RowBatch rows;
  KvView kv;
  SummaryView summary;
};

// Block selection by the layer's own query. For every row and KV head: a score for every block b <= bq = position / B,
// the forced blocks first (b < init_blocks, or bq - local_blocks <= b <= bq), then the best others by
// (score descending, id ascending), until top_k blocks are chosen; ids ascend. Fewer than top_k only when fewer exist.
// When the forced blocks alone exceed top_k, the newest local blocks win, then the initial ones (row's own block
// always).
//   kPooledKeys: softmax over the visible windows (last token <= position) of scale * q . window, summed over the G
//     heads; a block's score is the maximum over the windows that touch it (0 where none is visible), that is windows
//     [max(B/stride*b - (kernel/stride - 1), 0), B/stride*(b+1) - 1].
//   kCompressed: the same softmax P over the visible windows; a block's score is the sum over the windows of P times
//     the number of stride-long units they share: sum over m < B/stride, n < kernel/stride of P[b*B/stride + m - n].
//     The output of the compressed branch, sum of P of the head times the pooled values, goes to `out` (zeros where no
//     window is visible).
//   kSketch: softmax over the visible tokens of scale * q . sketch, summed over the G heads and over the block's
//   tokens.
// With query_top_k (needs importances) the scores fill a list only up to that many blocks, forced ones included; the
// others, up to top_k, are those of the largest importance, ties by id ascending: a block's is the largest window mean
// of the windows above.
// Rows with row_sparse[t] == 0 get count -1: they attend to all visible blocks.
struct SelectParams {
  RowBatch rows;
  const float* q = nullptr;             // [T, Hq * D], rotated or not as the summaries are; rows q_stride apart
  const uint8_t* row_sparse = nullptr;  // [T]
  int64_t q_stride = 0;
  int num_heads = 0;  // Hq
  float scale = 0;    // 1 / sqrt(D) for the families we run
  KvView kv;          // geometry; selection reads summaries only
  SummaryView summary;
  int top_k = 0;        // the whole budget, forced blocks included
  int query_top_k = 0;  // of it, what the query chooses; 0: all
  int init_blocks = 1;
  int local_blocks = 0;  // forced in addition to the row's own block
  // Windows and tokens that no unforced block has a part in are not scored: the choice then depends on nothing newer
  // than the window that begins right before the first local block, and may be made before the row's own key is there.
  // With a single query a group, where a softmax only keeps the order, it is the same choice. Not for kCompressed.
  bool skip_local = false;
  int32_t* ids = nullptr;     // [T, Hkv, top_k] ascending logical block ids; null: nothing is chosen
  int32_t* counts = nullptr;  // [T, Hkv]
  float* scores = nullptr;    // [T, Hkv, NB] or null: the scores; zeros where every block is chosen anyway
  float* out = nullptr;       // kCompressed: [T, Hq * D], rows out_stride apart
  int64_t out_stride = 0;
};

// Lists at second hand: each row takes the list of row sources[t] of its own sequence, without the blocks after its
// own, with the blocks that selection forces for it. A row that is the source of another is its own. A count of -1
// stays.
struct ShareListsParams {
  RowBatch rows;
  const int32_t* sources = nullptr;  // [T]
  int num_kv_heads = 0;
  int block_tokens = 64;
  int top_k = 0;
  int init_blocks = 1;
  int local_blocks = 0;
  int32_t* ids = nullptr;     // [T, Hkv, top_k], in place
  int32_t* counts = nullptr;  // [T, Hkv]
};

// out[t, h] = softmax over tokens u <= position[t] of the listed blocks (scale * q . k_u) applied to v_u.
// Blocks are visited in ascending id; partial results are split at fixed multiples of kAttendSplitTokens positions and
// merged in ascending order. Hence the result of a row does not depend on its neighbours, on the chunk it came in, or
// on the number of threads, and a list of all visible blocks equals no list, bit for bit. A row without any visible
// token in its list gets zeros. With `window` only the newest `window` tokens are visible, the row's own included.
struct AttendParams {
  RowBatch rows;
  const float* q = nullptr;  // [T, Hq * D], rows q_stride apart
  float* out = nullptr;      // [T, Hq * D], rows out_stride apart
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int num_heads = 0;
  float scale = 0;
  KvView kv;
  const int32_t* ids = nullptr;     // [T, Hkv, max_selected] or null: all visible blocks for every row
  const int32_t* counts = nullptr;  // [T, Hkv]; -1 = all visible blocks
  int max_selected = 0;
  int window = 0;       // 0: no window; with one there are no lists
  SummaryView summary;  // where it has importances, those of the tokens are added to their scores after the scale
  // A part of an attention: the logical blocks [first_block, end_block), whole splits of them. Parts follow each other
  // without gap or overlap; what they found so far is in `carry`, [T] times AttendCarryBytes of the backend, and the
  // part that ends at max_blocks or later writes `out`. All parts together give what one call gives, bit for bit.
  int first_block = 0;
  int end_block = std::numeric_limits<int>::max();
  std::byte* carry = nullptr;  // may be null for a whole
};
inline constexpr int kAttendSplitTokens = 1024;

// out[t, h, :] = sum over b < kBranches of sigmoid(gates[t, b * Hq + h]) * branches[b][t, h, :]; `out` may be one of
// the branches.
struct GateBranchesParams {
  static constexpr int kBranches = 3;     // NSA: compressed, selected, window
  const float* gates = nullptr;           // [T, 3 * Hq] before the sigmoid
  const float* branches[kBranches] = {};  // [T, Hq * D] each
  float* out = nullptr;                   // [T, Hq * D]
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
};

// Copies one physical block (all heads of the view) of a layer: keys, values and summaries (copy on write).
struct CopyBlockParams {
  KvView kv;
  SummaryView summary;
  int32_t from = 0;
  int32_t to = 0;
};

// Upper bounds for the scratch memory of ops; a step allocates nothing.
struct OpLimits {
  int max_rows = 0;         // T
  int max_seqs = 0;         // S
  int max_blocks = 0;       // NB
  int max_width = 0;        // widest input of a MatMul
  int64_t max_precise = 0;  // most outputs of a precise MatMul
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 64;
};

}  // namespace farsight

#endif  // FARSIGHT_OPS_PARAMS_H_
