// The function table of one instruction set for attention and selection.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_
#define FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace farsight {

enum class Isa;  // ops/cpu/isa.h

// Where prefetched lines go. The first level has few places for requests under way: they were all taken, and pages in
// random order came half as fast as by way of the second level.
inline constexpr int kSecondLevel = 2;

// Queries that one call of `sketch_block` takes.
inline constexpr int kMaxSketchQueries = 4;

// A query as tables of what each half byte of codes adds to its score, or, for codes of four bits, as factors.
struct SketchQuery {
  const uint8_t* tables = nullptr;  // [half bytes of a token][16], entries at most 127; null for four bits
  // Four bits, else null: -127 to 127 a channel, of each eight channels the even ones first.
  const int8_t* channels = nullptr;
  float unit = 0;   // of a table entry or a factor
  float bias = 0;   // what a score is below unit times the sum of its entries or products
  float scale = 0;  // softmax scale times log2 e: scores are powers of two
};

// Tokens of a sketch go in groups of 32: for each byte of a token's codes 32 bytes, so that two tokens share a 16-bit
// lane. Half byte n of a token holds the codes of channels [n * 4 / bits, (n + 1) * 4 / bits), the first in the lowest
// bits; half byte 2 j is the lower half of byte j.
inline constexpr int kSketchGroup = 32;
constexpr int SketchLane(int token) { return token % 16 * 2 + token / 16 % 2; }

// One step of a softmax that runs over blocks, of powers of two (scores carry a factor log2 e). Row i of the block has
// scores s[i][0, count[i]) and goes on from the maximum m[state[i]] and the sum l[state[i]] of the blocks before: s
// becomes 2^(s - new maximum), zero in [count, n), and keep[i] is what the earlier output has to be multiplied by. n is
// a multiple of 16, counts are 1 to n. A row's result does not depend on the other rows.
struct SoftmaxBlock {
  float* const* s = nullptr;
  const int* count = nullptr;
  const int* state = nullptr;
  int rows = 0;
  int n = 0;
  float* m = nullptr;
  float* l = nullptr;
  float* keep = nullptr;
};

// Softmaxes over some tokens each, one a row: the largest score, the sum of 2^(score - largest) and the output
// [rows][Dp] that belongs to it. Without tokens -infinity and zeros.
struct SoftmaxParts {
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;
};

// c[i][0, n) = (keep == null ? 0 : c[i] * keep[i]) + sum over j < k of a[i][j] * b[j][0, n), for i < m, b as it lies in
// a page, with the arithmetic of AttentionKernels::product. ldb in elements; n is a multiple of 16. On the way memory
// is asked for that will be needed, a row of it for each of b, `next_rows` of them at each of next[0], next[1] ...:
// spread over the product, since the processor has places for few lines under way. `packed` has room for n * k floats.
struct StoredProduct {
  const float* const* a = nullptr;
  float* const* c = nullptr;
  int m = 0;
  const std::byte* b = nullptr;
  int64_t ldb = 0;
  int n = 0;
  int k = 0;
  const float* keep = nullptr;
  const std::byte* const* next = nullptr;  // each valid memory, or b itself
  int next_rows = 0;
  float* packed = nullptr;
};

// f32: sixteen columns of row j are at x + j * row, the next sixteen `panel` further.
struct WideMatrix {
  const float* x = nullptr;
  int64_t row = 16;
  int64_t panel = 0;
};

// Compressed keys and values of neighbouring blocks: a page is [Dp][per_block] keys, then [per_block][Dp] values. There
// are pages for whole sixteens of entries.
struct PooledPages {
  const std::byte* const* pages = nullptr;
  int per_block = 0;
  int padded = 0;
  int first = 0;  // values before this entry are left out
  int entries = 0;
  std::byte* keys = nullptr;    // [Dp][entries rounded up to 16]
  std::byte* values = nullptr;  // [entries - first][Dp]
};

struct AttentionKernels {
  // n values in a row, of f32, f16 or bf16 (in this order) to f32, and back, rounded to the nearest.
  void (*widen[3])(const std::byte* from, int n, float* to);
  void (*narrow[3])(const float* from, int n, std::byte* to);
  // c[i][0, n) = (accumulate ? c[i] * keep[i] : 0) + sum over j < k, ascending, of a[i][j] * b[j][0, n), for i < m; n
  // is a multiple of 16, a null keep is all ones. One chain of fused multiply-adds an element, so a row's result does
  // not depend on m.
  void (*product)(const float* const* a, float* const* c, int m, const WideMatrix& b, int n, int k, bool accumulate,
                  const float* keep);
  void (*product_stored[3])(const StoredProduct& p);  // b of f32, f16 or bf16 (in this order)
  void (*weave_pooled[3])(const PooledPages& p);      // as they are stored, of f32, f16 or bf16 (in this order)
  void (*softmax_rows)(const SoftmaxBlock& b);
  // Rows of `to` become those over the tokens of both, and rows of `part` empty.
  void (*merge_parts)(const SoftmaxParts& part, const SoftmaxParts& to, int rows, int padded);
  // top[i] = 2^(top[i] - m[i]) * factor[i], for i < n.
  void (*share_weights)(float* top, const float* m, const float* factor, int n);
  // out[i] = sum over g < num, ascending, of share[g] * w[g * stride + i], for i < n; n is a multiple of 16.
  void (*mix_weights)(const float* w, int64_t stride, const float* share, int num, int n, float* out);
  // out[b] = sum over i < reach of factors[i] * x[b * per_block + i], for b < blocks; reach is at least per_block.
  // There are numbers for whole sixteens of blocks, and behind those as many as the last one reaches.
  void (*block_sums)(const float* x, const float* factors, int reach, int per_block, int blocks, float* out);
  // Sixteen rows of d numbers, `at` in each, become columns: [d][16].
  void (*turn)(const float* const* rows, int64_t at, int d, float* to);
  // x = exp(x - max) in place, returns the sum. Any n.
  float (*exp_sum)(float* x, int n, float max);
  float (*max)(const float* x, int n);
  // out[b] = the largest of `least` and of z [windows] from per_block * b - skip to before per_block * (b + 1).
  void (*block_max)(const float* z, int windows, int per_block, int skip, int num_blocks, float least, float* out);
  // Scores z[r] [per_block][16] of rows over 16 blocks, no number among them: out[r * stride + b] = the largest of
  // those of block b, then out[r * stride + b - 1] that or the largest of the first `skip` of block b (at most
  // per_block), for b < 16.
  void (*block_tops)(const float* const* z, int rows, int per_block, int skip, float least, float* out, int64_t stride);
  // The places of the `want` largest of x [n], ascending; of equal ones the first. Returns how many there are. No x is
  // less than `least` or no number.
  int (*take_best)(const float* x, int n, int want, float least, int32_t* ids);
  // Softmax parts of one page for `num` queries: max[i * stride] the largest score of the first `tokens` tokens (1 to
  // 256) in powers of two, sum[i * stride] the sum of 2^(score - max). `bytes` of codes a token; codes of whole groups
  // are read.
  void (*sketch_block)(const uint8_t* codes, const float* scales, int tokens, int bytes, const SketchQuery* queries,
                       int num, float* max, float* sum, int stride, const uint8_t* next);
};

const AttentionKernels& ScalarAttentionKernels();
const AttentionKernels& Avx2AttentionKernels();
const AttentionKernels& Avx512AttentionKernels();
const AttentionKernels& AttentionKernelsFor(Isa isa);  // concrete and available

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_
