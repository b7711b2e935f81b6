#include "ops/cpu/vec_scalar-inl.h"
//
#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/matmul-inl.h"

namespace farsight {
namespace {

void Quantise(const float* in, int64_t n, uint8_t* out) {
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

constexpr OpKernels MakeKernels() {
  OpKernels k = {};
  FillMatMuls(&k);
  k.quantise = Quantise;
  k.rms_norm = RmsNormRows;
  k.rope = RopeRows;
  k.swiglu = SwiGluRows;
  return k;
}
constexpr OpKernels kKernels = MakeKernels();

}  // namespace

const OpKernels& ScalarOpKernels() { return kKernels; }

}  // namespace farsight
