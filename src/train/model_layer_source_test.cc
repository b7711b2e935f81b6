// Activations of a real forward, and the projections training starts from.
#include "train/model_layer_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/testing/tiny_model.h"
#include "io/gguf.h"
#include "io/testing/temp_dir.h"
#include "model/weights.h"
#include "ops/dequantise.h"
#include "train/forecast_init.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;

struct Loaded {
  std::shared_ptr<const ModelFile> file;
  ModelConfig config;
  std::unique_ptr<LoadedModel> model;
  AttentionPlan plan;
};

Loaded Load(const testing::TempDir& dir, const std::string& arch) {
  Loaded out;
  out.file = OpenGguf(dir.Write("m.gguf", testing::TinyModel(arch))).value();
  out.config = ConfigFromGguf(*out.file).value();
  out.model = LoadOnCpu(*out.file, out.config, WeightNames::kGguf, 1, "best").value();
  out.plan = MakeAttentionPlan({}, out.config.attention, out.config.layers).value();
  return out;
}

struct Copied {
  std::vector<float> hidden, q, k;
};

std::vector<Copied> RunAll(ModelLayerSource& source, const ModelConfig& c, std::span<const int32_t> tokens) {
  std::vector<Copied> out;
  const Status status = source.Run(tokens, [&](const LayerActivations& a) {
    EXPECT_EQ(a.layer, static_cast<int>(out.size()));
    EXPECT_EQ(a.rows, static_cast<int64_t>(tokens.size()));
    Copied l;
    l.hidden.assign(a.hidden, a.hidden + a.rows * c.hidden);
    for (int64_t r = 0; r < a.rows; ++r) {
      l.q.insert(l.q.end(), a.q + r * a.stride, a.q + r * a.stride + c.heads * c.head_dim);
      l.k.insert(l.k.end(), a.k + r * a.stride, a.k + r * a.stride + c.kv_heads * c.head_dim);
    }
    out.push_back(l);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

double Dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(ModelLayerSource, GivesEachLayersInputAndItsQueriesBeforeRope) {
  const testing::TempDir dir;
  const Loaded m = Load(dir, "llama");
  const ModelConfig& c = m.config;
  auto source = ModelLayerSource::Create(*m.model, c, m.plan, 200);
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back((i * 37 + 5) % 256);
  const auto layers = RunAll(**source, c, tokens);
  ASSERT_EQ(layers.size(), static_cast<size_t>(c.layers));

  // Layer 0's input is the norm of the embedding, and queries and keys are products of the input.
  const WeightSource weights(*m.file, c, WeightNames::kGguf);
  const auto norm = weights.Vector(WeightSource::Kind::kAttnNorm, 0, c.hidden).value();
  const FileTensor* embedding = m.file->FindTensor("token_embd.weight");
  const auto hidden = static_cast<size_t>(c.hidden);
  const float* x = reinterpret_cast<const float*>(embedding->data.data()) + static_cast<size_t>(tokens[77]) * hidden;
  const double rms = std::sqrt(Dot(x, x, hidden) / c.hidden + c.rms_eps);
  for (size_t i = 0; i < hidden; ++i) {
    EXPECT_NEAR(layers[0].hidden[77 * hidden + i], x[i] / rms * norm[i], 1e-4);
  }
  for (int l = 0; l < c.layers; ++l) {
    std::vector<std::vector<std::byte>> kept;
    const auto q = weights.Matrix(WeightSource::Kind::kQ, l, c.heads * c.head_dim, c.hidden, &kept).value();
    const auto k = weights.Matrix(WeightSource::Kind::kK, l, c.kv_heads * c.head_dim, c.hidden, &kept).value();
    const Copied& got = layers[static_cast<size_t>(l)];
    for (const size_t row : {size_t{0}, size_t{149}}) {
      for (const size_t o : {size_t{0}, size_t{17}}) {
        const auto* wq = reinterpret_cast<const float*>(q.data.data()) + o * hidden;
        const auto* wk = reinterpret_cast<const float*>(k.data.data()) + o * hidden;
        const float* in = got.hidden.data() + row * hidden;
        EXPECT_NEAR(got.q[row * static_cast<size_t>(q.rows) + o], Dot(in, wq, hidden), 1e-3);
        EXPECT_NEAR(got.k[row * static_cast<size_t>(k.rows) + o], Dot(in, wk, hidden), 1e-3);
      }
    }
  }
  // A second sequence begins anew.
  EXPECT_EQ(RunAll(**source, c, tokens)[2].q, layers[2].q);
}

TEST(ModelLayerSource, RefusesWhatDoesNotFit) {
  const testing::TempDir dir;
  const Loaded m = Load(dir, "llama");
  EXPECT_THAT(ModelLayerSource::Create(*m.model, m.config, m.plan, 5000).status().message(),
              HasSubstr("context of 4096"));
  auto source = ModelLayerSource::Create(*m.model, m.config, m.plan, 10);
  ASSERT_TRUE(source.ok());
  const auto nothing = [](const LayerActivations&) {};
  const std::vector<int32_t> tokens(11, 1);
  EXPECT_THAT((*source)->Run(tokens, nothing).message(), HasSubstr("11 tokens"));
  EXPECT_FALSE((*source)->Run({}, nothing).ok());
  const std::vector<int32_t> wrong = {1, 2, 100000};
  EXPECT_THAT((*source)->Run(wrong, nothing).message(), HasSubstr("token 100000"));
}

TEST(ForecastInit, FromQueriesIsTheGroupsMeanQuery) {
  const testing::TempDir dir;
  const Loaded m = Load(dir, "llama");
  const ModelConfig& c = m.config;
  const auto initial = ForecastFromQueries(*m.file, c, 1, WeightNames::kGguf);
  ASSERT_TRUE(initial.ok()) << initial.status().message();
  ASSERT_EQ(initial->size(), static_cast<size_t>(c.layers));
  auto source = ModelLayerSource::Create(*m.model, c, m.plan, 32);
  ASSERT_TRUE(source.ok());
  const std::vector<int32_t> tokens = {5, 9, 200, 31};
  const auto layers = RunAll(**source, c, tokens);
  // Applied to layer 0's own input it gives the mean of the group's queries.
  const auto hidden = static_cast<size_t>(c.hidden);
  for (size_t o = 0; o < static_cast<size_t>(c.kv_heads * c.head_dim); ++o) {
    const size_t head = o / static_cast<size_t>(c.head_dim);
    const size_t channel = o % static_cast<size_t>(c.head_dim);
    double mean = 0;
    for (size_t g = 0; g < 2; ++g) mean += layers[0].q[(head * 2 + g) * static_cast<size_t>(c.head_dim) + channel] / 2;
    EXPECT_NEAR(Dot((*initial)[0].data() + o * hidden, layers[0].hidden.data(), hidden), mean, 1e-3);
  }
  // For the next layer the norms' weights are exchanged: without them both inputs are the same direction.
  const WeightSource weights(*m.file, c, WeightNames::kGguf);
  const auto below = weights.Vector(WeightSource::Kind::kAttnNorm, 0, c.hidden).value();
  const auto own = weights.Vector(WeightSource::Kind::kAttnNorm, 1, c.hidden).value();
  std::vector<std::vector<std::byte>> kept;
  const auto q = weights.Matrix(WeightSource::Kind::kQ, 1, c.heads * c.head_dim, c.hidden, &kept).value();
  const auto* w = reinterpret_cast<const float*>(q.data.data());
  const double mean = (w[3] + w[static_cast<size_t>(c.head_dim) * hidden + 3]) / 2;
  EXPECT_NEAR((*initial)[1][3], mean * own[3] / below[3], 1e-5);
}

TEST(ForecastInit, RandomIsSeededAndBounded) {
  ModelConfig c;
  c.layers = 2;
  c.hidden = 64;
  c.kv_heads = 2;
  c.head_dim = 8;
  const auto a = RandomForecast(c, 1, 1);
  EXPECT_EQ(a, RandomForecast(c, 1, 1));
  EXPECT_NE(a, RandomForecast(c, 1, 2));
  ASSERT_EQ(a.size(), 2u);
  EXPECT_NE(a[0], a[1]);
  float largest = 0;
  for (const float v : a[0]) largest = std::max(largest, std::fabs(v));
  EXPECT_LE(largest, 0.125f);
  EXPECT_GT(largest, 0.12f);
}

}  // namespace
}  // namespace farsight
