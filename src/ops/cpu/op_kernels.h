// The function table of one instruction set: matrix products and element-wise ops.
// Files compiled for an instruction set include this and the -inl.h files only: an inline function of the standard
// library compiled with wide instructions could be the copy that the linker keeps for everyone.
#ifndef FARSIGHT_OPS_CPU_OP_KERNELS_H_
#define FARSIGHT_OPS_CPU_OP_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "ops/params.h"

namespace farsight {

enum class Isa;  // ops/cpu/isa.h

inline constexpr int kNumDTypes = 11;
inline constexpr int kMaxTileRows = 8;

// 1 to kMaxTileRows rows times one panel of 16 outputs.
struct MatMulTile {
  const uint8_t* panel = nullptr;
  const uint8_t* in = nullptr;  // f32 or QuantBlock records, rows in_stride_bytes apart
  int64_t in_stride_bytes = 0;
  int64_t cols = 0;
  const float* bias = nullptr;  // [width] or null
  float* out = nullptr;         // rows out_stride floats apart
  int64_t out_stride = 0;
  float alpha = 1.0f;
  bool accumulate = false;
  int width = 16;  // outputs that exist
};

struct OpKernels {
  void (*matmul[kNumDTypes][kMaxTileRows])(const MatMulTile& t);  // [dtype][rows - 1]
  // n values, a multiple of 32, into n / 32 QuantBlock records.
  void (*quantise)(const float* in, int64_t n, uint8_t* out);
  // Rows [begin, end) of an op.
  void (*rms_norm)(const RmsNormParams& p, int begin, int end);
  void (*rope)(const RopeParams& p, int begin, int end);
  void (*swiglu)(const SwiGluParams& p, int begin, int end);
};

const OpKernels& ScalarOpKernels();
const OpKernels& Avx2OpKernels();
const OpKernels& Avx512OpKernels();
const OpKernels& OpKernelsFor(Isa isa);  // concrete and available

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_OP_KERNELS_H_
