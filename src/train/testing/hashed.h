// Hashed tensors: the same numbers here, in other languages and on every machine.
#ifndef FARSIGHT_TRAIN_TESTING_HASHED_H_
#define FARSIGHT_TRAIN_TESTING_HASHED_H_

#include <cstdint>
#include <vector>

namespace farsight::testing {

// In [-0.5, 0.5): element i of stream s.
inline double Hash01(uint32_t i, uint32_t s) {
  uint32_t x = i * 2654435761u + s * 40503u + 12345u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x / 4294967296.0 - 0.5;
}

inline std::vector<double> Hashed(int64_t n, uint32_t s, double scale) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(scale * Hash01(static_cast<uint32_t>(i), s));
  return out;
}

inline std::vector<float> Floats(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace farsight::testing

#endif  // FARSIGHT_TRAIN_TESTING_HASHED_H_
