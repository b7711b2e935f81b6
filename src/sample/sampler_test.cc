#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const double kNanD = std::numeric_limits<double>::quiet_NaN();
const double kInfD = std::numeric_limits<double>::infinity();

std::vector<float> RandomLogits(uint32_t seed, size_t n, double scale) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(normal(rng));
  return logits;
}

// The whole chain in double precision with a full sort, in the words of the header.
std::map<int32_t, double> Oracle(const std::vector<float>& logits, const SamplingParams& p,
                                 std::vector<int32_t> history) {
  std::vector<double> l(logits.begin(), logits.end());
  if (p.penalty_window >= 0 && history.size() > static_cast<size_t>(p.penalty_window)) {
    history.erase(history.begin(), history.end() - static_cast<std::ptrdiff_t>(p.penalty_window));
  }
  std::map<int32_t, int> counts;
  for (int32_t t : history) ++counts[t];
  for (auto [t, n] : counts) {
    double& v = l[static_cast<size_t>(t)];
    v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
    v -= n * p.frequency_penalty + p.presence_penalty;
  }
  for (auto [t, b] : p.logit_bias) l[static_cast<size_t>(t)] += static_cast<double>(b);
  std::vector<int32_t> ids(l.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)]; });
  std::erase_if(ids, [&](int32_t t) { return std::isinf(l[static_cast<size_t>(t)]); });
  const double max = l[static_cast<size_t>(ids[0])];
  const auto weight = [&](int32_t t, double temp) { return std::exp((l[static_cast<size_t>(t)] - max) / temp); };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) ids.resize(static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (int32_t t : ids) total += weight(t, 1);
    size_t keep = 0;
    while (keep < ids.size()) {
      sum += weight(ids[keep++], 1);
      if (sum >= p.top_p * total) break;
    }
    ids.resize(keep);
  }
  std::erase_if(ids, [&](int32_t t) { return weight(t, 1) < p.min_p; });
  std::map<int32_t, double> law;
  double total = 0;
  for (int32_t t : ids) total += law[t] = weight(t, p.temperature);
  for (auto& [t, w] : law) w /= total;
  return law;
}

void ExpectLaw(const std::vector<float>& logits, const SamplingParams& p, const std::vector<int32_t>& history) {
  SamplerScratch scratch;
  Distribution law;
  ASSERT_TRUE(Probabilities(logits, p, history, scratch, &law).ok());
  const auto oracle = Oracle(logits, p, history);
  ASSERT_EQ(law.ids.size(), oracle.size());
  size_t i = 0;
  for (auto [id, prob] : oracle) {
    EXPECT_EQ(law.ids[i], id);
    EXPECT_NEAR(law.probs[i], prob, 1e-6 * prob + 1e-12);
    ++i;
  }
}

