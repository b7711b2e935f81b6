// Forecast projections of a tiny model without training.
#ifndef FARSIGHT_ENGINE_TESTING_RANDOM_FORECAST_H_
#define FARSIGHT_ENGINE_TESTING_RANDOM_FORECAST_H_

#include <memory>
#include <random>

#include "engine/model_impl.h"
#include "engine/testing/tiny_model.h"
#include "model/forecast_file.h"

namespace farsight::testing {

// For blocks of 16 tokens; no projections yet.
inline Forecast EmptyForecast(const std::shared_ptr<Model>& model, SummaryKind keys) {
  Forecast f;
  f.info.fingerprint = model->impl().loaded->fingerprint();
  f.info.keys = keys;
  f.info.block_size = 16;
  f.info.kernel_size = 8;
  f.info.kernel_stride = 4;
  f.projections.resize(kLayers);
  return f;
}

// `heads`: kKvHeads or kHeads.
inline Forecast RandomForecast(const std::shared_ptr<Model>& model, SummaryKind keys, int heads = kKvHeads) {
  Forecast f = EmptyForecast(model, keys);
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(0, 0.4f);
  for (auto& p : f.projections) {
    for (int i = 0; i < heads * kDim * kHidden; ++i) p.push_back(normal(rng));
  }
  return f;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_ENGINE_TESTING_RANDOM_FORECAST_H_
