// A start of training: the linear map of the layer before that comes closest to the queries a Forecast stands for.
#ifndef FARSIGHT_TRAIN_FORECAST_FIT_H_
#define FARSIGHT_TRAIN_FORECAST_FIT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "train/forecast_task.h"
#include "train/layer_source.h"

namespace farsight {

struct ForecastFitOptions {
  ForecastTask task;
  int64_t hidden = 0;
  int layers = 0;
  int64_t rows_per_sequence = 512;  // drawn from all of it; 0: all
  // Pulls towards the start, in shares of the mean square of an input channel: what the rows do not determine stays.
  double ridge = 0.01;
  uint64_t seed = 42;
};

// Least squares over rows of the sequences, in closed form: of the queries of each group's mean, or of each head
// (ForecastTask::queries), before RoPE, which turns both alike. `initial` as InitialForecast makes it; the same shape
// comes back.
StatusOr<std::vector<std::vector<float>>> FitForecast(const ForecastFitOptions& options, LayerSource& source,
                                                      std::span<const std::span<const int32_t>> sequences,
                                                      std::vector<std::vector<float>> initial, ThreadPool* pool);

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_FIT_H_