// Upper tail of chi-square by the Wilson-Hilferty normal approximation.
double ChiSquareTail(double x, double dof) {
  const double z = (std::cbrt(x / dof) - (1 - 2 / (9 * dof))) / std::sqrt(2 / (9 * dof));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

TEST(PhiloxTest, KnownAnswers) {  // the published known-answer vectors of the generator
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_THAT(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(Philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(UniformTest, IsUniformAndKeyedByEveryPart) {
  std::vector<int> bins(100);
  double mean = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = Uniform({7, i, 0});
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    mean += u / 100000;
    ++bins[static_cast<size_t>(u * 100)];
  }
  double chi = 0;
  for (int n : bins) chi += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_GT(ChiSquareTail(chi, 99), 1e-4);
  EXPECT_NEAR(mean, 0.5, 0.005);
  const double u = Uniform({1, 2, 3});
  EXPECT_EQ(u, Uniform({1, 2, 3}));
  for (const DrawKey& k : {DrawKey{2, 2, 3}, DrawKey{1, 3, 3}, DrawKey{1, 2, 4}, DrawKey{1 | uint64_t{1} << 32, 2, 3},
                           DrawKey{1, 2 | uint64_t{1} << 32, 3}}) {
    EXPECT_NE(u, Uniform(k));
  }
}

TEST(SamplerTest, EverySettingAgreesWithTheOracle) {
  std::mt19937 rng(5);
  std::vector<int32_t> history(100);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t vocab = trial % 10 == 0 ? 49152 : 1 + rng() % 600;
    auto logits = RandomLogits(static_cast<uint32_t>(trial), vocab, trial % 3 == 0 ? 0.3 : 4);
    if (trial % 4 == 0) {
      for (size_t i = 1; i < vocab; i += 3) logits[i] = -kInf;
    }
    for (int32_t& t : history) t = static_cast<int32_t>(rng() % std::min<size_t>(vocab, 40));
    SamplingParams p;
    p.temperature = std::array{0.3, 1.0, 2.5}[rng() % 3];
    if (rng() % 2) p.top_k = std::array<int64_t, 4>{1, 5, 40, 1000000000}[rng() % 4];
    if (rng() % 2) p.top_p = std::array{0.0, 0.1, 0.5, 0.95}[rng() % 4];
    if (rng() % 2) p.min_p = std::array{0.01, 0.05, 0.5, 0.999}[rng() % 4];
    if (rng() % 2) p.repetition_penalty = std::array{1.1, 0.8}[rng() % 2];
    if (rng() % 2) p.presence_penalty = std::array{0.5, -0.5}[rng() % 2];
    if (rng() % 2) p.frequency_penalty = 0.2;
    p.penalty_window = std::array<int64_t, 4>{-1, 0, 10, 64}[rng() % 4];
    if (p.penalty_window == 0) p.repetition_penalty = 1;
    if (rng() % 2) p.logit_bias = {{0, 2.5F}, {static_cast<int32_t>(vocab / 2), -1.5F}};
    SCOPED_TRACE(trial);
    ExpectLaw(logits, p, history);
  }
}

TEST(SamplerTest, TruncationPrecedesTemperature) {
  // Probabilities 0.6, 0.3, 0.1: top-p 0.7 keeps two of them however hot the temperature is.
  const std::vector<float> logits = {std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  for (double t : {0.1, 1.0, 1e6}) {
    SamplerScratch scratch;
    Distribution law;
    ASSERT_TRUE(Probabilities(logits, {.temperature = t, .top_p = 0.7}, {}, scratch, &law).ok());
    EXPECT_THAT(law.ids, ElementsAre(0, 1));
  }
}

TEST(SamplerTest, TiesGoToTheLowestIds) {
  const std::vector<float> logits(1000, 1.0F);
  SamplerScratch scratch;
  Distribution law;
  ASSERT_TRUE(Probabilities(logits, {.temperature = 1, .top_k = 3}, {}, scratch, &law).ok());
  EXPECT_THAT(law.ids, ElementsAre(0, 1, 2));
  ASSERT_TRUE(Probabilities(logits, {.temperature = 1, .top_p = 0.0035}, {}, scratch, &law).ok());
  EXPECT_THAT(law.ids, ElementsAre(0, 1, 2, 3));
  ASSERT_TRUE(Probabilities(logits, {.temperature = 1, .min_p = 1}, {}, scratch, &law).ok());
  EXPECT_EQ(law.ids.size(), 1000u);
  EXPECT_EQ(Sample(logits, {}, {}, 0, scratch).value(), 0);
}

TEST(SamplerTest, ZeroTopPKeepsTheBestAlone) {
  const auto logits = RandomLogits(3, 500, 2);
  SamplerScratch scratch;
  const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (uint64_t pos = 0; pos < 20; ++pos) {
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0}, {}, pos, scratch).value(), best);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_k = 1}, {}, pos, scratch).value(), best);
  }
}

TEST(SamplerTest, SamplesFollowTheLaw) {
  const auto logits = RandomLogits(11, 300, 1.5);
  for (const SamplingParams& base :
       {SamplingParams{.temperature = 1}, SamplingParams{.temperature = 0.7, .top_k = 40, .top_p = 0.95},
        SamplingParams{.temperature = 1.5, .min_p = 0.05}}) {
    SamplingParams p = base;
    p.seed = 1234;
    const auto law = Oracle(logits, p, {});
    SamplerScratch scratch;
    constexpr int kDraws = 200000;
    std::map<int32_t, int> seen;
    for (uint64_t pos = 0; pos < kDraws; ++pos) ++seen[Sample(logits, p, {}, pos, scratch).value()];
    double chi = 0, dof = -1, rare_expected = 0, rare_seen = 0;
    int total = 0;
    for (auto [id, prob] : law) {
      total += seen[id];
      if (prob * kDraws < 10) {
        rare_expected += prob * kDraws;
        rare_seen += seen[id];
        continue;
      }
      chi += std::pow(seen[id] - prob * kDraws, 2) / (prob * kDraws);
      ++dof;
    }
    if (rare_expected >= 5) {
      chi += std::pow(rare_seen - rare_expected, 2) / rare_expected;
      ++dof;
    }
    EXPECT_EQ(total, kDraws) << "a token outside the law was drawn";
    EXPECT_GT(ChiSquareTail(chi, dof), 1e-4);
    EXPECT_LT(ChiSquareTail(chi, dof), 1 - 1e-4) << "too good to be independent draws";
  }
}

