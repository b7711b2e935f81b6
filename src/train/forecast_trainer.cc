#include "train/forecast_trainer.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "train/sequences.h"

namespace farsight {
namespace {

constexpr uint64_t kTrainRows = 0x726f7773;  // purposes of random draws
constexpr uint64_t kEvaluateRows = 0x6576616c;
constexpr const char* kStateFormat = "farsight-forecast-state-1";
constexpr int64_t kRowsPerTask = 16;

size_t At(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

ForecastTotals ForecastPass::Sum() const {
  ForecastTotals all;
  for (const auto& l : layers) all.Add(l);
  return all;
}

StatusOr<std::unique_ptr<ForecastTrainer>> ForecastTrainer::Create(const ForecastTrainerOptions& o,
                                                                   std::vector<std::vector<float>> initial,
                                                                   ThreadPool* pool) {
  FS_RETURN_IF_ERROR(Validate(o.task));
  if (o.layers < 1 || o.hidden < 1) return InvalidArgument("a Forecast needs a model with layers");
  if (!(o.learning_rate.peak >= 0) || !std::isfinite(o.learning_rate.peak)) {
    return InvalidArgument("the learning rate must not be negative");
  }
  if (initial.size() != At(o.layers)) {
    return InvalidArgument("training starts from " + std::to_string(o.layers) + " projections, not " +
                           std::to_string(initial.size()));
  }
  const auto weights = At(o.hidden * o.task.forecast_width());
  for (const auto& p : initial) {
    if (p.size() != weights) {
      return InvalidArgument("a projection to start from has " + std::to_string(p.size()) + " weights; " +
                             std::to_string(weights) + " were expected");
    }
  }
  if (o.rotated && (o.rope.inv_freq.empty() || 2 * o.rope.inv_freq.size() > At(o.task.head_dim))) {
    return InvalidArgument("RoPE cannot turn " + std::to_string(2 * o.rope.inv_freq.size()) + " of " +
                           std::to_string(o.task.head_dim) + " channels");
  }
  return std::unique_ptr<ForecastTrainer>(new ForecastTrainer(o, std::move(initial), pool));
}

ForecastTrainer::ForecastTrainer(const ForecastTrainerOptions& options, std::vector<std::vector<float>> initial,
                                 ThreadPool* pool)
    : o_(options), pool_(pool), kernels_(BestForecastKernels()), loss_(options.task, pool, kernels_) {
  for (auto& p : initial) tensors_.emplace_back(std::move(p));
}

int64_t ForecastTrainer::FirstChoice() const { return static_cast<int64_t>(o_.task.top_k) * o_.task.block_tokens; }

std::vector<std::vector<float>> ForecastTrainer::Projections() const {
  std::vector<std::vector<float>> out;
  for (const auto& t : tensors_) out.push_back(t.weight);
  return out;
}

StatusOr<ForecastStep> ForecastTrainer::Step(LayerSource& source, std::span<const std::span<const int32_t>> batch) {
  ForecastStep out;
  out.pass.layers.resize(At(o_.layers));
  std::vector<std::vector<float>> gradients;
  for (const auto& t : tensors_) gradients.emplace_back(t.weight.size(), 0.0f);
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto length = static_cast<int64_t>(batch[i].size());
    const uint64_t seed = MixSeed(o_.seed, kTrainRows, static_cast<uint64_t>(sequences_) + i);
    const auto positions = DrawRows(o_.rows_per_sequence == 0 ? 0 : FirstChoice(), length, o_.rows_per_sequence, seed);
    if (positions.empty()) {
      return InvalidArgument("a sequence of " + std::to_string(length) + " tokens has no row with more than " +
                             std::to_string(o_.task.top_k) + " blocks to choose from; it must be longer than " +
                             std::to_string(FirstChoice()));
    }
    const double weight = 1.0 / static_cast<double>(positions.size() * batch.size() * At(o_.task.kv_heads));
    FS_RETURN_IF_ERROR(RunSequence(source, batch[i], positions, weight, &gradients, &out.pass));
  }
  const double factor = ClipFactor(gradients, o_.adamw.clip, &out.gradient_norm);
  if (!std::isfinite(out.gradient_norm)) return Internal("the gradient of the Forecast is not finite");
  ++steps_;
  sequences_ += static_cast<int64_t>(batch.size());
  out.learning_rate = o_.learning_rate.At(steps_);
  pool_->ParallelFor(o_.layers, [&](int64_t l, int) {
    AdamWStep(o_.adamw, out.learning_rate, steps_, gradients[At(l)], factor, &tensors_[At(l)]);
  });
  return out;
}

StatusOr<ForecastPass> ForecastTrainer::Evaluate(LayerSource& source,
                                                 std::span<const std::span<const int32_t>> sequences) {
  ForecastPass out;
  out.layers.resize(At(o_.layers));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto positions = DrawRows(FirstChoice(), static_cast<int64_t>(sequences[i].size()), o_.rows_per_sequence,
                                    MixSeed(o_.seed, kEvaluateRows, i));
    if (positions.empty()) continue;
    FS_RETURN_IF_ERROR(RunSequence(source, sequences[i], positions, 1, nullptr, &out));
  }
  return out;
}

Status ForecastTrainer::RunSequence(LayerSource& source, std::span<const int32_t> tokens,
                                    std::span<const int32_t> positions, double weight,
                                    std::vector<std::vector<float>>* gradients, ForecastPass* pass) {
  FillRopeTable(static_cast<int64_t>(tokens.size()));
  int seen = 0;
  FS_RETURN_IF_ERROR(source.Run(tokens, [&](const LayerActivations& a) {
    FS_CHECK(a.layer == seen && a.layer < o_.layers, "layers come in order");
    FS_CHECK(a.rows == static_cast<int64_t>(tokens.size()), "a layer comes with all rows of the sequence");
    RunLayer(a, positions, weight, gradients == nullptr ? nullptr : &(*gradients)[At(seen)], &pass->layers[At(seen)]);
    ++seen;
  }));
  FS_CHECK(seen == o_.layers, "every layer comes once");
  return OkStatus();
}

void ForecastTrainer::FillRopeTable(int64_t length) {
  const auto half = static_cast<int64_t>(o_.rope.inv_freq.size());
  if (!o_.rotated || static_cast<int64_t>(cos_.size()) >= length * half) return;
  cos_.resize(At(length * half));
  sin_.resize(At(length * half));
  for (int64_t p = 0; p < length; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * o_.rope.inv_freq[At(i)];
      cos_[At(p * half + i)] = static_cast<float>(std::cos(angle) * o_.rope.magnitude);
      sin_[At(p * half + i)] = static_cast<float>(std::sin(angle) * o_.rope.magnitude);
    }
  }
}

