#include "ops/cpu/vec_avx512-inl.h"
//
#include "ops/cpu/attention-inl.h"

namespace farsight {

const AttentionKernels& Avx512AttentionKernels() { return kAttentionKernels; }

}  // namespace farsight
