#include "ops/cpu/vec_scalar-inl.h"
//
#include "ops/cpu/attention-inl.h"

namespace farsight {

const AttentionKernels& ScalarAttentionKernels() { return kAttentionKernels; }

}  // namespace farsight
