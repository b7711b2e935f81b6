// Pearson's test of counts against a law.
#ifndef FARSIGHT_SPEC_TESTING_CHI_SQUARE_H_
#define FARSIGHT_SPEC_TESTING_CHI_SQUARE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace farsight::testing {

// The regularised upper incomplete gamma function Q(a, x): its series below the bend, its continued fraction above.
inline double UpperGamma(double a, double x) {
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-16; ++n) sum += term *= x / n;
    return 1 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return front * h;
}

// The probability of counts at least this far from `law` under it. Cells that expect fewer than 8 are pooled; a count
// where the law has no chance gives 0.
inline double ChiSquareP(std::span<const int64_t> counts, std::span<const double> law) {
  double total = 0;
  for (int64_t n : counts) total += static_cast<double>(n);
  double statistic = 0, pooled_count = 0, pooled_expected = 0;
  int cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    const double expected = total * law[i];
    if (law[i] <= 0 && counts[i] > 0) return 0;
    if (expected < 8) {
      pooled_count += count;
      pooled_expected += expected;
    } else {
      add(count, expected);
    }
  }
  if (pooled_expected >= 1) add(pooled_count, pooled_expected);
  return cells < 2 ? 1 : UpperGamma((cells - 1) / 2.0, statistic / 2);
}

}  // namespace farsight::testing

#endif  // FARSIGHT_SPEC_TESTING_CHI_SQUARE_H_
