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

// Panels unpacked once for many rows: for each 32 inputs the codes as bytes, 64 a group of four inputs (8-bit codes
// plus 128 as two planes of nibbles, the lower first), then of 16 outputs the scale, the minimum if any, and for
// formats with a scale for each 16 inputs the two scales, all f32.
inline constexpr int kExpandedRows = 4;
inline constexpr int kMaxExpandedSubBytes = 512 + 3 * 64;

// kExpandedRows rows times some sub-blocks of an expanded panel.
struct ExpandedTile {
  MatMulTile tile;           // `panel` is expanded, 32-byte aligned; `cols` of it are multiplied
  int rows = kExpandedRows;  // that exist, the others are not touched
  float* partial = nullptr;  // [rows][16] sums over the inputs before, and after unless `last`
  bool first = false;        // there are no inputs before
  bool last = false;         // no inputs follow: the rows are finished
};

// Many rows times consecutive panels. `tile` is that of the first panel and row; its `width` is the last panel's.
struct ManyRows {
  MatMulTile tile;
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t num_rows = 0;  // at least min_many_rows; records of kRowsPastEnd more may be read
};
inline constexpr int kRowsPastEnd = 3;

struct OpKernels {
  void (*matmul[kNumDTypes][kMaxTileRows])(const MatMulTile& t);  // [dtype][rows - 1]
  // Null where unpacking costs too little to be worth it. `cols` is a multiple of the format's block.
  void (*expand[kNumDTypes])(const uint8_t* panel, int64_t cols, uint8_t* out);
  void (*matmul_expanded[kNumDTypes])(const ExpandedTile& t);
  int expanded_sub_bytes[kNumDTypes];
  // Null where many rows have no kernel of their own.
  void (*matmul_many[kNumDTypes])(const ManyRows& m);
  int min_many_rows[kNumDTypes];  // from which it is the faster
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
const OpKernels& AmxOpKernels();
const OpKernels& OpKernelsFor(Isa isa);  // concrete and available

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_OP_KERNELS_H_
