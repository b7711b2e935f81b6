#include "attention/attention_plan.h"

namespace farsight {

StatusOr<AttentionPlan> MakeAttentionPlan(const AttentionOptions& asked, const AttentionOptions& trained, int layers) {
  AttentionPlan plan;
  plan.options = asked.policy == AttentionPolicy::kModel ? trained : asked;
  AttentionOptions& o = plan.options;
  FS_RETURN_IF_ERROR(Validate(o));
  plan.sources.assign(static_cast<size_t>(layers), ListSource::kAll);
  if (o.policy == AttentionPolicy::kDense) return plan;

  plan.top_k = o.top_k_blocks;
  plan.init_blocks = o.init_blocks;
  plan.local_blocks = o.local_window / o.block_size;
  if (o.policy == AttentionPolicy::kInfLlm2) {
    plan.summary.kind = SummaryKind::kPooledKeys;
    plan.summary.kernel = o.kernel_size;
    plan.summary.stride = o.kernel_stride;
  } else {
    plan.summary.kind = SummaryKind::kSketch;
    plan.summary.bits = o.sketch_bits;
  }
  for (int l = o.dense_layers; l < layers; ++l) plan.sources[static_cast<size_t>(l)] = ListSource::kOwnQuery;
  return plan;
}

}  // namespace farsight
