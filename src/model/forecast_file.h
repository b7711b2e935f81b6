// Forecast projections (arXiv 2606.04511) as a file of their own, laid over the model they were trained for.
// docs/train-forecast.md describes the file.
#ifndef FARSIGHT_MODEL_FORECAST_FILE_H_
#define FARSIGHT_MODEL_FORECAST_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/model_file.h"
#include "model/config.h"
#include "ops/params.h"

namespace farsight {

// What the projections were trained over. Read from metadata; a file without it (published checkpoints) has the
// defaults, and an empty fingerprint.
struct ForecastInfo {
  std::string fingerprint;                      // ModelFingerprint of the model
  SummaryKind keys = SummaryKind::kPooledKeys;  // what the Forecast scores: kPooledKeys or kSketch
  bool rotated = true;   // RoPE turns the Forecast as it turns queries; false: keys are scored as before RoPE
  int block_size = 64;   // tokens
  int kernel_size = 32;  // kPooledKeys: tokens of a window and between windows
  int kernel_stride = 16;
  int sketch_bits = 2;                                        // kSketch
  std::vector<std::pair<std::string, std::string>> training;  // how it was trained, for people
};

struct Forecast {
  ForecastInfo info;
  // By TARGET layer: projections[l] chooses blocks of layer l. It is applied to the attention input (after the norm) of
  // layer l - 1, and for l = 0 to that of layer 0 itself. [heads * D, hidden], output rows in rotate-half order; all
  // have as many heads: one for each KV head, as published, or one for each query head.
  std::vector<std::vector<float>> projections;

  int Heads(const ModelConfig& c) const {
    return static_cast<int>(projections[0].size() / (static_cast<size_t>(c.hidden) * static_cast<size_t>(c.head_dim)));
  }
};

// The published name of the projection that chooses blocks of `target`: layer 0's is its own q_curr_proj, that of any
// other layer the q_future_proj of the layer before.
std::string ForecastTensorName(int target);

// 16 hexadecimal digits over the names, types and shapes of all tensors and samples of their bytes: another model,
// another quantisation or a retrained one differs. Reads at most 16 KiB of each tensor.
std::string ModelFingerprint(const ModelFile& file);

// dtype: kF32, kF16 or kBF16.
Status SaveForecast(const std::string& path, const Forecast& forecast, const ModelConfig& config, DType dtype);

// A safetensors or GGUF file. Refuses, in one sentence, a file for another model (by fingerprint, where it has one), a
// missing projection, a wrong shape and a value that is not finite. Other tensors are ignored: published files have one
// projection that nothing uses.
StatusOr<Forecast> LoadForecast(const std::string& path, const ModelConfig& config, const std::string& fingerprint);

}  // namespace farsight

#endif  // FARSIGHT_MODEL_FORECAST_FILE_H_
