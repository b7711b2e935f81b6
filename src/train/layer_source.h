// Where training gets a frozen model's activations from, layer by layer.
#ifndef FARSIGHT_TRAIN_LAYER_SOURCE_H_
#define FARSIGHT_TRAIN_LAYER_SOURCE_H_

#include <cstdint>
#include <functional>
#include <span>

#include "farsight/status.h"

namespace farsight {

// What one layer computed for the tokens of a sequence, in host memory; valid during the call. Positions are 0 .. rows.
struct LayerActivations {
  int layer = 0;
  int64_t rows = 0;
  const float* hidden = nullptr;  // [rows, hidden]: the attention's input, after its norm
  const float* q = nullptr;       // [rows, Hq * D], `stride` apart: before RoPE
  const float* k = nullptr;       // [rows, Hkv * D], likewise
  int64_t stride = 0;
};

// Abstract so that training can be tested without a model.
class LayerSource {
 public:
  using LayerFn = std::function<void(const LayerActivations&)>;

  virtual ~LayerSource() = default;
  // Runs the model over one sequence and calls `layer` for each layer in order.
  virtual Status Run(std::span<const int32_t> tokens, const LayerFn& layer) = 0;
};

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_LAYER_SOURCE_H_
