#include "ops/cpu/vec_avx512-inl.h"
//
#include "ops/cpu/matmul_amx-inl.h"

namespace farsight {
namespace {

OpKernels Replace(OpKernels k) {
  FillManyRows(&k);
  return k;
}

}  // namespace

// Everything else is the AVX-512 set's.
const OpKernels& AmxOpKernels() {
  static const OpKernels kernels = Replace(Avx512OpKernels());
  return kernels;
}

}  // namespace farsight
