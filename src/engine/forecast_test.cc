// Forecast selection in the forward: a constructed model where it must choose what the layer's own query chooses, and
// pairs of paths on random projections.
#include <gtest/gtest.h>

#include "engine/model_impl.h"
#include "engine/profiler.h"
#include "engine/testing/random_forecast.h"
#include "engine/testing/requests.h"
#include "engine/testing/tiny_model.h"
#include "farsight/engine.h"
#include "io/gguf.h"
#include "io/testing/temp_dir.h"
#include "model/forecast_file.h"

namespace farsight {
namespace {

using testing::kDim;
using testing::kHidden;
using testing::kKvHeads;
using testing::kLayers;
using testing::Prefill;
using testing::Prompt;

using Outcome = testing::PrefillOutcome;

class ForecastTest : public ::testing::Test {
 protected:
  std::shared_ptr<Model> Load(const std::string& arch, bool frozen, bool reference = false) {
    path_ = dir_.Write(arch + (frozen ? "-frozen.gguf" : ".gguf"), testing::TinyModel(arch, frozen));
    auto model = Model::Load(path_, {.threads = 2, .reference = reference});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return *model;
  }

  static AttentionOptions Attention(AttentionPolicy policy) {
    AttentionOptions o;
    o.policy = policy;
    o.phase = SparsePhase::kAll;
    o.block_size = 16;
    o.top_k_blocks = 5;
    o.local_window = 16;
    o.dense_layers = 0;
    o.kernel_size = 8;
    o.kernel_stride = 4;
    return o;
  }

