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
  // Lookahead on a model that was trained sparse keeps the model's constants; only who chooses is another.
  const bool ahead = asked.policy == AttentionPolicy::kSparda || asked.policy == AttentionPolicy::kInfinigen ||
                     asked.policy == AttentionPolicy::kStale;
  if (!own && !(ahead && trained.policy == AttentionPolicy::kInfLlm2)) return asked;
  AttentionOptions o = trained;
  if (ahead) o.policy = asked.policy;
  const AttentionOptions defaults;
  const auto take = [&](auto field) {
    if (asked.*field != defaults.*field) o.*field = asked.*field;
  };
  take(&AttentionOptions::top_k_blocks);
  if (o.policy == AttentionPolicy::kNsa) return o;
  take(&AttentionOptions::phase);
  for (const auto field :
       {&AttentionOptions::dense_below, &AttentionOptions::block_size, &AttentionOptions::init_blocks,
        &AttentionOptions::local_window, &AttentionOptions::dense_layers, &AttentionOptions::kernel_size,
        &AttentionOptions::kernel_stride, &AttentionOptions::sketch_bits}) {
    take(field);
  }
  return o;
}

}  // namespace

bool AttentionPlan::SharesSummaries(const AttentionPlan& other) const {
  const SummaryView &a = summary, &b = other.summary;
  return sources == other.sources && a.kind == b.kind && a.kernel == b.kernel && a.stride == b.stride &&
         a.bits == b.bits;
}

StatusOr<AttentionPlan> MakeAttentionPlan(const AttentionOptions& asked, const AttentionOptions& trained, int layers,
                                          const std::optional<SummaryView>& forecast) {
  AttentionPlan plan;
  FS_ASSIGN_OR_RETURN(plan.options, Merge(asked, trained));
  AttentionOptions& o = plan.options;
  const bool forecasts = o.policy == AttentionPolicy::kSparda && forecast.has_value();
  if (forecasts && forecast->kind == SummaryKind::kPooledKeys) {
    o.kernel_size = forecast->kernel;
    o.kernel_stride = forecast->stride;
  } else if (forecasts) {
    o.sketch_bits = forecast->bits;
  }
  FS_RETURN_IF_ERROR(Validate(o));
  plan.sources.assign(static_cast<size_t>(layers), ListSource::kAll);
  if (o.policy == AttentionPolicy::kDense) return plan;

  plan.top_k = o.top_k_blocks;
  plan.init_blocks = o.init_blocks;
  plan.local_blocks = o.local_window / o.block_size;
  plan.summary.kernel = o.kernel_size;
  plan.summary.stride = o.kernel_stride;
  plan.summary.bits = o.sketch_bits;
  switch (o.policy) {
    case AttentionPolicy::kInfLlm2:
      plan.summary.kind = SummaryKind::kPooledKeys;
      break;
    case AttentionPolicy::kNsa:
      plan.summary.kind = SummaryKind::kCompressed;
      break;
    case AttentionPolicy::kSparda:
    case AttentionPolicy::kInfinigen:
    case AttentionPolicy::kStale:
      plan.summary.kind = forecasts                                     ? forecast->kind
                          : trained.policy == AttentionPolicy::kInfLlm2 ? SummaryKind::kPooledKeys
                                                                        : SummaryKind::kSketch;
      break;
    default:
      plan.summary.kind = SummaryKind::kSketch;
      break;
  }
  for (int l = o.dense_layers; l < layers; ++l) {
    const bool before = o.policy == AttentionPolicy::kInfinigen && l > 0;
    const bool inherits = o.policy == AttentionPolicy::kStale && l > o.dense_layers;
    plan.sources[static_cast<size_t>(l)] = forecasts  ? ListSource::kForecast
                                           : before   ? ListSource::kInputBefore
                                           : inherits ? ListSource::kListBefore
                                                      : ListSource::kOwnQuery;
  }
  return plan;
}

}  // namespace farsight
