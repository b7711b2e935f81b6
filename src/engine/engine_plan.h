// The attention of an engine: what was asked for on a model, with its Forecast where there is one.
#ifndef FARSIGHT_ENGINE_ENGINE_PLAN_H_
#define FARSIGHT_ENGINE_ENGINE_PLAN_H_

#include <optional>

#include "attention/attention_plan.h"
#include "farsight/engine.h"
#include "model/config.h"
#include "model/forecast_file.h"

namespace farsight {

// As MakeAttentionPlan. kInvalidArgument too where a plan would use a Forecast that was trained for other blocks.
StatusOr<AttentionPlan> PlanFor(const AttentionOptions& attention, const ModelConfig& config,
                                const std::optional<ForecastInfo>& forecast);

// The plan of an engine's options, and the Forecast that it was made with, where options name one.
struct PlanAndForecast {
  AttentionPlan plan;
  std::optional<Forecast> forecast;
};
StatusOr<PlanAndForecast> PlanOf(const Model& model, const EngineOptions& options);

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_ENGINE_PLAN_H_
