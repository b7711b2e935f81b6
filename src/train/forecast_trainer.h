// Trains Forecast projections on a frozen model, all layers in one pass over each sequence.
#ifndef FARSIGHT_TRAIN_FORECAST_TRAINER_H_
#define FARSIGHT_TRAIN_FORECAST_TRAINER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/config.h"
#include "train/adamw.h"
#include "train/forecast_loss.h"
#include "train/forecast_task.h"
#include "train/layer_source.h"

namespace farsight {

struct ForecastTrainerOptions {
  ForecastTask task;
  bool rotated = true;              // RoPE turns queries, keys and the Forecast before they are scored
  RopeTableSpec rope;               // [rotated channels / 2] frequencies; where rotated
  int64_t hidden = 0;               // width of the attention's input
  int layers = 0;                   // one projection each
  int64_t rows_per_sequence = 256;  // rows trained of each sequence, drawn anew every time; 0: all
  AdamWOptions adamw;
  LearningRate learning_rate;
  uint64_t seed = 42;
};

// The sums of one pass over some sequences, by target layer.
struct ForecastPass {
  std::vector<ForecastTotals> layers;

  ForecastTotals Sum() const;
};

struct ForecastStep {
  ForecastPass pass;
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
};

class ForecastTrainer {
 public:
  // `initial` has one projection [Hkv * queries * D, hidden] a layer, by target layer; see InitialForecast. `pool`
  // outlives this.
  static StatusOr<std::unique_ptr<ForecastTrainer>> Create(const ForecastTrainerOptions& options,
                                                           std::vector<std::vector<float>> initial, ThreadPool* pool);

  // One update over a batch of sequences. On an error nothing was updated.
  StatusOr<ForecastStep> Step(LayerSource& source, std::span<const std::span<const int32_t>> batch);
  // Loss and recall without training, over the rows that have a choice (at most rows_per_sequence of each sequence,
  // always the same).
  StatusOr<ForecastPass> Evaluate(LayerSource& source, std::span<const std::span<const int32_t>> sequences);

  int64_t steps_done() const { return steps_; }
  std::vector<std::vector<float>> Projections() const;

  // Weights, moments and the number of steps as a safetensors file: a run that goes on from it makes the same bits as
  // one that never stopped. `settings` is kept and compared word for word: everything that decides what is computed.
  Status SaveState(const std::string& path, const std::string& settings) const;
  Status LoadState(const std::string& path, const std::string& settings);

 private:
  ForecastTrainer(const ForecastTrainerOptions& options, std::vector<std::vector<float>> initial, ThreadPool* pool);

  // One sequence: adds to the totals and, where gradients is not null, to the gradients (of the mean over the rows).
  Status RunSequence(LayerSource& source, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                     double weight, std::vector<std::vector<float>>* gradients, ForecastPass* pass);
  void RunLayer(const LayerActivations& layer, std::span<const int32_t> positions, double weight,
                std::vector<float>* gradient, ForecastTotals* totals);
  void Project(const std::vector<float>& weight, int64_t rows);
  void AddWeightGradient(int64_t rows, double weight, std::vector<float>* gradient);
  // Turns `heads` heads of each row to its position (or back), in place.
  void Rotate(std::span<const int32_t> positions, int heads, bool back, float* x) const;
  void FillRopeTable(int64_t length);
  int64_t FirstChoice() const;  // the first position whose row has more blocks than a list
  int64_t width() const { return o_.task.forecast_width(); }

  ForecastTrainerOptions o_;
  ThreadPool* pool_;
  const ForecastKernels& kernels_;
  ForecastLoss loss_;
  std::vector<AdamWTensor> tensors_;  // [layers]
  int64_t steps_ = 0;
  int64_t sequences_ = 0;  // seen in training
  // Of the sequence at hand.
  std::vector<float> cos_, sin_;         // [length, half]
  std::vector<float> input_, next_;      // [rows, hidden]: of the layer before, of this one
  std::vector<float> queries_, keys_;    // [rows, Hq * D], [length, Hkv * D]
  std::vector<float> forecast_, slope_;  // [rows, width]
  std::vector<float> turned_;            // [width, rows]
  Panels panels_;
};

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_TRAINER_H_
