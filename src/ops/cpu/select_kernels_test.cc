// The kernels between scores and blocks against a sort, over every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
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
    const auto n = static_cast<size_t>(1 + rng() % (round % 3 == 0 ? 2000 : 200));
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

// What is no number counts as the least; the block before the first sixteen is only ever raised.
TEST(SelectKernels, TopsOfSixteenBlocks) {
  std::mt19937 rng(5);
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [per_block, skip] : {std::pair{4, 1}, {4, 0}, {4, 4}, {1, 1}, {8, 3}}) {
    for (const int rows : {1, 3, 97}) {
      std::vector<std::vector<float>> z(static_cast<size_t>(rows));
      std::vector<const float*> at;
      for (auto& row : z) {
        for (int i = 0; i < 16 * per_block; ++i) {
          row.push_back(rng() % 9 == 0 ? kNone : static_cast<float>(rng() % 1000) - 500);
        }
        at.push_back(row.data());
      }
      constexpr int kStride = 40;
      std::vector<float> before(static_cast<size_t>(rows * kStride));
      for (float& x : before) x = static_cast<float>(rng() % 1000) - 500;
      std::vector<float> want = before;
      for (int r = 0; r < rows; ++r) {
        float* out = want.data() + r * kStride + 8;
        for (int b = 0; b < 16; ++b) {
          out[b] = -400;
          for (int e = 0; e < per_block; ++e) {
            const float x = at[static_cast<size_t>(r)][16 * e + b];
            if (x > out[b]) out[b] = x;
            if (e < skip && x > out[b - 1]) out[b - 1] = x;
          }
        }
      }
      for (const AttentionKernels* k : Tables()) {
        std::vector<float> got = before;
        k->block_tops(at.data(), rows, per_block, skip, -400, got.data() + 8, kStride);
        EXPECT_EQ(got, want) << per_block << " a block, " << skip << " of them the block before's";
      }
    }
  }
}

TEST(SelectKernels, RowsTurn) {
  for (const int d : {1, 4, 10, 64, 81}) {
    std::vector<float> x(static_cast<size_t>(16 * d + 3));
    std::iota(x.begin(), x.end(), 1.0f);
    const float* rows[16];
    for (int r = 0; r < 16; ++r) rows[r] = x.data() + (15 - r) * d;
    for (const AttentionKernels* k : Tables()) {
      std::vector<float> got(static_cast<size_t>(16 * d));
      k->turn(rows, 3, d, got.data());
      for (int i = 0; i < 16 * d; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], rows[i % 16][3 + i / 16]) << d;
    }
  }
}

}  // namespace
}  // namespace farsight
