// The Forecast's loss and gradient over many rows of a sequence, in f32 on all threads; forecast_reference.h defines
// them. Results do not depend on the number of threads, nor a row's on the rows beside it.
#ifndef FARSIGHT_TRAIN_FORECAST_LOSS_H_
#define FARSIGHT_TRAIN_FORECAST_LOSS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "train/forecast_kernels.h"
#include "train/forecast_task.h"

namespace farsight {

// What was seen of one layer; sums over (row, KV head) pairs, so that they add up over sequences.
struct ForecastTotals {
  double loss = 0;  // nats
  int64_t pairs = 0;
  int64_t wanted = 0;     // blocks the teacher chose freely
  int64_t found = 0;      // of them, chosen by the Forecast too
  double by_chance = 0;   // of them, expected of a choice at random
  double mass = 0;        // the teacher's, of the blocks it chose freely
  double mass_found = 0;  // of those that the Forecast chose

  double MeanLoss() const { return pairs > 0 ? loss / static_cast<double>(pairs) : 0; }
  double Recall() const { return wanted > 0 ? static_cast<double>(found) / static_cast<double>(wanted) : 1; }
  double ChanceRecall() const { return wanted > 0 ? by_chance / static_cast<double>(wanted) : 1; }
  // What the Forecast's choice keeps of the teacher's mass, of the most that as many blocks could.
  double MassRecall() const { return mass > 0 ? mass_found / mass : 1; }
  void Add(const ForecastTotals& o);
};

class ForecastLoss {
 public:
  // `pool` outlives this.
  ForecastLoss(const ForecastTask& task, ThreadPool* pool, const ForecastKernels& kernels = BestForecastKernels());

  // The target layer's keys of one sequence [length, Hkv * D], rows k_stride apart, in the space the layer selects in
  // (turned by RoPE, or not where the model selects without it). They are copied.
  void SetKeys(const float* k, int64_t k_stride, int64_t length);

  // For rows at ascending positions inside the sequence: the target layer's queries [rows, Hq * D] (in the same space)
  // and the Forecast [rows, Hkv * queries * D]. gradient, where not null, receives the derivative of the SUM of the
  // rows' and heads' losses by every entry of the Forecast. Memory: O(threads * 16 * teacher keys), nothing that grows
  // with rows * units.
  ForecastTotals Run(std::span<const int32_t> positions, const float* queries, const float* forecast, float* gradient);

 private:
  struct Scratch {
    std::vector<float> query, teacher, z, student, mixed;
    std::vector<double> teacher_blocks, student_blocks;
  };
  struct PairResult {
    double loss = 0, by_chance = 0, mass = 0, mass_found = 0;
    int32_t wanted = 0, found = 0;
  };
  struct Tile {
    std::span<const int32_t> positions;
    int head = 0;
    const float* queries = nullptr;   // of the tile's first row, all heads
    const float* forecast = nullptr;  // of the tile's first row and its head
    float* gradient = nullptr;
    PairResult* results = nullptr;  // stride kv_heads
  };

  void SetSketches(int head, const float* k, int64_t k_stride);
  void SetPooled(int head, const float* k, int64_t k_stride);
  void RunTile(const Tile& tile, Scratch* s) const;
  void TeacherOfTile(const Tile& tile, Scratch* s) const;
  // One row: lists, loss, and the slope of the loss by the logits `student` [width] of each query, `stride` apart,
  // which the slopes replace.
  PairResult Row(int64_t position, std::span<const float> teacher, float* student, int64_t stride, int64_t width,
                 Scratch* s) const;

  const ForecastTask task_;
  ThreadPool* pool_;
  const ForecastKernels& kernels_;
  int64_t length_ = 0, units_ = 0, teacher_keys_ = 0;
  std::vector<Panels> unit_panels_;     // [Hkv] of [D, units]: for scores
  std::vector<Panels> unit_columns_;    // [Hkv] of [units, D]: for the gradient
  std::vector<Panels> teacher_panels_;  // [Hkv] of [D, teacher keys]; empty where the teacher uses the units
  std::vector<Scratch> scratch_;        // [threads]
  std::vector<PairResult> results_;
};

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_LOSS_H_
