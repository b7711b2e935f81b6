#include "train/adamw.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace farsight {

double ClipFactor(std::span<const std::vector<float>> gradients, double limit, double* norm) {
  double sum = 0;
  for (const auto& g : gradients) {
    for (const float v : g) sum += static_cast<double>(v) * v;
  }
  *norm = std::sqrt(sum);
  return limit > 0 && *norm > limit ? limit / *norm : 1.0;
}

void AdamWStep(const AdamWOptions& o, double learning_rate, int64_t step, std::span<const float> gradient,
               double factor, AdamWTensor* t) {
  FS_CHECK(gradient.size() == t->weight.size(), "a gradient has the shape of its tensor");
  const double mean_bias = 1 - std::pow(o.beta1, static_cast<double>(step));
  const double square_bias = 1 - std::pow(o.beta2, static_cast<double>(step));
  const double keep = 1 - learning_rate * o.weight_decay;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = factor * gradient[i];
    const double mean = o.beta1 * t->mean[i] + (1 - o.beta1) * g;
    const double square = o.beta2 * t->square[i] + (1 - o.beta2) * g * g;
    const double change = learning_rate * (mean / mean_bias) / (std::sqrt(square / square_bias) + o.epsilon);
    t->mean[i] = static_cast<float>(mean);
    t->square[i] = static_cast<float>(square);
    t->weight[i] = static_cast<float>(keep * t->weight[i] - change);
  }
}

double LearningRate::At(int64_t step) const {
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (total <= warmup + 1) return peak;
  constexpr double kPi = 3.14159265358979323846;
  const double done = std::min(1.0, static_cast<double>(step - warmup - 1) / static_cast<double>(total - warmup - 1));
  return peak * (final_share + (1 - final_share) * 0.5 * (1 + std::cos(kPi * done)));
}

}  // namespace farsight
