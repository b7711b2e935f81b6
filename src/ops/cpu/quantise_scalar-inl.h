// Quantises activations in plain C++: it defines what the others have to do.
#ifndef FARSIGHT_OPS_CPU_QUANTISE_SCALAR_INL_H_
#define FARSIGHT_OPS_CPU_QUANTISE_SCALAR_INL_H_

#include "ops/cpu/elementwise-inl.h"

namespace farsight {
namespace {

inline void Quantise(const float* in, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n / kBlockInputs; ++b, in += kBlockInputs, out += sizeof(QuantBlock)) {
    QuantBlock block = {};
    uint32_t max_bits = 0;
    for (int i = 0; i < kBlockInputs; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, in[i]) & 0x7fffffffu;
      max_bits = bits > max_bits ? bits : max_bits;
    }
    float inverse;
    block.scale = BlockScale(max_bits, &inverse);
    for (int i = 0; i < kBlockInputs && inverse != 0; ++i) {
      block.codes[i] = static_cast<int8_t>(__builtin_nearbyintf(in[i] * inverse));
      block.sums[i / 16] += block.codes[i];
    }
    block.scaled_sum = block.scale * static_cast<float>(block.sums[0] + block.sums[1]);
    __builtin_memcpy(out, &block, sizeof(block));
  }
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_QUANTISE_SCALAR_INL_H_
