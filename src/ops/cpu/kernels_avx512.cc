#include "ops/cpu/vec_avx512-inl.h"
//
#include "ops/cpu/quantise_avx2-inl.h"
//
#include "ops/cpu/kernel_table-inl.h"

namespace farsight {

const OpKernels& Avx512OpKernels() { return kKernels; }

}  // namespace farsight
