// The trainer on a made-up model whose queries are a linear map of the layer before, so that there is something to
// find.
#include "train/forecast_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/safetensors.h"
#include "io/testing/temp_dir.h"
#include "train/sequences.h"
#include "train/testing/golden.h"

namespace farsight {
namespace {

using testing::Floats;
using testing::Hashed;
using ::testing::HasSubstr;
using testing::TempDir;

constexpr int kHidden = 12, kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 8;

// Tokens are hashed into hidden rows and keys; layer l's queries are a fixed map of layer l - 1's hidden rows.
class LinearModel final : public LayerSource {
 public:
  Status Run(std::span<const int32_t> tokens, const LayerFn& layer) override {
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t width = (kHeads + kKvHeads) * kDim;
    std::vector<float> before;
    for (int l = 0; l < kLayers; ++l) {
      std::vector<float> hidden, qk;
      for (const int32_t t : tokens) {
        const auto row = Hashed(kHidden, static_cast<uint32_t>(t * 8 + l + 100), 3);
        hidden.insert(hidden.end(), row.begin(), row.end());
      }
      const auto& from = l == 0 ? hidden : before;
      const auto map = Hashed(kHeads * kDim * kHidden, static_cast<uint32_t>(50 + l), 2);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t o = 0; o < kHeads * kDim; ++o) {
          const int64_t shared = o / kDim / 2 * 2 * kDim + o % kDim;  // both heads of a group ask the same
          double sum = 0;
          for (int64_t i = 0; i < kHidden; ++i) {
            sum += map[static_cast<size_t>(shared * kHidden + i)] * from[static_cast<size_t>(r * kHidden + i)];
          }
          qk.push_back(static_cast<float>(sum));
        }
        // Neighbours share a key, so that windows, pairs and sketches of keys see the same.
        const auto key =
            Hashed(kKvHeads * kDim, static_cast<uint32_t>(tokens[static_cast<size_t>(r)] / 8 * 8 + l + 7), 4);
        qk.insert(qk.end(), key.begin(), key.end());
      }
      layer({l, n, hidden.data(), qk.data(), qk.data() + kHeads * kDim, width});
      before = hidden;
    }
    return OkStatus();
  }
};

ForecastTrainerOptions Options(SummaryKind keys = SummaryKind::kPooledKeys) {
  ForecastTrainerOptions o;
  o.task.keys = keys;
  o.task.heads = kHeads;
  o.task.kv_heads = kKvHeads;
  o.task.head_dim = kDim;
  o.task.block_tokens = 16;
  o.task.top_k = 6;
  o.task.local_blocks = 1;
  o.task.kernel = 8;
  o.task.stride = 4;
  o.task.bits = 4;
  o.hidden = kHidden;
  o.layers = kLayers;
  o.rows_per_sequence = 48;
  o.rope.inv_freq = {1.0, 0.1, 0.01, 0.001};
  o.learning_rate = {.peak = 0.05, .warmup = 3, .total = 60, .final_share = 0.1};
  return o;
}

std::vector<std::vector<float>> Initial() {
  std::vector<std::vector<float>> out;
  for (int l = 0; l < kLayers; ++l) {
    out.push_back(Floats(Hashed(kKvHeads * kDim * kHidden, static_cast<uint32_t>(l + 900), 0.5)));
  }
  return out;
}

std::vector<int32_t> Tokens(int which, int n) {
  std::vector<int32_t> out;
  for (int i = 0; i < n; ++i) out.push_back(which * 1000 + i);
  return out;
}

using Batch = std::vector<std::span<const int32_t>>;

// Steps n times over two sequences a step.
void Train(ForecastTrainer& trainer, int n, std::vector<double>* losses = nullptr) {
  LinearModel model;
  for (int i = 0; i < n; ++i) {
    const auto which = static_cast<int>(trainer.steps_done());
    const auto a = Tokens(which * 2 + 1, 320);
    const auto b = Tokens(which * 2 + 2, 256);
    const auto step = trainer.Step(model, Batch{a, b});
    ASSERT_TRUE(step.ok()) << step.status().message();
    ASSERT_EQ(step->pass.layers.size(), static_cast<size_t>(kLayers));
    if (losses != nullptr) losses->push_back(step->pass.Sum().MeanLoss());
  }
}

