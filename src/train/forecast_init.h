// What a Forecast's projections are before training.
#ifndef FARSIGHT_TRAIN_FORECAST_INIT_H_
#define FARSIGHT_TRAIN_FORECAST_INIT_H_

#include <cstdint>
#include <vector>

#include "model/runner.h"

namespace farsight {

// `queries` Forecasts of a KV head: 1 or G (ForecastTask). Uniform in +-1/sqrt(hidden), as published. [layers] of
// [Hkv * queries * D, hidden].
std::vector<std::vector<float>> RandomForecast(const ModelConfig& config, int queries, uint64_t seed);

// The mean query of each KV head's group, or each query of its own, asked one layer early: the input of neighbouring
// layers differs little, so this is where training ends up faster. Columns are rescaled from the norm of the layer
// whose input is used to that of the target.
StatusOr<std::vector<std::vector<float>>> ForecastFromQueries(const ModelFile& file, const ModelConfig& config,
                                                              int queries, WeightNames names);

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_INIT_H_
