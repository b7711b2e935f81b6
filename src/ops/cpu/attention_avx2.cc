#include "ops/cpu/vec_avx2-inl.h"
//
#include "ops/cpu/attention-inl.h"

namespace farsight {

const AttentionKernels& Avx2AttentionKernels() { return kAttentionKernels; }

}  // namespace farsight
