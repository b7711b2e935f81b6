// Draws that depend on a seed and nothing else: the same material on every machine and with every compiler.
#ifndef FARSIGHT_EVAL_RANDOM_H_
#define FARSIGHT_EVAL_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace farsight::eval {

// SplitMix64: one addition and a few shifts a draw, and every seed is as good as another.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // A stream of its own for each list of numbers (seed, length, depth, sample ...).
  explicit Random(std::initializer_list<uint64_t> parts) {
    for (const uint64_t part : parts) state_ = Random(state_ ^ part).Next();
  }

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n), n > 0. The bias of the remainder is below n / 2^64.
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }
  double Share() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // in [0, 1)

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[Below(i)]);
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_RANDOM_H_
