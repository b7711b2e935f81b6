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
  if (!own && asked.policy == AttentionPolicy::kNosa) {
    return InvalidArgument("the policy 'nosa' needs a model that was trained with NOSA attention");
  }
  // Lookahead on a model that was trained sparse keeps the model's constants; only who chooses is another.
  const bool ahead = asked.policy == AttentionPolicy::kSparda || asked.policy == AttentionPolicy::kInfinigen ||
                     asked.policy == AttentionPolicy::kStale;
  const bool nosa = trained.policy == AttentionPolicy::kNosa;
  if (!own && nosa && !ahead) {
    return InvalidArgument(
        std::string("the model was trained with NOSA attention and runs with 'nosa', 'sparda', 'infinigen' or 'stale', "
                    "not '") +
        AttentionPolicyName(asked.policy) + "'");
  }
  if (!own && !(ahead && (nosa || trained.policy == AttentionPolicy::kInfLlm2))) return asked;
  AttentionOptions o = trained;
  if (ahead) o.policy = asked.policy;
  const AttentionOptions defaults;
  const auto take = [&](auto field) {
    if (asked.*field != defaults.*field) o.*field = asked.*field;
  };
  take(&AttentionOptions::top_k_blocks);
  if (o.policy == AttentionPolicy::kNsa) return o;
  take(&AttentionOptions::phase);
  if (nosa) {
    // Importances belong to the windows that they were trained with, and to every layer.
    for (const auto field : {&AttentionOptions::query_blocks, &AttentionOptions::dense_below,
                             &AttentionOptions::init_blocks, &AttentionOptions::local_window}) {
      take(field);
    }
    return o;
  }
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
  const bool nosa = trained.policy == AttentionPolicy::kNosa;
  if (nosa && forecasts &&
      (forecast->kind != SummaryKind::kPooledKeys || forecast->kernel != o.kernel_size ||
       forecast->stride != o.kernel_stride)) {
    return InvalidArgument("a Forecast for a NOSA model scores the model's own windows of " +
                           std::to_string(o.kernel_size) + " keys every " + std::to_string(o.kernel_stride) +
                           ", and this one scores others");
  }
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
  plan.query_top_k = nosa ? o.query_blocks : 0;
  plan.init_blocks = o.init_blocks;
  plan.local_blocks = o.local_window / o.block_size;
  plan.summary.kernel = o.kernel_size;
  plan.summary.stride = o.kernel_stride;
  plan.summary.bits = o.sketch_bits;
  switch (o.policy) {
    case AttentionPolicy::kInfLlm2:
    case AttentionPolicy::kNosa:
      plan.summary.kind = SummaryKind::kPooledKeys;
      break;
    case AttentionPolicy::kNsa:
      plan.summary.kind = SummaryKind::kCompressed;
      break;
    case AttentionPolicy::kSparda:
    case AttentionPolicy::kInfinigen:
    case AttentionPolicy::kStale:
      plan.summary.kind = forecasts                                             ? forecast->kind
                          : nosa || trained.policy == AttentionPolicy::kInfLlm2 ? SummaryKind::kPooledKeys
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
