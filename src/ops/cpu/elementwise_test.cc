// Element-wise ops of every instruction set against the double-precision reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (IsaAvailable(isa)) out.push_back(isa);
  }
  return out;
}

std::vector<float> Gaussian(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

class Elementwise : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    auto made = CpuBackend::Create(2, GetParam());
    ASSERT_TRUE(made.ok());
    cpu_ = std::move(*made);
  }
  std::unique_ptr<CpuBackend> cpu_;
  RefBackend ref_;
};

TEST_P(Elementwise, RmsNormWithGroupsStridesAndTails) {
  for (const int dim : {1, 5, 64, 75, 576}) {
    for (const int groups : {1, 3}) {
      for (const int rows : {1, 3, 40}) {
        const int64_t width = static_cast<int64_t>(dim) * groups;
        const std::vector<float> in = Gaussian(static_cast<size_t>(rows * (width + 2)), 1);
        const std::vector<float> weight = Gaussian(static_cast<size_t>(dim), 2);
        std::vector<float> got(static_cast<size_t>(rows * (width + 1)), 5.0f);
        std::vector<float> want = got;
        RmsNormParams p{in.data(), got.data(), weight.data(), width + 2, width + 1, rows, groups, dim, 1e-5f};
        cpu_->RmsNorm(p);
        p.out = want.data();
        ref_.RmsNorm(p);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i]) + 1e-12) << dim << " " << groups << " " << rows;
        }
      }
    }
  }
}

TEST_P(Elementwise, RmsNormInPlaceGivesTheSame) {
  std::vector<float> x = Gaussian(3 * 75, 1);
  const std::vector<float> weight = Gaussian(75, 2);
  std::vector<float> out(x.size());
  RmsNormParams p{x.data(), out.data(), weight.data(), 75, 75, 3, 1, 75, 1e-6f};
  cpu_->RmsNorm(p);
  p.out = x.data();
  cpu_->RmsNorm(p);
  EXPECT_EQ(x, out);
}

TEST_P(Elementwise, RopeAndItsTable) {
  for (const int half : {3, 8, 32, 37}) {
    for (const int rows : {1, 5, 130}) {
      constexpr int kHeads = 3;
      const int head_dim = 2 * half + 2;  // the last channels are not rotated
      const int64_t stride = kHeads * head_dim + 1;
      std::vector<int32_t> positions;
      for (int t = 0; t < rows; ++t) positions.push_back(t * 1009);
      std::vector<double> inv_freq;
      for (int i = 0; i < half; ++i) inv_freq.push_back(std::pow(1e5, -i / static_cast<double>(half)));
      const size_t n = static_cast<size_t>(rows * half);
      std::vector<float> cos(n), sin(n), ref_cos(n), ref_sin(n);
      cpu_->RopeTable({positions.data(), inv_freq.data(), cos.data(), sin.data(), rows, half, 1.2});
      ref_.RopeTable({positions.data(), inv_freq.data(), ref_cos.data(), ref_sin.data(), rows, half, 1.2});
      ASSERT_EQ(cos, ref_cos);
      ASSERT_EQ(sin, ref_sin);
      std::vector<float> got = Gaussian(static_cast<size_t>(rows * stride), 6);
      std::vector<float> want = got;
      cpu_->Rope({got.data(), cos.data(), sin.data(), stride, rows, kHeads, head_dim, half});
      ref_.Rope({want.data(), cos.data(), sin.data(), stride, rows, kHeads, head_dim, half});
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << half << " " << rows << " " << i;
    }
  }
}

TEST_P(Elementwise, SwiGluOverTheWholeRange) {
  for (const int ffn : {1, 7, 64, 333, 1536}) {
    for (const int rows : {1, 2, 33}) {
      std::vector<float> in = Gaussian(static_cast<size_t>(rows * 2 * ffn), 3);
      for (size_t i = 0; i < in.size(); i += 3) in[i] *= 30;
      std::vector<float> got(static_cast<size_t>(rows * ffn));
      std::vector<float> want = got;
      cpu_->SwiGlu({in.data(), got.data(), rows, ffn});
      ref_.SwiGlu({in.data(), want.data(), rows, ffn});
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 4e-7 * std::abs(want[i]) + 1e-30) << "gate " << in[i] << " index " << i;
      }
    }
  }
}

TEST_P(Elementwise, SwiGluAtTheEdges) {
  const std::vector<float> gates = {0.0f, -0.0f, 1e-30f, -1e-30f, 86.0f, -86.0f, 1e30f, -1e4f, INFINITY};
  const int n = static_cast<int>(gates.size());
  std::vector<float> in = gates;
  in.resize(gates.size() * 2, 1.0f);
  std::vector<float> got(gates.size());
  cpu_->SwiGlu({in.data(), got.data(), 1, n});
  for (size_t i = 0; i < gates.size(); ++i) {
    const double g = gates[i];
    const double want = g / (1.0 + std::exp(-g));
    if (std::isinf(want)) {
      EXPECT_EQ(got[i], INFINITY);
    } else {
      EXPECT_NEAR(got[i], want, 4e-7 * std::abs(want) + 1e-30) << g;
    }
  }
  in[3] = std::nanf("");
  cpu_->SwiGlu({in.data(), got.data(), 1, n});
  EXPECT_TRUE(std::isnan(got[3]));
  EXPECT_FALSE(std::isnan(got[2]));
}

TEST_P(Elementwise, ARowDoesNotDependOnItsNeighbours) {
  constexpr int kRows = 70;
  constexpr int kFfn = 391;
  const std::vector<float> in = Gaussian(kRows * 2 * kFfn, 12);
  const std::vector<float> weight = Gaussian(2 * kFfn, 13);
  std::vector<float> swiglu(kRows * kFfn), norm(kRows * 2 * kFfn), one(2 * kFfn);
  cpu_->SwiGlu({in.data(), swiglu.data(), kRows, kFfn});
  cpu_->RmsNorm({in.data(), norm.data(), weight.data(), 2 * kFfn, 2 * kFfn, kRows, 1, 2 * kFfn, 1e-5f});
  for (const int t : {0, 33, 69}) {
    cpu_->SwiGlu({in.data() + t * 2 * kFfn, one.data(), 1, kFfn});
    EXPECT_EQ(0, std::memcmp(one.data(), swiglu.data() + t * kFfn, kFfn * sizeof(float)));
    cpu_->RmsNorm({in.data() + t * 2 * kFfn, one.data(), weight.data(), 0, 0, 1, 1, 2 * kFfn, 1e-5f});
    EXPECT_EQ(0, std::memcmp(one.data(), norm.data() + t * 2 * kFfn, 2 * kFfn * sizeof(float)));
  }
}

std::string NameOf(const ::testing::TestParamInfo<Isa>& info) { return IsaName(info.param); }
INSTANTIATE_TEST_SUITE_P(All, Elementwise, ::testing::ValuesIn(AvailableIsas()), NameOf);

}  // namespace
}  // namespace farsight
