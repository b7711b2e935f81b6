// How a weight lies in memory for the CPU kernels: panels of 16 outputs, so that SIMD lanes are outputs and every
// kernel, whatever its width and number of rows, adds the inputs of one output in the same ascending order.
//
// Quantised formats: a panel is a run of super-blocks; a super-block is a head and `subs` sub-blocks of 32 inputs.
//   32-wide formats:  no head, one sub-block = [16 f16 scale][16 f16 minimum, if any][high bits][codes]
//   Q4_K, Q5_K:       head = [16 f16 d][16 f16 dmin],  sub-block = [16 u8 scale][16 u8 minimum][high bits][codes]
//   Q6_K:             head = [16 f16 d],  sub-block = [16 i8 scale of inputs 0..15][16 i8 of 16..31][high bits][codes]
// Inputs go in groups of four: byte o * 4 + i of a 64-byte vector belongs to output o and input 4 * group + i.
//   codes of 4 to 6 bits: vector v holds group 2v in the low and 2v + 1 in the high nibbles; 8 bits: one vector a group
//   fifth bits: one vector, bit g of a byte belongs to group g; fifth and sixth: vector g / 4, bits 2 * (g % 4)
// Float formats: for each input 16 consecutive values, one an output.
// Rows past the end of the matrix are zero. The size is the file's, plus 2.8 % for Q4_K and 2.3 % for Q5_K.
#ifndef FARSIGHT_OPS_CPU_PACKED_LAYOUT_H_
#define FARSIGHT_OPS_CPU_PACKED_LAYOUT_H_

#include "base/dtype.h"

namespace farsight {

inline constexpr int kPanelOutputs = 16;
inline constexpr int kBlockInputs = 32;

struct PackedLayout {
  int bits = 0;    // of a code; 0 for float formats
  int offset = 0;  // value = scale * (code - offset) [+ minimum]
  bool minimum = false;
  bool super = false;   // scales of sub-blocks are integers times the head's f16
  bool split = false;   // one scale for each 16 inputs
  int subs = 1;         // sub-blocks of a super-block
  int head_bytes = 0;   // of 16 outputs
  int scale_bytes = 0;  // in a sub-block
  int high_bytes = 0;
  int code_bytes = 0;

  constexpr int SubBytes() const { return scale_bytes + high_bytes + code_bytes; }
  constexpr int SuperBytes() const { return head_bytes + subs * SubBytes(); }
  constexpr int SuperInputs() const { return subs * kBlockInputs; }
};

constexpr PackedLayout LayoutOf(DType t) {
  PackedLayout l;
  switch (t) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return l;
    case DType::kQ4_0:
      l.bits = 4;
      l.offset = 8;
      break;
    case DType::kQ4_1:
      l.bits = 4;
      l.minimum = true;
      break;
    case DType::kQ5_0:
      l.bits = 5;
      l.offset = 16;
      break;
    case DType::kQ5_1:
      l.bits = 5;
      l.minimum = true;
      break;
    case DType::kQ8_0:
      l.bits = 8;  // two's complement
      break;
    case DType::kQ4_K:
      l.bits = 4;
      l.minimum = true;
      l.super = true;
      break;
    case DType::kQ5_K:
      l.bits = 5;
      l.minimum = true;
      l.super = true;
      break;
    case DType::kQ6_K:
      l.bits = 6;
      l.offset = 32;
      l.super = true;
      l.split = true;
      break;
  }
  l.subs = l.super ? 8 : 1;
  l.head_bytes = l.super ? (l.minimum ? 64 : 32) : 0;
  l.scale_bytes = l.super || !l.minimum ? 32 : 64;
  l.high_bytes = l.bits == 5 ? 64 : l.bits == 6 ? 128 : 0;
  l.code_bytes = l.bits == 8 ? 512 : 256;
  return l;
}

// A row of activations quantised for integer products: one record per 32 inputs.
struct QuantBlock {
  int8_t codes[kBlockInputs];  // -127 .. 127: round(x * 127 / max|x|), ties to even
  float scale;                 // max|x| / 127; NaN if the block holds a NaN or an infinity
  float scaled_sum;            // scale * (sums[0] + sums[1])
  int32_t sums[2];             // of codes 0..15 and 16..31
};
static_assert(sizeof(QuantBlock) == 48);

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_PACKED_LAYOUT_H_
