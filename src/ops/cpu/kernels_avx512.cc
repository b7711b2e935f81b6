#include "ops/cpu/vec_avx512-inl.h"
//
#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/matmul-inl.h"
#include "ops/cpu/quantise_avx2-inl.h"

namespace farsight {
namespace {

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

const OpKernels& Avx512OpKernels() { return kKernels; }

}  // namespace farsight
