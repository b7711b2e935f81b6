#include "ops/cpu/vec_scalar-inl.h"
//
#include "ops/cpu/quantise_scalar-inl.h"
//
#include "ops/cpu/kernel_table-inl.h"

namespace farsight {

const OpKernels& ScalarOpKernels() { return kKernels; }

}  // namespace farsight
