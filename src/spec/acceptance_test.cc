#include "spec/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TokenTree Fork() {
  TokenTree t;
  t.Add(-1, 0);
  t.Add(0, 1);
  t.Add(0, 2);
  t.Add(2, 3);
  return t;
}

TEST(Outcome, IsReadOffThePath) {
  const TreeShape shape{{2, 2, 2}, 7};
  EXPECT_THAT(OutcomeOf(Fork(), {{0, 2, 3}, {2, 3, 9}}, shape, 7),
              ElementsAre(LevelOutcome{2, 1}, LevelOutcome{1, 0}, LevelOutcome{0, -1}));
  EXPECT_THAT(OutcomeOf(Fork(), {{0}, {9}}, shape, 7), ElementsAre(LevelOutcome{2, -1}));
  EXPECT_THAT(OutcomeOf(Fork(), {{0, 1}, {1, 9}}, shape, 7), ElementsAre(LevelOutcome{2, 0}, LevelOutcome{0, -1}));
  // Where the budget or the shape ended the draft, its end says nothing.
  EXPECT_THAT(OutcomeOf(Fork(), {{0, 1}, {1, 9}}, shape, 3), ElementsAre(LevelOutcome{2, 0}));
  EXPECT_THAT(OutcomeOf(Fork(), {{0, 2, 3}, {2, 3, 9}}, {{2, 2}, 7}, 7),
              ElementsAre(LevelOutcome{2, 1}, LevelOutcome{1, 0}));
  EXPECT_THAT(OutcomeOf(MakeChain(0, {}), {{0}, {9}}, shape, 7), ElementsAre(LevelOutcome{0, -1}));
  EXPECT_THAT(OutcomeOf(MakeChain(0, {}), {{0}, {9}}, shape, 0), IsEmpty());
}

TEST(Outcome, OfAShadowIsReadOffTheText) {
  const TreeShape shape{{2, 2, 2}, 7};
  EXPECT_THAT(ShadowOutcomeOf(Fork(), std::vector<int32_t>{2, 3, 9}, shape, 7),
              ElementsAre(LevelOutcome{2, 1}, LevelOutcome{1, 0}, LevelOutcome{0, -1}));
  EXPECT_THAT(ShadowOutcomeOf(Fork(), std::vector<int32_t>{2}, shape, 7), ElementsAre(LevelOutcome{2, 1}));
  EXPECT_THAT(ShadowOutcomeOf(Fork(), std::vector<int32_t>{7, 1}, shape, 7), ElementsAre(LevelOutcome{2, -1}));
  EXPECT_THAT(ShadowOutcomeOf(Fork(), {}, shape, 7), IsEmpty());
}

TEST(BestNodes, AreTheMostValuable) {
  const auto rate = [](int, int rank) { return rank == 0 ? 0.6 : 0.3; };
  const auto nodes = BestNodes({{2, 2, 2}, 4}, rate);
  std::vector<double> values;
  for (const ShapeNode& n : nodes) values.push_back(n.value);
  ASSERT_EQ(values.size(), 4u);
  EXPECT_NEAR(values[0], 0.6, 1e-12);
  EXPECT_NEAR(values[1], 0.36, 1e-12);
  EXPECT_NEAR(values[2], 0.3, 1e-12);
  EXPECT_NEAR(values[3], 0.216, 1e-12);
  EXPECT_EQ(nodes[3].parent, 1);
  EXPECT_EQ(BestNodes(ChainShape(3), rate).size(), 3u);
  EXPECT_EQ(BestNodes({}, rate).size(), 0u);
}

std::vector<LevelOutcome> Draw(std::mt19937& rng, double rate, int depth) {
  std::vector<LevelOutcome> levels;
  for (int i = 0; i < depth; ++i) {
    levels.push_back({1, std::uniform_real_distribution<double>(0, 1)(rng) < rate ? 0 : -1});
    if (levels.back().hit < 0) break;
  }
  return levels;
}

TEST(AcceptanceModel, LearnsTheRateOfAChain) {
  for (double rate : {0.0, 0.3, 0.7, 0.95}) {
    std::mt19937 rng(1);
    AcceptanceModel model(DrafterKind::kModel, nullptr);
    double sum = 0;
    for (int i = 0; i < 1000; ++i) {
      model.Observe(Draw(rng, rate, 7));
      if (i >= 200) sum += model.Forecast(ChainShape(7)).tokens;
    }
    const double expected = (1 - std::pow(rate, 8)) / (1 - rate);
    EXPECT_NEAR(sum / 800, expected, 0.08 * expected + 0.05) << rate;
  }
}

TEST(AcceptanceModel, NoticesChangesSoonAndFewFalseOnes) {
  for (auto [before, after] : {std::pair(0.9, 0.3), std::pair(0.3, 0.9), std::pair(0.7, 0.0)}) {
    int slowest = 0, alarms = 0;
    for (uint32_t seed = 0; seed < 50; ++seed) {
      std::mt19937 rng(seed);
      AcceptanceModel model(DrafterKind::kModel, nullptr);
      for (int i = 0; i < 300; ++i) {
        const bool alarm = model.Observe(Draw(rng, before, 7));
        if (i >= 100) alarms += alarm ? 1 : 0;
      }
      int delay = 0;
      while (delay < 100 && std::abs(model.Rate(0, 0) - after) > 0.2) {
        model.Observe(Draw(rng, after, 7));
        ++delay;
      }
      slowest = std::max(slowest, delay);
    }
    EXPECT_LE(slowest, 64) << before << " to " << after;
    EXPECT_LE(alarms, 100) << before;  // of 10,000 steps
  }
}

TEST(AcceptanceModel, StartsFromItsPrior) {
  AcceptancePrior prior;
  prior.available_first = 0.25;
  prior.available_later = 1;
  prior.rates = {{0.8, 0.1}, {0.5}};
  const AcceptanceModel model(DrafterKind::kNgram, &prior);
  EXPECT_NEAR(model.Rate(0, 0), 0.8, 1e-12);
  EXPECT_NEAR(model.Rate(0, 1), 0.1, 1e-12);
  EXPECT_NEAR(model.Rate(0, 2), 0.05, 1e-12);
  EXPECT_NEAR(model.Rate(9, 0), 0.5, 1e-12);
  const DraftForecast f = model.Forecast(ChainShape(2));
  EXPECT_NEAR(f.tokens, 1 + 0.25 * (0.8 + 0.4), 1e-12);
  EXPECT_NEAR(f.nodes, 2, 1e-12);
  EXPECT_NEAR(f.offered, 0.25, 1e-12);
}

TEST(AcceptanceModel, LearnsWhatIsOffered) {
  AcceptanceModel model(DrafterKind::kNgram, nullptr);
  for (int i = 0; i < 400; ++i) {
    model.Observe(i % 4 == 0 ? std::vector<LevelOutcome>{{1, 0}, {0, -1}} : std::vector<LevelOutcome>{{0, -1}});
  }
  EXPECT_NEAR(model.AvailableFirst(), 0.25, 0.05);
  EXPECT_LT(model.AvailableLater(), 0.3);
  EXPECT_NEAR(model.Forecast(ChainShape(7)).tokens, 1.25, 0.12);
}

}  // namespace
}  // namespace farsight
