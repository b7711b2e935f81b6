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

// c[i][0, n) = (keep == null ? 0 : c[i] * keep[i]) + sum over j < k of a[i][j] * b[j][0, n), for i < m, b as it lies in
// a page, with the arithmetic of AttentionKernels::product. ldb in elements; n is a multiple of 16. Lines of `next`, of
// the shape of b, are asked for on the way; it is valid memory or b itself.
struct StoredProduct {
  const float* const* a = nullptr;
  float* const* c = nullptr;
  int m = 0;
  const std::byte* b = nullptr;
  int64_t ldb = 0;
  int n = 0;
  int k = 0;
  const float* keep = nullptr;
  const std::byte* next = nullptr;
};

struct AttentionKernels {
  // Copies b [k][ldb] of f32, f16 or bf16 (in this order) to out [n / 16][k][16] as f32: one pass in the order of
  // memory. ldb in elements; n is a multiple of 16.
  void (*pack[3])(const std::byte* b, int64_t ldb, int n, int k, float* out);
  // n values in a row, of f32, f16 or bf16 (in this order) to f32, and back, rounded to the nearest.
  void (*widen[3])(const std::byte* from, int n, float* to);
  void (*narrow[3])(const float* from, int n, std::byte* to);
  // c[i][0, n) = (accumulate ? c[i] * keep[i] : 0) + sum over j < k, ascending, of a[i][j] * b[j][0, n), for i < m, b
  // as packed; a null keep is all ones. One chain of fused multiply-adds an element, so a row's result does not depend
  // on m.
  void (*product)(const float* const* a, float* const* c, int m, const float* b, int n, int k, bool accumulate,
                  const float* keep);
  void (*product_stored[3])(const StoredProduct& p);  // b of f32, f16 or bf16 (in this order)
  int stored_rows;                                    // m up to which product_stored is the faster one and may be used
  // out[d * ld + e] = rows[e][d] for e < n, d < k, of 16 bits; both are multiples of 8.
  void (*turn16)(const std::byte* const* rows, int n, int k, std::byte* out, int64_t ld);
  void (*softmax_rows)(const SoftmaxBlock& b);
  // x = exp(x - max) in place, returns the sum. Any n.
  float (*exp_sum)(float* x, int n, float max);
  float (*max)(const float* x, int n);
  // out[b] = the largest of `least` and of z [windows] from per_block * b - skip to before per_block * (b + 1).
  void (*block_max)(const float* z, int windows, int per_block, int skip, int num_blocks, float least, float* out);
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

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_
