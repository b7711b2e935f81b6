// The function table of one instruction set for attention and selection.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_
#define FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace farsight {

enum class Isa;  // ops/cpu/isa.h

// Queries that one call of `sketch_scores` takes.
inline constexpr int kMaxSketchQueries = 4;

struct SketchQuery {
  const int8_t* codes = nullptr;  // [padded dims]: the query in 8 bits
  float bias = 0;                 // half the top code times the sum of codes
  float scale = 0;                // of a code, times the softmax scale
  float* out = nullptr;           // [tokens]
};

struct AttentionKernels {
  // Copies b [k][ldb] of f32, f16 or bf16 (in this order) to out [n / 16][k][16] as f32: one pass in the order of
  // memory. ldb in elements; n is a multiple of 16.
  void (*pack[3])(const std::byte* b, int64_t ldb, int n, int k, float* out);
  // c[i][0, n) = (accumulate ? c[i] : 0) + sum over j < k, ascending, of a[i][j] * b[j][0, n), for i < m, b as packed.
  // One chain of fused multiply-adds an element, so a row's result does not depend on m.
  void (*product)(const float* const* a, float* const* c, int m, const float* b, int n, int k, bool accumulate);
  // c[i][j] = a[i][0, k) . b[j][0, k) for i < m, j < n; rows of b are k apart, of f32, f16 or bf16 (in this order). k
  // is a multiple of 16, at most 256. A result does not depend on m or n.
  void (*dot_rows[3])(const float* const* a, float* const* c, int m, const std::byte* b, int n, int k);
  // One row of scores s[0, count) against the running maximum m and sum l of its row: s becomes exp(s - new m), zero in
  // [count, n); returns what the earlier output has to be multiplied by. n is a multiple of 16, count >= 1.
  float (*softmax_block)(float* s, int count, int n, float* m, float* l);
  void (*scale)(float* x, float factor, int n);  // n a multiple of 16
  // x = exp(x - max) in place, returns the sum. Any n.
  float (*exp_sum)(float* x, int n, float max);
  float (*sum)(const float* x, int n);
  float (*max)(const float* x, int n);
  // Scores of `tokens` (a multiple of 8) tokens of one sketch page for `num` queries; layout in cpu_attention.cc.
  void (*sketch_scores)(const uint8_t* codes, const float* scales, int tokens, int chunks, int bits,
                        const SketchQuery* queries, int num);
};

const AttentionKernels& ScalarAttentionKernels();
const AttentionKernels& Avx2AttentionKernels();
const AttentionKernels& Avx512AttentionKernels();

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_KERNELS_H_
