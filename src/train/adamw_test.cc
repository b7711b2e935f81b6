#include "train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/testing/golden.h"

namespace farsight {
namespace {

using testing::Floats;
using testing::Hashed;

TEST(AdamW, StepsAsThePublishedOptimiser) {
  const Json golden = testing::GoldenFile()["adamw"];
  AdamWTensor tensors[] = {AdamWTensor(Floats(Hashed(5, 31, 2))), AdamWTensor(Floats(Hashed(3, 32, 2)))};
  const AdamWOptions options;
  for (int step = 0; step < 4; ++step) {
    std::vector<std::vector<float>> gradients;
    for (int i = 0; i < 2; ++i) {
      gradients.push_back(Floats(Hashed(i == 0 ? 5 : 3, static_cast<uint32_t>(40 + 2 * step + i), 0.2 + step)));
    }
    double norm = 0;
    const double factor = ClipFactor(gradients, options.clip, &norm);
    EXPECT_NEAR(norm, golden["norms"][static_cast<size_t>(step)].get<double>(), 1e-6);
    EXPECT_EQ(factor<1, norm> 0.5);
    for (size_t i = 0; i < 2; ++i) AdamWStep(options, 0.1, step + 1, gradients[i], factor, &tensors[i]);
  }
  for (size_t i = 0; i < 2; ++i) {
    const auto want = golden["weights"][i].get<std::vector<double>>();
    ASSERT_EQ(want.size(), tensors[i].weight.size());
    for (size_t j = 0; j < want.size(); ++j) EXPECT_NEAR(tensors[i].weight[j], want[j], 2e-6);
  }
}

TEST(AdamW, NoLimitNoClipping) {
  const std::vector<std::vector<float>> gradients = {{3, 0}, {4}};
  double norm = 0;
  EXPECT_EQ(ClipFactor(gradients, 0, &norm), 1);
  EXPECT_DOUBLE_EQ(norm, 5);
  EXPECT_DOUBLE_EQ(ClipFactor(gradients, 0.5, &norm), 0.1);
}

TEST(LearningRate, RisesThenFalls) {
  const LearningRate constant{.peak = 2, .warmup = 0, .total = 10, .final_share = 1};
  for (int64_t s = 1; s <= 10; ++s) EXPECT_DOUBLE_EQ(constant.At(s), 2);
  const LearningRate course{.peak = 2, .warmup = 4, .total = 15, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(course.At(1), 0.5);
  EXPECT_DOUBLE_EQ(course.At(4), 2);
  EXPECT_DOUBLE_EQ(course.At(5), 2);
  EXPECT_DOUBLE_EQ(course.At(10), 1.1);
  EXPECT_DOUBLE_EQ(course.At(15), 0.2);
  for (int64_t s = 5; s < 15; ++s) EXPECT_GT(course.At(s), course.At(s + 1));
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 3, .warmup = 0, .total = 1, .final_share = 0}.At(1)), 3);
}

}  // namespace
}  // namespace farsight
