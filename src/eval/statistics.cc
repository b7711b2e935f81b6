#include "eval/statistics.h"

#include <algorithm>
#include <cmath>

namespace farsight::eval {

Interval Wilson(int64_t hits, int64_t n) {
  if (n <= 0) return {};
  const double z = 1.96;
  const auto count = static_cast<double>(n);
  const double p = static_cast<double>(hits) / count;
  const double scale = 1 / (1 + z * z / count);
  const double centre = (p + z * z / (2 * count)) * scale;
  const double half = z * scale * std::sqrt(p * (1 - p) / count + z * z / (4 * count * count));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

double LogSum(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return top + std::log(sum);
}

double Divergence(std::span<const float> a, std::span<const float> b) {
  const double la = LogSum(a);
  const double lb = LogSum(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double pa = a[i] - la;
    kl += std::exp(pa) * (pa - (b[i] - lb));
  }
  return kl;
}

double Mean::error() const {
  if (n_ < 2) return 0;
  const auto n = static_cast<double>(n_);
  return std::sqrt(std::max(0.0, squares_ / n - mean() * mean()) / n);
}

}  // namespace farsight::eval
