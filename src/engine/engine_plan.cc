#include "engine/engine_plan.h"

#include "engine/model_impl.h"

namespace farsight {

StatusOr<AttentionPlan> PlanFor(const AttentionOptions& attention, const ModelConfig& config,
                                const std::optional<ForecastInfo>& forecast) {
  std::optional<SummaryView> trained_over;
  if (forecast) {
    trained_over.emplace();
    trained_over->kind = forecast->keys;
    trained_over->kernel = forecast->kernel_size;
    trained_over->stride = forecast->kernel_stride;
    trained_over->bits = forecast->sketch_bits;
  }
  FS_ASSIGN_OR_RETURN(AttentionPlan made, MakeAttentionPlan(attention, config.attention, config.layers, trained_over));
  if (made.Forecasts() && made.options.block_size != forecast->block_size) {
    return InvalidArgument("the Forecast was trained for blocks of " + std::to_string(forecast->block_size) +
                           " tokens, not " + std::to_string(made.options.block_size));
  }
  return made;
}

StatusOr<PlanAndForecast> PlanOf(const Model& model, const EngineOptions& options) {
  const ModelConfig& config = model.impl().config;
  PlanAndForecast out;
  std::optional<ForecastInfo> info;
  if (!options.forecast.empty()) {
    FS_ASSIGN_OR_RETURN(out.forecast, LoadForecast(options.forecast, config, model.impl().loaded->fingerprint()));
    info = out.forecast->info;
  }
  FS_ASSIGN_OR_RETURN(out.plan, PlanFor(options.attention, config, info));
  return out;
}

}  // namespace farsight
