#include "attention/attention_plan.h"

namespace farsight {

namespace {

StatusOr<AttentionOptions> Merge(const AttentionOptions& asked, const AttentionOptions& trained) {
  const bool own = asked.policy == AttentionPolicy::kModel || asked.policy == trained.policy;
  if (!own && trained.policy == AttentionPolicy::kNsa) {
    return InvalidArgument(std::string("the model was trained with NSA attention and runs with 'nsa' only, not '") +
                           AttentionPolicyName(asked.policy) + "'");
  }
  if (!own && asked.policy == AttentionPolicy::kNsa) {
    return InvalidArgument("the policy 'nsa' needs a model that was trained with NSA attention");
  }
  if (!own) return asked;
  AttentionOptions o = trained;
  const AttentionOptions defaults;
  const auto take = [&](auto field) {
    if (asked.*field != defaults.*field) o.*field = asked.*field;
  };
  take(&AttentionOptions::top_k_blocks);
  take(&AttentionOptions::phase);
  take(&AttentionOptions::dense_below);
  if (o.policy == AttentionPolicy::kNsa) {
    o.phase = trained.phase;
    o.dense_below = 0;
    return o;
  }
  for (const auto field :
       {&AttentionOptions::block_size, &AttentionOptions::init_blocks, &AttentionOptions::local_window,
        &AttentionOptions::dense_layers, &AttentionOptions::kernel_size, &AttentionOptions::kernel_stride,
        &AttentionOptions::sketch_bits}) {
    take(field);
  }
  return o;
}

}  // namespace

StatusOr<AttentionPlan> MakeAttentionPlan(const AttentionOptions& asked, const AttentionOptions& trained, int layers) {
  AttentionPlan plan;
  FS_ASSIGN_OR_RETURN(plan.options, Merge(asked, trained));
  AttentionOptions& o = plan.options;
  FS_RETURN_IF_ERROR(Validate(o));
  plan.sources.assign(static_cast<size_t>(layers), ListSource::kAll);
  if (o.policy == AttentionPolicy::kDense) return plan;

  plan.top_k = o.top_k_blocks;
  plan.init_blocks = o.init_blocks;
  plan.local_blocks = o.local_window / o.block_size;
  if (o.policy == AttentionPolicy::kInfLlm2 || o.policy == AttentionPolicy::kNsa) {
    plan.summary.kind = o.policy == AttentionPolicy::kNsa ? SummaryKind::kCompressed : SummaryKind::kPooledKeys;
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