void ForecastTrainer::Rotate(std::span<const int32_t> positions, int heads, bool back, float* x) const {
  if (!o_.rotated) return;
  const auto half = static_cast<int64_t>(o_.rope.inv_freq.size());
  const int64_t d = o_.task.head_dim;
  const auto rows = static_cast<int64_t>(positions.size());
  pool_->ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    for (int64_t r = task * kRowsPerTask; r < std::min(rows, (task + 1) * kRowsPerTask); ++r) {
      const float* cos = cos_.data() + positions[At(r)] * half;
      const float* sin = sin_.data() + positions[At(r)] * half;
      for (int h = 0; h < heads; ++h) {
        float* v = x + (r * heads + h) * d;
        for (int64_t i = 0; i < half; ++i) {
          const float s = back ? -sin[i] : sin[i];
          const float a = v[i];
          const float b = v[i + half];
          v[i] = a * cos[i] - b * s;
          v[i + half] = b * cos[i] + a * s;
        }
      }
    }
  });
}

// The layer is a target: its queries and keys teach the projection that was fed by the layer before.
void ForecastTrainer::RunLayer(const LayerActivations& a, std::span<const int32_t> positions, double weight,
                               std::vector<float>* gradient, ForecastTotals* totals) {
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t q_width = static_cast<int64_t>(o_.task.heads) * o_.task.head_dim;
  next_.resize(At(rows * o_.hidden));
  queries_.resize(At(rows * q_width));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t p = positions[At(r)];
    std::copy_n(a.hidden + p * o_.hidden, o_.hidden, next_.data() + r * o_.hidden);
    std::copy_n(a.q + p * a.stride, q_width, queries_.data() + r * q_width);
  }
  const int64_t key_width = static_cast<int64_t>(o_.task.kv_heads) * o_.task.head_dim;
  keys_.resize(At(a.rows * key_width));
  std::vector<int32_t> everywhere(At(a.rows));
  std::iota(everywhere.begin(), everywhere.end(), 0);
  for (int64_t p = 0; p < a.rows; ++p) std::copy_n(a.k + p * a.stride, key_width, keys_.data() + p * key_width);
  Rotate(everywhere, o_.task.kv_heads, false, keys_.data());
  Rotate(positions, o_.task.heads, false, queries_.data());

  if (a.layer == 0) input_ = next_;  // layer 0 forecasts for itself
  Project(tensors_[At(a.layer)].weight, rows);
  const int forecasts = o_.task.kv_heads * o_.task.queries;
  Rotate(positions, forecasts, false, forecast_.data());
  slope_.resize(forecast_.size());
  loss_.SetKeys(keys_.data(), key_width, a.rows);
  totals->Add(loss_.Run(positions, queries_.data(), forecast_.data(), gradient == nullptr ? nullptr : slope_.data()));
  if (gradient != nullptr) {
    Rotate(positions, forecasts, true, slope_.data());  // the derivative turns back
    AddWeightGradient(rows, weight, gradient);
  }
  std::swap(input_, next_);
}

