// The function table of the instruction set whose `Vec` and `Quantise` were included before.
#ifndef FARSIGHT_OPS_CPU_KERNEL_TABLE_INL_H_
#define FARSIGHT_OPS_CPU_KERNEL_TABLE_INL_H_

#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/matmul-inl.h"

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
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_KERNEL_TABLE_INL_H_