TEST(SamplerTest, ADrawDependsOnSeedAndPositionAlone) {
  const auto a = RandomLogits(1, 1000, 1);
  const auto b = RandomLogits(2, 777, 1);
  SamplingParams p{.temperature = 1, .top_p = 0.9};
  p.seed = 9;
  std::vector<int32_t> alone;
  for (uint64_t pos = 0; pos < 50; ++pos) {
    SamplerScratch fresh;
    alone.push_back(Sample(a, p, {}, pos, fresh).value());
  }
  SamplerScratch shared;
  for (uint64_t pos = 50; pos-- > 0;) {  // another order, another sequence in between, the memory reused
    ASSERT_TRUE(Sample(b, p, {}, pos, shared).ok());
    EXPECT_EQ(Sample(a, p, {}, pos, shared).value(), alone[pos]);
  }
  p.seed = 10;
  int same = 0;
  for (uint64_t pos = 0; pos < 50; ++pos) same += Sample(a, p, {}, pos, shared).value() == alone[pos];
  EXPECT_LT(same, 25);
}

TEST(SamplerTest, VerySmallAndLargeTemperatures) {
  auto logits = RandomLogits(8, 1000, 3);
  logits[17] = -kInf;
  const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  SamplerScratch scratch;
  for (double t : {0.0, -0.0, 1e-45, 1e-6, 1e-4}) {
    ASSERT_TRUE(Validate(SamplingParams{.temperature = t}).ok()) << t;
    for (uint64_t pos = 0; pos < 20; ++pos) {
      EXPECT_EQ(Sample(logits, {.temperature = t}, {}, pos, scratch).value(), best) << t;
    }
  }
  Distribution law;
  ASSERT_TRUE(Probabilities(logits, {.temperature = 1e6}, {}, scratch, &law).ok());
  EXPECT_EQ(law.ids.size(), 999u);
  for (double prob : law.probs) EXPECT_NEAR(prob, 1.0 / 999, 1e-7);
  logits[5] = 3e38F;
  logits[6] = -3e38F;
  for (double t : {1e-5, 1.0, 1e300}) {
    ASSERT_TRUE(Probabilities(logits, {.temperature = t}, {}, scratch, &law).ok());
    for (double prob : law.probs) EXPECT_TRUE(prob > 0 && prob <= 1);
  }
}

TEST(SamplerTest, BrokenLogitsAreAnErrorNeverAToken) {
  SamplerScratch scratch;
  for (double t : {0.0, 1.0}) {
    for (size_t n : {size_t{1}, size_t{5}, size_t{16}, size_t{100}}) {
      for (float broken : {kNan, kInf}) {
        for (size_t at : {size_t{0}, n / 2, n - 1}) {
          std::vector<float> logits(n, 0.5F);
          logits[at] = broken;
          const auto r = Sample(logits, {.temperature = t}, {}, 0, scratch);
          ASSERT_FALSE(r.ok());
          EXPECT_EQ(r.status().code(), StatusCode::kInternal);
          EXPECT_THAT(r.status().message(), HasSubstr("token " + std::to_string(at) + " of"));
          EXPECT_FALSE(Logprobs(logits, 0, 3, scratch).ok());
        }
      }
      EXPECT_FALSE(Sample(std::vector<float>(n, kNan), {.temperature = t}, {}, 0, scratch).ok());
      const auto masked = Sample(std::vector<float>(n, -kInf), {.temperature = t}, {}, 0, scratch);
      EXPECT_THAT(masked.status().message(), HasSubstr("-infinity"));
    }
    EXPECT_FALSE(Sample({}, {.temperature = t}, {}, 0, scratch).ok());
  }
}

