// Tiny random checkpoints of every family as their own implementation writes them, against the logits that it computes
// (make_checkpoints.py made both): text to ids to logits through the public API, on every backend of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "farsight/engine.h"
#include "io/json.h"

namespace farsight {
namespace {

const std::string kData = FARSIGHT_SOURCE_DIR "/tests/parity/data/";

struct Case {
  std::string text;
  std::vector<int32_t> ids;
  int64_t context = 0;                      // of the engine; 0: the model's
  std::string forecast;                     // file that selects blocks; empty: the model's own queries do
  std::vector<int64_t> positions;           // [P]
  std::vector<std::vector<double>> logits;  // [P, vocabulary]
};

struct Golden {
  std::vector<int32_t> end_tokens;
  std::vector<Case> cases;
};

Golden LoadGolden(const std::string& name) {
  Golden out;
  const auto json = ReadJsonFile(kData + name + "/golden.json");
  EXPECT_TRUE(json.ok()) << json.status().message();
  if (!json.ok()) return out;
  out.end_tokens = (*json)["end_tokens"].get<std::vector<int32_t>>();
  for (const auto& c : (*json)["cases"]) {
    const bool forecast = c.contains("forecast") && c["forecast"].get<bool>();
    out.cases.push_back({c["text"], c["ids"], c["context"], forecast ? kData + name + "/nosa.forecast" : "",
                         c["positions"], c["logits"]});
  }
  return out;
}

// Logits of every position.
std::vector<std::vector<float>> Logits(const std::shared_ptr<Model>& model, const Case& c, AttentionPolicy policy) {
  std::vector<std::vector<float>> rows;
  EngineOptions options;
  options.context_tokens = c.context;
  options.kv_type = KvType::kF32;
  options.prefill_chunk = 100;  // the longer texts take three steps
  options.attention.policy = c.forecast.empty() ? policy : AttentionPolicy::kSparda;
  options.forecast = c.forecast;
  auto engine = Engine::Create(model, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) return rows;
  Request request;
  request.prompt = c.ids;
  request.max_new_tokens = 0;
  request.on_logits = [&](int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); };
  const auto done = (*engine)->Generate(std::move(request));
  EXPECT_TRUE(done.ok()) << done.status().message();
  return rows;
}

// The largest difference of a golden row, relative to the row's largest logit.
double WorstError(const std::vector<std::vector<float>>& rows, const Case& c) {
  double worst = 0;
  for (size_t i = 0; i < c.positions.size(); ++i) {
    const auto& ours = rows.at(static_cast<size_t>(c.positions[i]));
    const auto& theirs = c.logits[i];
    EXPECT_EQ(ours.size(), theirs.size());
    double difference = 0;
    double scale = 0;
    for (size_t t = 0; t < std::min(ours.size(), theirs.size()); ++t) {
      difference = std::max(difference, std::fabs(ours[t] - theirs[t]));
      scale = std::max(scale, std::fabs(theirs[t]));
    }
    worst = std::max(worst, difference / scale);
  }
  return worst;
}

class Parity : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { golden_ = LoadGolden(GetParam()); }
  std::shared_ptr<Model> Load(const ModelOptions& options) {
    auto model = Model::Load(kData + GetParam(), options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }
  void ExpectLogits(const ModelOptions& options, double bound) {
    const auto model = Load(options);
    ASSERT_NE(model, nullptr);
    ASSERT_FALSE(golden_.cases.empty());
    for (const Case& c : golden_.cases) {
      const auto rows = Logits(model, c, AttentionPolicy::kModel);
      ASSERT_EQ(rows.size(), c.ids.size());
      const double error = WorstError(rows, c);
      EXPECT_LT(error, bound) << c.ids.size() << " tokens, context " << c.context;
      RecordProperty("error_" + model->info().backend + "_" + std::to_string(c.ids.size()), std::to_string(error));
    }
  }
  Golden golden_;
};

TEST_P(Parity, IdsAreThoseOfTheReferenceTokenizer) {
  const auto model = Load({.threads = 1});
  ASSERT_NE(model, nullptr);
  for (const Case& c : golden_.cases) EXPECT_EQ(model->Tokenize(c.text), c.ids);
}

TEST_P(Parity, EndTokensAreThoseOfTheGenerationConfig) {
  const auto model = Load({.threads = 1});
  ASSERT_NE(model, nullptr);
  ASSERT_FALSE(golden_.end_tokens.empty());
  std::vector<int32_t> ends;
  for (int32_t id = 0; id < model->info().vocab; ++id) {
    if (model->IsEndToken(id)) ends.push_back(id);
  }
  for (const int32_t id : golden_.end_tokens) EXPECT_TRUE(std::count(ends.begin(), ends.end(), id)) << id;
  EXPECT_LE(ends.size(), golden_.end_tokens.size() + 1) << "the name of one more may say that it is an end";
}

// Seen: 7e-7 and 1e-6. What differs is f32 where transformers rotates, normalises and takes softmax, seven digits of
// the golden values, and the order of sums.
TEST_P(Parity, LogitsOnTheReferenceBackend) { ExpectLogits({.reference = true}, 5e-6); }
TEST_P(Parity, LogitsOnTheDefaultBackend) { ExpectLogits({.threads = 2}, 2e-5); }
TEST_P(Parity, LogitsOnTheScalarBackend) { ExpectLogits({.threads = 1, .isa = "scalar"}, 2e-5); }

INSTANTIATE_TEST_SUITE_P(Checkpoints, Parity,
                         ::testing::Values("llama", "llama3", "llama-bias", "qwen2", "qwen3", "minicpm4",
                                           "minicpm4-sparse", "nosa"),
                         [](const auto& checkpoint) {
                           std::string name = checkpoint.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The bounds above mean something: what a checkpoint says matters to its logits.
TEST(ParityCanFail, SparseAttentionIsNotDense) {
  const Golden golden = LoadGolden("minicpm4-sparse");
  ASSERT_EQ(golden.cases.size(), 2u);
  const auto model = Model::Load(kData + "minicpm4-sparse", {.threads = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Case& c = golden.cases[1];
  EXPECT_GT(WorstError(Logits(*model, c, AttentionPolicy::kDense), c), 2e-2);
}

TEST(ParityCanFail, TheContextChoosesTheRopeFactors) {
  const Golden golden = LoadGolden("minicpm4");
  ASSERT_EQ(golden.cases.size(), 3u);
  const auto model = Model::Load(kData + "minicpm4", {.threads = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  Case c = golden.cases[0];
  ASSERT_EQ(c.ids, golden.cases[1].ids);
  c.context = golden.cases[1].context;
  EXPECT_GT(WorstError(Logits(*model, c, AttentionPolicy::kModel), c), 1e-2);
}

}  // namespace
}  // namespace farsight