TEST(ForecastTrainer, GradientOfTheWholeChainAsAutomaticDifferentiation) {
  const Json golden = testing::GoldenFile()["chain"];
  const testing::GoldenCase g = testing::ParseGolden(golden);
  // One layer that forecasts for itself; the state's first moment after one step is a tenth of the gradient.
  struct OneLayer final : LayerSource {
    std::vector<float> hidden, qk;
    Status Run(std::span<const int32_t>, const LayerFn& layer) override {
      layer({0, 500, hidden.data(), qk.data(), qk.data() + 64, 80});
      return OkStatus();
    }
  } source;
  source.hidden = Floats(Hashed(500 * 6, 6, 2));
  for (size_t p = 0; p < 500; ++p) {
    for (size_t i = 0; i < 64; ++i) source.qk.push_back(static_cast<float>(g.q[p * 64 + i]));
    for (size_t i = 0; i < 16; ++i) source.qk.push_back(static_cast<float>(g.k[p * 16 + i]));
  }
  ForecastTrainerOptions o;
  o.task = g.task;
  o.hidden = 6;
  o.layers = 1;
  o.rows_per_sequence = 0;
  o.adamw.clip = 0;
  for (int i = 0; i < 4; ++i) o.rope.inv_freq.push_back(std::pow(golden["theta"].get<double>(), -i / 4.0));
  ThreadPool pool(2);
  auto trainer = ForecastTrainer::Create(o, {Floats(Hashed(96, 7, 1))}, &pool);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  const std::vector<int32_t> tokens(500, 0);
  const auto step = (*trainer)->Step(source, Batch{tokens});
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_NEAR(step->pass.Sum().MeanLoss(), golden["loss"].get<double>(), 1e-8);
  const TempDir dir;
  ASSERT_TRUE((*trainer)->SaveState(dir.Path("s"), "x").ok());
  const auto state = OpenSafetensors(dir.Path("s"));
  ASSERT_TRUE(state.ok());
  const FileTensor* mean = (*state)->FindTensor("mean.0");
  ASSERT_NE(mean, nullptr);
  const auto want = golden["gradient"].get<std::vector<double>>();
  double size = 0;
  for (const double v : want) size = std::max(size, std::fabs(v));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(reinterpret_cast<const float*>(mean->data.data())[i] * 10, want[i], 1e-5 * size + 1e-9);
  }
}

TEST(ForecastTrainer, LearnsWhatCanBeLearned) {
  for (const SummaryKind keys : {SummaryKind::kPooledKeys, SummaryKind::kSketch}) {
    for (const ForecastTeacher teacher : {ForecastTeacher::kModel, ForecastTeacher::kFine}) {
      ThreadPool pool(1);
      ForecastTrainerOptions o = Options(keys);
      o.task.teacher = teacher;
      auto trainer = ForecastTrainer::Create(o, Initial(), &pool);
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      LinearModel model;
      const auto held = Tokens(777, 320);
      const auto before = (*trainer)->Evaluate(model, Batch{held});
      Train(**trainer, 60);
      const auto after = (*trainer)->Evaluate(model, Batch{held});
      ASSERT_TRUE(before.ok() && after.ok());
      for (size_t l = 0; l < static_cast<size_t>(kLayers); ++l) {
        EXPECT_LT(before->layers[l].Recall(), 0.75);
        // Windows of eight keys cannot follow a teacher of two all the way.
        const double least = o.task.pooled() && teacher == ForecastTeacher::kFine ? 0.65 : 0.85;
        EXPECT_GT(after->layers[l].Recall(), least) << static_cast<int>(keys) << ForecastTeacherName(teacher) << l;
        EXPECT_GT(after->layers[l].Recall(), before->layers[l].Recall());
        EXPECT_LT(after->layers[l].MeanLoss(), 0.4 * before->layers[l].MeanLoss());
        EXPECT_GT(after->layers[l].ChanceRecall(), 0.15);
        EXPECT_LT(after->layers[l].ChanceRecall(), 0.6);
      }
    }
  }
}