  static std::unique_ptr<Engine> Make(const std::shared_ptr<Model>& model, AttentionPolicy policy,
                                      const std::string& forecast, int chunk = 64, int dense_layers = 0) {
    EngineOptions o;
    o.context_tokens = 1024;
    o.prefill_chunk = chunk;
    o.kv_type = KvType::kF32;
    o.attention = Attention(policy);
    o.attention.dense_layers = dense_layers;
    o.forecast = forecast;
    auto engine = Engine::Create(model, o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }

  std::string Save(const std::shared_ptr<Model>& model, const Forecast& f) {
    const std::string path = dir_.Write("forecast.safetensors", "");
    const Status saved = SaveForecast(path, f, model->impl().config, DType::kF32);
    EXPECT_TRUE(saved.ok()) << saved.message();
    return path;
  }

  testing::TempDir dir_;
  std::string path_;
};

TEST_F(ForecastTest, WhereTheNextQueryIsKnownItsBlocksAreTheQuerys) {
  for (const bool reference : {true, false}) {
    const auto model = Load("infllm", true, reference);
    Forecast f = testing::EmptyForecast(model, SummaryKind::kPooledKeys);
    const auto file = OpenGguf(path_);
    ASSERT_TRUE(file.ok());
    for (int l = 0; l < kLayers; ++l) {  // the query head of each group, from the stream that no layer changes
      const FileTensor* t = (*file)->FindTensor("blk." + std::to_string(l) + ".attn_q.weight");
      ASSERT_NE(t, nullptr);
      const auto* q = reinterpret_cast<const float*>(t->data.data());
      for (int h = 0; h < kKvHeads; ++h) {
        const float* head = q + int64_t{h} * (testing::kHeads / kKvHeads) * kDim * kHidden;
        f.projections[static_cast<size_t>(l)].insert(f.projections[static_cast<size_t>(l)].end(), head,
                                                     head + int64_t{kDim} * kHidden);
      }
    }
    const auto tokens = Prompt(reference ? 300 : 700, 2);
    const auto own = Make(model, AttentionPolicy::kInfLlm2, "");
    const auto sparda = Make(model, AttentionPolicy::kSparda, Save(model, f));
    ASSERT_NE(sparda, nullptr);
    EXPECT_TRUE(sparda->stats().forecast);
    const Outcome a = Prefill(*own, tokens);
    const Outcome b = Prefill(*sparda, tokens);
    EXPECT_EQ(a.blocks, b.blocks);
    EXPECT_EQ(a.logits, b.logits);
  }
}

// With every head's query weights a Forecast asks what InfiniGen's lookahead asks.
TEST_F(ForecastTest, AForecastForEachQueryHeadCanBeTheNextLayersQueries) {
  for (const bool reference : {true, false}) {
    const auto model = Load("infllm", false, reference);
    Forecast f = testing::EmptyForecast(model, SummaryKind::kPooledKeys);
    const auto file = OpenGguf(path_);
    ASSERT_TRUE(file.ok());
    for (int l = 0; l < kLayers; ++l) {
      const FileTensor* t = (*file)->FindTensor("blk." + std::to_string(l) + ".attn_q.weight");
      const auto* q = reinterpret_cast<const float*>(t->data.data());
      f.projections[static_cast<size_t>(l)].assign(q, q + int64_t{testing::kHeads} * kDim * kHidden);
    }
    const auto tokens = Prompt(reference ? 200 : 400, 3);
    const auto before = Make(model, AttentionPolicy::kInfinigen, "", 64, 1);
    const auto sparda = Make(model, AttentionPolicy::kSparda, Save(model, f), 64, 1);
    const Outcome a = Prefill(*before, tokens);
    const Outcome b = Prefill(*sparda, tokens);
    EXPECT_EQ(a.blocks, b.blocks);
    EXPECT_EQ(a.logits, b.logits);
  }
}

TEST_F(ForecastTest, AStaleListIsTheOneOfTheLayerBefore) {
  const auto model = Load("llama", false);
  const auto tokens = Prompt(300, 5);
  const Outcome whole = Prefill(*Make(model, AttentionPolicy::kStale, ""), tokens);
  const Outcome own = Prefill(*Make(model, AttentionPolicy::kSketch, ""), tokens);
  int moved = 0;
  for (int64_t p = 0; p < 300; ++p) {
    EXPECT_EQ(whole.blocks.at({p, 0}), own.blocks.at({p, 0}));
    EXPECT_EQ(whole.blocks.at({p, 1}), own.blocks.at({p, 0}));
    moved += whole.blocks.at({p, 2}) != whole.blocks.at({p, 1}) ? 1 : 0;
  }
  EXPECT_GT(moved, 100) << "layer 2 has layer 1's choice";
  for (const int chunk : {1, 17}) {
    const Outcome run = Prefill(*Make(model, AttentionPolicy::kStale, "", chunk), tokens);
    EXPECT_EQ(run.logits, whole.logits) << chunk;
    EXPECT_EQ(run.blocks, whole.blocks) << chunk;
  }
}

TEST_F(ForecastTest, ChunksAndTheReferenceAgree) {
  for (const auto keys : {SummaryKind::kPooledKeys, SummaryKind::kSketch}) {
    const auto model = Load("llama", false);
    const bool pooled = keys == SummaryKind::kPooledKeys;
    const std::string file = Save(model, testing::RandomForecast(model, keys, pooled ? kKvHeads : testing::kHeads));
    const auto tokens = Prompt(300, 5);
    const auto whole_engine = Make(model, AttentionPolicy::kSparda, file);
    ASSERT_NE(whole_engine, nullptr);
    const Outcome whole = Prefill(*whole_engine, tokens);
    for (const int chunk : {1, 3, 17}) {
      const Outcome run = Prefill(*Make(model, AttentionPolicy::kSparda, file, chunk), tokens);
      EXPECT_EQ(run.logits, whole.logits) << chunk;
      EXPECT_EQ(run.blocks, whole.blocks) << chunk;
    }
    const Outcome own = Prefill(*Make(model, AttentionPolicy::kSketch, ""), tokens);
    EXPECT_NE(own.blocks, whole.blocks) << "a random Forecast chooses other blocks";
    const auto oracle = Load("llama", false, true);
    const Outcome reference = Prefill(*Make(oracle, AttentionPolicy::kSparda, file), tokens);
    size_t same = 0;
    for (const auto& [at, lists] : reference.blocks) same += whole.blocks.at(at) == lists ? 1 : 0;
    // Sketch scores round the query to 8 bits, which moves near ties.
    const double share = keys == SummaryKind::kSketch ? 0.85 : 0.99;
    EXPECT_GT(static_cast<double>(same), share * static_cast<double>(reference.blocks.size()));
  }
}

// What is measured without the Forecast says nothing of steps with it.
TEST_F(ForecastTest, AProfileIsOfTheForecastThatItWasMeasuredWith) {
  const auto model = Load("llama", false);
  EngineOptions o;
  o.attention = Attention(AttentionPolicy::kSketch);
  const auto own = ProfileFingerprint(*model, o);
  o.attention = Attention(AttentionPolicy::kSparda);
  o.forecast = Save(model, testing::RandomForecast(model, SummaryKind::kSketch));
  const auto with = ProfileFingerprint(*model, o);
  ASSERT_TRUE(own.ok() && with.ok());
  EXPECT_NE(own->model, with->model);
  ProfilerOptions how;
  how.contexts = {128};
  how.repeat = 1;
  how.answer = 8;
  const auto profile = MeasureProfile(model, o, Prompt(200, 5), how);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->of.model, with->model);
  o.forecast += ".gone";
  EXPECT_FALSE(MeasureProfile(model, o, Prompt(200, 5), how).ok());
}

// Over quantised weights the projections are quantised too: few rows and many are different products.
TEST_F(ForecastTest, ChunksOfAQuantisedModelAgree) {
  const std::string path = std::string(FARSIGHT_SOURCE_DIR) + "/models/infllm-32m";
  const auto model = Model::Load(path + ".gguf", {.threads = 2});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto read = [&](int chunk) {
    EngineOptions o;
    o.context_tokens = 1024;
    o.prefill_chunk = chunk;
    o.attention.policy = AttentionPolicy::kSparda;
    o.forecast = path + ".forecast.safetensors";
    auto engine = Engine::Create(*model, o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? Prefill(**engine, Prompt(1000, 8)) : Outcome{};
  };
  const Outcome whole = read(512);
  for (const int chunk : {3, 17}) {
    const Outcome run = read(chunk);
    EXPECT_TRUE(run.logits == whole.logits) << chunk;
    EXPECT_TRUE(run.blocks == whole.blocks) << chunk;
  }
}

// A model with importances and two quotas, whoever fills the first of them.
TEST_F(ForecastTest, NosaChunksAndTheReferenceAgree) {
  const auto model = Load("nosa", false);
  const auto oracle = Load("nosa", false, true);
  const std::string file = Save(model, testing::RandomForecast(model, SummaryKind::kPooledKeys));
  const auto tokens = Prompt(300, 5);
  const auto run = [&](const std::shared_ptr<Model>& m, AttentionOptions attention, int chunk) {
    EngineOptions o;
    o.context_tokens = 1024;
    o.prefill_chunk = chunk;
    o.kv_type = KvType::kF32;
    o.attention = attention;
    o.forecast = file;
    auto engine = Engine::Create(m, o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return Prefill(**engine, tokens);
  };
  std::vector<Outcome> all;
  for (const auto policy :
       {AttentionPolicy::kNosa, AttentionPolicy::kSparda, AttentionPolicy::kInfinigen, AttentionPolicy::kStale}) {
    const Outcome whole = run(model, {.policy = policy}, 300);
    for (const int chunk : {1, 17}) {
      const Outcome other = run(model, {.policy = policy}, chunk);
      EXPECT_EQ(other.logits, whole.logits) << AttentionPolicyName(policy) << " " << chunk;
      EXPECT_EQ(other.blocks, whole.blocks) << AttentionPolicyName(policy) << " " << chunk;
    }
    const Outcome reference = run(oracle, {.policy = policy}, 300);
    size_t same = 0;
    for (const auto& [at, lists] : reference.blocks) same += whole.blocks.at(at) == lists ? 1 : 0;
    EXPECT_GT(same, reference.blocks.size() * 98 / 100) << AttentionPolicyName(policy);
    for (const Outcome& before : all) EXPECT_NE(before.blocks, whole.blocks);
    all.push_back(whole);
  }
  // A quota that is the whole budget leaves nothing to importances; a budget of all blocks is attention to all.
  AttentionOptions query_only{.query_blocks = 8};
  EXPECT_NE(run(model, query_only, 300).blocks, all[0].blocks);
  AttentionOptions full{.top_k_blocks = 100};
  AttentionOptions dense{.dense_below = 1000};
  EXPECT_EQ(run(model, full, 300).logits, run(model, dense, 300).logits);
  EXPECT_NE(run(model, dense, 300).logits, all[0].logits);
}

TEST_F(ForecastTest, NosaRefusesWhatItCannotBe) {
  const auto refused = [](const std::shared_ptr<Model>& model, AttentionOptions attention, const std::string& word) {
    EngineOptions o;
    o.context_tokens = 512;
    o.attention = attention;
    const auto engine = Engine::Create(model, o);
    ASSERT_FALSE(engine.ok()) << word;
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  const auto model = Load("nosa", false);
  refused(model, {.policy = AttentionPolicy::kDense}, "not 'dense'");
  refused(model, {.policy = AttentionPolicy::kInfLlm2}, "not 'infllm2'");
  refused(model, {.top_k_blocks = 5}, "query blocks");
  refused(Load("llama", false), {.policy = AttentionPolicy::kNosa}, "trained with NOSA");
  EngineOptions o;
  o.attention.policy = AttentionPolicy::kSparda;
  o.forecast = Save(model, testing::RandomForecast(model, SummaryKind::kSketch));
  const auto sketches = Engine::Create(model, o);
  ASSERT_FALSE(sketches.ok());
  EXPECT_NE(sketches.status().message().find("windows"), std::string::npos) << sketches.status().message();
}

TEST_F(ForecastTest, AnEngineCanBeSetToItsForecastLater) {
  const auto model = Load("llama", false);
  const std::string file = Save(model, testing::RandomForecast(model, SummaryKind::kSketch));
  const auto tokens = Prompt(300, 7);
  const auto engine = Make(model, AttentionPolicy::kDense, file);
  EXPECT_FALSE(engine->stats().forecast);
  Prefill(*engine, tokens);
  for (const auto policy : {AttentionPolicy::kSparda, AttentionPolicy::kSketch, AttentionPolicy::kSparda}) {
    ASSERT_TRUE(engine->SetAttention(Attention(policy)).ok());
    EXPECT_EQ(engine->stats().forecast, policy == AttentionPolicy::kSparda);
    const Outcome set = Prefill(*engine, tokens);
    const Outcome own = Prefill(*Make(model, policy, policy == AttentionPolicy::kSparda ? file : ""), tokens);
    EXPECT_EQ(set.blocks, own.blocks);
    EXPECT_EQ(set.logits, own.logits);
  }
}

TEST_F(ForecastTest, WithoutAFileTheOwnQueryChooses) {
  const auto model = Load("llama", false);
  const auto tokens = Prompt(300, 6);
  const auto engine = Make(model, AttentionPolicy::kSparda, "");
  EXPECT_FALSE(engine->stats().forecast);
  EXPECT_EQ(Prefill(*engine, tokens).blocks, Prefill(*Make(model, AttentionPolicy::kSketch, ""), tokens).blocks);
}

TEST_F(ForecastTest, AForecastOfAnotherModelIsRefused) {
  const auto model = Load("llama", false);
  const std::string file = Save(model, testing::RandomForecast(model, SummaryKind::kSketch));
  EngineOptions o;
  o.context_tokens = 512;
  o.attention = Attention(AttentionPolicy::kSparda);
  o.forecast = file;
  const auto refused = Engine::Create(Load("qwen2", false), o);
  ASSERT_FALSE(refused.ok());
  o.attention.block_size = 32;
  EXPECT_FALSE(Engine::Create(model, o).ok()) << "trained for other blocks";
  o.forecast = "/nowhere";
  EXPECT_FALSE(Engine::Create(model, o).ok());
}

}  // namespace
}  // namespace farsight
