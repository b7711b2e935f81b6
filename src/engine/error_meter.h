// How far an approximate step is from the exact one over the same rows.
#ifndef FARSIGHT_ENGINE_ERROR_METER_H_
#define FARSIGHT_ENGINE_ERROR_METER_H_

#include <cstdint>
#include <vector>

#include "attention/attention_plan.h"
#include "farsight/engine.h"
#include "model/runner.h"

namespace farsight {

// Fed with pairs of steps that had logits of every row, lists, and in the exact step scores. The error of a list is the
// most that another choice of blocks can move the weights of a row, by the scores at hand:
// 1 - M(own and used) / max(M(own), M(used)) with M the scores' sum over blocks, forced ones left out.
class ErrorMeter {
 public:
  // Keeps what the exact step said: its spans are gone with the next step.
  void Exact(const Batch& batch, const StepResult& result, const AttentionPlan& plan);
  void Approximate(const StepResult& result);

  ApproximationError error() const;
  double kl_p99() const { return Quantile(kl_, 0.99); }

 private:
  struct Pair {  // one row, layer and KV head
    int own_block = 0;
    std::vector<int32_t> ids;
    std::vector<float> scores;  // [blocks up to the row's own]; empty: the row attends to everything
  };
  static double Quantile(std::vector<double> values, double share);
  static double Mass(std::span<const int32_t> ids, const Pair& pair, const AttentionPlan& plan);

  AttentionPlan plan_;
  size_t rows_ = 0;
  std::vector<float> logits_;
  std::vector<std::vector<Pair>> layers_;
  int64_t flips_ = 0;
  std::vector<double> kl_;            // of every row
  std::vector<double> substitution_;  // of every list that could differ
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_ERROR_METER_H_