TEST(ForecastTrainer, AResumedRunMakesTheSameBits) {
  const TempDir dir;
  ThreadPool one(1);
  ThreadPool three(3);
  auto whole = ForecastTrainer::Create(Options(), Initial(), &one);
  ASSERT_TRUE(whole.ok());
  std::vector<double> whole_losses, losses;
  Train(**whole, 7, &whole_losses);

  auto first = ForecastTrainer::Create(Options(), Initial(), &three);
  ASSERT_TRUE(first.ok());
  Train(**first, 3, &losses);
  ASSERT_TRUE((*first)->SaveState(dir.Path("state"), "seed 42").ok());
  // Started elsewhere from other weights: the state decides.
  auto second =
      ForecastTrainer::Create(Options(), std::vector<std::vector<float>>(kLayers, std::vector<float>(192)), &one);
  ASSERT_TRUE(second.ok());
  const Status loaded = (*second)->LoadState(dir.Path("state"), "seed 42");
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_EQ((*second)->steps_done(), 3);
  Train(**second, 4, &losses);
  EXPECT_EQ(losses, whole_losses);
  EXPECT_EQ((*second)->Projections(), (*whole)->Projections());
}

TEST(ForecastTrainer, ForeignAndBrokenStatesAreRefused) {
  const TempDir dir;
  ThreadPool pool(1);
  auto trainer = ForecastTrainer::Create(Options(), Initial(), &pool);
  ASSERT_TRUE(trainer.ok());
  const auto error = [&](const std::string& path, const std::string& settings) {
    return (*trainer)->LoadState(path, settings).message();
  };
  ASSERT_TRUE((*trainer)->SaveState(dir.Path("state"), "seed 42").ok());
  EXPECT_THAT(error(dir.Path("state"), "seed 43"), HasSubstr("made with seed 42, this one has seed 43"));
  EXPECT_EQ((*trainer)->LoadState(dir.Path("none"), "").code(), StatusCode::kNotFound);
  ForecastTrainerOptions narrow = Options();
  narrow.hidden = 6;
  auto other = ForecastTrainer::Create(narrow, std::vector<std::vector<float>>(kLayers, std::vector<float>(96)), &pool);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->SaveState(dir.Path("narrow"), "s").ok());
  EXPECT_THAT(error(dir.Path("narrow"), "s"), HasSubstr("another size"));
  EXPECT_EQ((*trainer)->Projections(), Initial());  // a refused state changes nothing
}

TEST(ForecastTrainer, WhatCannotWorkIsRefusedAtOnce) {
  ThreadPool pool(1);
  ForecastTrainerOptions o = Options();
  EXPECT_FALSE(ForecastTrainer::Create(o, {}, &pool).ok());
  EXPECT_FALSE(ForecastTrainer::Create(o, std::vector<std::vector<float>>(kLayers, std::vector<float>(5)), &pool).ok());
  o.rope.inv_freq.assign(9, 1.0);
  EXPECT_THAT(ForecastTrainer::Create(o, Initial(), &pool).status().message(), HasSubstr("18 of 8 channels"));
  o = Options();
  o.task.top_k = 3;
  EXPECT_FALSE(ForecastTrainer::Create(o, Initial(), &pool).ok());
  auto trainer = ForecastTrainer::Create(Options(), Initial(), &pool);
  ASSERT_TRUE(trainer.ok());
  LinearModel model;
  const auto brief = Tokens(1, 96);  // six blocks: every one is chosen anyway
  const auto step = (*trainer)->Step(model, Batch{brief});
  EXPECT_THAT(step.status().message(), HasSubstr("it must be longer than 96"));
  EXPECT_EQ((*trainer)->steps_done(), 0);
}

}  // namespace
}  // namespace farsight
