// The kernels between scores and blocks against a sort, over every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/isa.h"

namespace farsight {
namespace {

constexpr float kLeast = std::numeric_limits<float>::lowest();

std::vector<const AttentionKernels*> Tables() {
  std::vector<const AttentionKernels*> out = {&ScalarAttentionKernels()};
#if defined(__x86_64__)
  if (IsaAvailable(Isa::kAvx2)) out.push_back(&Avx2AttentionKernels());
  if (IsaAvailable(Isa::kAvx512)) out.push_back(&Avx512AttentionKernels());
#endif
  return out;
}

std::vector<int32_t> Sorted(const std::vector<float>& x, int want) {
  std::vector<int32_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  ids.resize(std::min(x.size(), static_cast<size_t>(want)));
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(SelectKernels, TakesTheBestAndOfEqualOnesTheFirst) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 400; ++round) {
    const auto n = static_cast<size_t>(1 + rng() % 200);
    const int want = static_cast<int>(rng() % 40);
    std::vector<float> x(n);
    for (float& v : x) {
      switch (round % 4) {
        case 0:
          v = normal(rng);
          break;
        case 1:
          v = static_cast<float>(rng() % 5) - 2;  // many are equal
          break;
        case 2:
          v = rng() % 2 == 0 ? 0.0f : -0.0f;
          break;
        default:
          v = rng() % 3 == 0 ? kLeast : rng() % 3 == 0 ? std::numeric_limits<float>::infinity() : normal(rng) * 1e-40f;
      }
    }
    for (const AttentionKernels* k : Tables()) {
      std::vector<int32_t> ids(static_cast<size_t>(want) + 1, -7);
      ids.resize(static_cast<size_t>(k->take_best(x.data(), static_cast<int>(n), want, kLeast, ids.data())));
      EXPECT_EQ(ids, Sorted(x, want)) << "round " << round << ", " << n << " numbers";
    }
  }
}

TEST(SelectKernels, BlockMaxima) {
  std::mt19937 rng(4);
  for (const auto& [per_block, skip] : {std::pair{4, 1}, {4, 0}, {2, 3}, {1, 0}, {8, 1}}) {
    for (int windows = 0; windows < 90; ++windows) {
      std::vector<float> z(static_cast<size_t>(windows));
      for (float& v : z) v = static_cast<float>(rng() % 1000) - 500;
      const int blocks = windows / per_block + 2;
      std::vector<float> want(static_cast<size_t>(blocks), -400);
      for (int b = 0; b < blocks; ++b) {
        for (int w = std::max(0, per_block * b - skip); w < std::min(per_block * (b + 1), windows); ++w) {
          want[static_cast<size_t>(b)] = std::max(want[static_cast<size_t>(b)], z[static_cast<size_t>(w)]);
        }
      }
      for (const AttentionKernels* k : Tables()) {
        std::vector<float> got(static_cast<size_t>(blocks));
        k->block_max(z.data(), windows, per_block, skip, blocks, -400, got.data());
        EXPECT_EQ(got, want) << windows << " windows, " << per_block << " a block";
      }
    }
  }
}

}  // namespace
}  // namespace farsight
