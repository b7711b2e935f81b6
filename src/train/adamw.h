// AdamW with decoupled weight decay, clipping by the norm of all gradients, and the learning rate's course.
#ifndef FARSIGHT_TRAIN_ADAMW_H_
#define FARSIGHT_TRAIN_ADAMW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "farsight/status.h"

namespace farsight {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-6;
  double weight_decay = 0.01;  // times the learning rate, each step
  double clip = 0.5;           // largest norm of all gradients together; 0: no limit
};

// One tensor and its running moments.
struct AdamWTensor {
  std::vector<float> weight, mean, square;

  explicit AdamWTensor(std::vector<float> w) : weight(std::move(w)), mean(weight.size()), square(weight.size()) {}
};

// The factor that brings the gradients' common norm down to the limit, 1 where it is below; `norm` receives the norm.
double ClipFactor(std::span<const std::vector<float>> gradients, double limit, double* norm);

// One update; `step` counts from 1. gradient is scaled by `factor` first.
void AdamWStep(const AdamWOptions& options, double learning_rate, int64_t step, std::span<const float> gradient,
               double factor, AdamWTensor* tensor);

// Rises linearly over `warmup` steps to `peak`, then falls along a half cosine to final_share * peak at the last of
// `total` steps. final_share 1 keeps it constant. `step` counts from 1.
struct LearningRate {
  double peak = 0;
  int64_t warmup = 0;
  int64_t total = 1;
  double final_share = 1;

  double At(int64_t step) const;
};

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_ADAMW_H_