// forecast_ = input_ . weight^T
void ForecastTrainer::Project(const std::vector<float>& weight, int64_t rows) {
  forecast_.resize(At(rows * width()));
  panels_.PackRows(weight.data(), o_.hidden, o_.hidden, width());
  pool_->ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t r = task * kRowsPerTask;
    kernels_.product(input_.data() + r * o_.hidden, o_.hidden, std::min(kRowsPerTask, rows - r), panels_, o_.hidden,
                     width(), forecast_.data() + r * width(), width());
  });
}

// gradient += weight * slope_^T . input_
void ForecastTrainer::AddWeightGradient(int64_t rows, double weight, std::vector<float>* gradient) {
  turned_.resize(At(width() * rows));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width(); ++c) turned_[At(c * rows + r)] = slope_[At(r * width() + c)];
  }
  panels_.PackColumns(input_.data(), o_.hidden, rows, o_.hidden);
  std::vector<float> product(At(width() * o_.hidden));
  pool_->ParallelFor((width() + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t c = task * kRowsPerTask;
    kernels_.product(turned_.data() + c * rows, rows, std::min(kRowsPerTask, width() - c), panels_, rows, o_.hidden,
                     product.data() + c * o_.hidden, o_.hidden);
  });
  for (size_t i = 0; i < product.size(); ++i) (*gradient)[i] += static_cast<float>(weight * product[i]);
}

Status ForecastTrainer::SaveState(const std::string& path, const std::string& settings) const {
  std::vector<TensorToWrite> tensors;
  for (size_t l = 0; l < tensors_.size(); ++l) {
    const std::string name = std::to_string(l);
    const auto add = [&](const char* what, const std::vector<float>& v) {
      tensors.push_back({what + name, DType::kF32, {static_cast<int64_t>(v.size())}, std::as_bytes(std::span(v))});
    };
    add("weight.", tensors_[l].weight);
    add("mean.", tensors_[l].mean);
    add("square.", tensors_[l].square);
  }
  return WriteSafetensors(path,
                          {{"format", kStateFormat},
                           {"settings", settings},
                           {"steps", std::to_string(steps_)},
                           {"sequences", std::to_string(sequences_)}},
                          tensors);
}

Status ForecastTrainer::LoadState(const std::string& path, const std::string& settings) {
  FS_ASSIGN_OR_RETURN(const auto file, OpenSafetensors(path));
  FS_ASSIGN_OR_RETURN(const std::string format, file->OptString("format", ""));
  if (format != kStateFormat) return DataLoss("'" + path + "' is not the state of a Forecast's training");
  FS_ASSIGN_OR_RETURN(const std::string old_settings, file->OptString("settings", ""));
  if (old_settings != settings) {
    return InvalidArgument("'" + path + "' belongs to another training: it was made with " + old_settings +
                           ", this one has " + settings);
  }
  int64_t counts[2] = {};
  const char* const keys[] = {"steps", "sequences"};
  for (int i = 0; i < 2; ++i) {
    FS_ASSIGN_OR_RETURN(const std::string text, file->OptString(keys[i], ""));
    char* end = nullptr;
    counts[i] = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != 0 || counts[i] < 0) {
      return DataLoss("'" + path + "' has '" + text + "' as its number of " + keys[i]);
    }
  }
  std::vector<AdamWTensor> tensors;
  for (size_t l = 0; l < tensors_.size(); ++l) {
    AdamWTensor t(std::vector<float>(tensors_[l].weight.size()));
    const std::pair<const char*, std::vector<float>*> parts[] = {
        {"weight.", &t.weight}, {"mean.", &t.mean}, {"square.", &t.square}};
    for (const auto& [what, values] : parts) {
      FS_ASSIGN_OR_RETURN(const FileTensor* stored, file->GetTensor(what + std::to_string(l)));
      if (stored->dtype != DType::kF32 || stored->num_elements() != static_cast<int64_t>(values->size())) {
        return DataLoss("the tensor '" + stored->name + "' of '" + path + "' has another size than this model's");
      }
      std::memcpy(values->data(), stored->data.data(), stored->data.size());
      for (const float v : *values) {
        if (!std::isfinite(v)) return DataLoss("the tensor '" + stored->name + "' of '" + path + "' is not finite");
      }
    }
    tensors.push_back(std::move(t));
  }
  tensors_ = std::move(tensors);
  steps_ = counts[0];
  sequences_ = counts[1];
  return OkStatus();
}

}  // namespace farsight