TEST(SamplerTest, BiasAndPenalties) {
  const std::vector<float> logits = {1, 2, 3, -1};
  SamplerScratch scratch;
  EXPECT_EQ(Sample(logits, {}, {}, 0, scratch).value(), 2);
  EXPECT_EQ(Sample(logits, {.logit_bias = {{2, -kInf}}}, {}, 0, scratch).value(), 1);
  EXPECT_EQ(Sample(logits, {.logit_bias = {{3, 100}}}, {}, 0, scratch).value(), 3);
  const auto none = Sample(logits, {.logit_bias = {{0, -kInf}, {1, -kInf}, {2, -kInf}, {3, -kInf}}}, {}, 0, scratch);
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Sample(logits, {.logit_bias = {{4, 1}}}, {}, 0, scratch).status().message(), HasSubstr("token 4"));
  const std::vector<int32_t> history = {2, 2, 2, 1};
  EXPECT_EQ(Sample(logits, {.presence_penalty = 1.5}, history, 0, scratch).value(), 2);
  EXPECT_EQ(Sample(logits, {.frequency_penalty = 1.5}, history, 0, scratch).value(), 0);
  EXPECT_EQ(Sample(logits, {.frequency_penalty = 1.5, .penalty_window = 0}, history, 0, scratch).value(), 2);
  EXPECT_EQ(Sample(logits, {.frequency_penalty = 1.2, .penalty_window = 1}, history, 0, scratch).value(), 2);
  EXPECT_EQ(Sample(logits, {.repetition_penalty = 4}, history, 0, scratch).value(), 0);
  EXPECT_FALSE(Sample(logits, {.presence_penalty = 1}, std::vector<int32_t>{-1}, 0, scratch).ok());
  // Settings at the end of the number range must not turn a logit into NaN.
  Distribution law;
  SamplingParams huge{.temperature = 1,
                      .repetition_penalty = 1e-300,
                      .presence_penalty = -1e308,
                      .frequency_penalty = 1e308,
                      .logit_bias = {{0, 3e38F}, {2, -3e38F}}};
  ASSERT_TRUE(Probabilities(logits, huge, history, scratch, &law).ok());
  EXPECT_NEAR(std::accumulate(law.probs.begin(), law.probs.end(), 0.0), 1, 1e-9);
}

TEST(SamplerTest, LogprobsAreOfTheModelsOwnLaw) {
  auto logits = RandomLogits(4, 49152, 3);
  logits[100] = -kInf;
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  SamplerScratch scratch;
  const TokenLogprobs r = Logprobs(logits, 7, 5, scratch).value();
  EXPECT_EQ(r.token, 7);
  EXPECT_NEAR(r.logprob, static_cast<double>(logits[7]) - std::log(total), 1e-5);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ASSERT_EQ(r.top.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(r.top[i].token, ids[i]);
    EXPECT_NEAR(r.top[i].logprob, static_cast<double>(logits[static_cast<size_t>(ids[i])]) - std::log(total), 1e-5);
  }
  EXPECT_EQ(Logprobs(logits, 100, 0, scratch).value().logprob, -kInf);
  EXPECT_TRUE(Logprobs(logits, 100, -1, scratch).value().top.empty());
  EXPECT_EQ(Logprobs(std::vector<float>{0, 0}, 0, 128, scratch).value().top.size(), 2u);
  EXPECT_FALSE(Logprobs(logits, 49152, 0, scratch).ok());
}

TEST(SamplingParamsTest, RefusesEachBadValueByName) {
  EXPECT_TRUE(Validate(SamplingParams{}).ok());
  EXPECT_TRUE(Validate(SamplingParams{.temperature = 1e6, .top_k = 1000000000, .top_p = 0, .min_p = 1}).ok());
  EXPECT_TRUE(Validate(SamplingParams{.logit_bias = {{0, -kInf}}}).ok());
  const std::vector<std::pair<SamplingParams, std::string>> bad = {
      {{.temperature = -1}, "temperature"},
      {{.temperature = kNanD}, "NaN"},
      {{.temperature = kInfD}, "infinity"},
      {{.top_k = -1}, "top-k"},
      {{.top_p = -0.1}, "top-p"},
      {{.top_p = kNanD}, "top-p"},
      {{.min_p = 1.1}, "min-p"},
      {{.repetition_penalty = 0}, "repetition"},
      {{.repetition_penalty = kInfD}, "repetition"},
      {{.presence_penalty = kNanD}, "presence"},
      {{.frequency_penalty = kInfD}, "frequency"},
      {{.penalty_window = -2}, "penalty window"},
      {{.logit_bias = {{-1, 0}}}, "token -1"},
      {{.logit_bias = {{3, kNan}}}, "token 3"},
      {{.logit_bias = {{3, kInf}}}, "token 3"},
      {{.top_logprobs = -2}, "logprobs"},
      {{.top_logprobs = 129}, "128"},
  };
  for (const auto& [params, word] : bad) {
    const Status s = Validate(params);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << word;
    EXPECT_THAT(s.message(), HasSubstr(word));
  }
}

}  // namespace
}  // namespace farsight
