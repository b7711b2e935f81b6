// The whole engine on tiny random models: pairs of paths that must give the same tokens, and requests that must fail
// well.
#include "farsight/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/testing/requests.h"
#include "engine/testing/tiny_model.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using testing::Ask;
using testing::kKvHeads;
using testing::kVocab;
using testing::Prompt;
using testing::TinyModel;

class EngineTest : public ::testing::Test {
 protected:
  std::shared_ptr<Model> Load(const std::string& arch, ModelOptions options = {.threads = 2}) {
    const std::string path = dir_.Write(arch + ".gguf", TinyModel(arch));
    auto model = Model::Load(path, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return *model;
  }
  static std::unique_ptr<Engine> Make(const std::shared_ptr<Model>& model, EngineOptions o) {
    if (o.context_tokens == 0) o.context_tokens = 1024;
    auto engine = Engine::Create(model, o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(*engine);
  }
  static std::vector<int32_t> Tokens(Engine& engine, std::vector<int32_t> prompt, int64_t n) {
    auto c = engine.Generate(Ask(std::move(prompt), n));
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c->tokens;
  }
  static std::vector<float> Logits(Engine& engine, const std::vector<int32_t>& prompt) {
    Request r = Ask(prompt, 0);
    std::vector<float> out;
    r.on_logits = [&](int64_t, std::span<const float> l) { out.insert(out.end(), l.begin(), l.end()); };
    EXPECT_TRUE(engine.Generate(std::move(r)).ok());
    return out;
  }
  testing::TempDir dir_;
};

TEST_F(EngineTest, EveryFamilyMatchesTheReferenceBackend) {
  for (const char* arch : {"llama", "qwen2", "qwen3", "minicpm"}) {
    auto fast = Make(Load(arch), {.kv_type = KvType::kF32});
    auto slow = Make(Load(arch, {.reference = true}), {.kv_type = KvType::kF32});
    const auto prompt = Prompt(150, 3);
    const auto a = Logits(*fast, prompt);
    const auto b = Logits(*slow, prompt);
    ASSERT_EQ(a.size(), b.size());
    double worst = 0;
    double scale = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
      scale = std::max(scale, std::fabs(static_cast<double>(b[i])));
    }
    EXPECT_LT(worst, 2e-3 * scale) << arch;
  }
}

TEST_F(EngineTest, ChunksOfAnySizeGiveTheSameBits) {
  auto model = Load("llama");
  for (const auto policy : {AttentionPolicy::kDense, AttentionPolicy::kInfLlm2, AttentionPolicy::kSketch}) {
    EngineOptions o;
    o.attention.policy = policy;
    o.attention.phase = SparsePhase::kAll;
    o.attention.top_k_blocks = 4;
    o.attention.local_window = 64;
    o.attention.dense_layers = 1;
    const auto prompt = Prompt(500, 7);
    std::vector<float> whole;
    for (const int chunk : {512, 1, 2, 3, 5, 8, 17}) {
      o.prefill_chunk = chunk;
      const auto logits = Logits(*Make(model, o), prompt);
      if (whole.empty()) whole = logits;
      EXPECT_EQ(logits, whole) << AttentionPolicyName(policy) << " chunk " << chunk;
    }
  }
}

TEST_F(EngineTest, ABudgetOfAllBlocksEqualsDense) {
  auto model = Load("llama");
  const auto prompt = Prompt(600, 5);
  const auto dense = Logits(*Make(model, {}), prompt);
  for (const auto policy : {AttentionPolicy::kInfLlm2, AttentionPolicy::kSketch}) {
    EngineOptions o;
    o.attention = {.policy = policy, .phase = SparsePhase::kAll, .top_k_blocks = 10, .dense_layers = 0};
    EXPECT_EQ(Logits(*Make(model, o), prompt), dense);
    o.attention.top_k_blocks = 3;
    EXPECT_NE(Logits(*Make(model, o), prompt), dense);
  }
}

TEST_F(EngineTest, ABatchOfUnequalSequencesEqualsEachAlone) {
  auto model = Load("qwen2");
  for (const auto policy : {AttentionPolicy::kDense, AttentionPolicy::kSketch}) {
    EngineOptions o;
    o.attention = {.policy = policy, .top_k_blocks = 4, .local_window = 64, .dense_layers = 1};
    const std::vector<int> lengths = {3, 64, 200, 421};
    std::vector<std::vector<int32_t>> alone;
    for (size_t i = 0; i < lengths.size(); ++i) {
      alone.push_back(Tokens(*Make(model, o), Prompt(lengths[i], static_cast<uint32_t>(i)), 40));
    }
    o.max_sequences = 3;  // the fourth waits
    o.prefill_chunk = 50;
    auto engine = Make(model, o);
    std::vector<std::vector<int32_t>> together(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      ASSERT_TRUE(engine
                      ->Submit(Ask(Prompt(lengths[i], static_cast<uint32_t>(i)), 40),
                               [&, i](Completion c) { together[i] = c.tokens; })
                      .ok());
    }
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
    EXPECT_EQ(together, alone);
  }
}

TEST_F(EngineTest, APreemptedSequenceResumesWithTheSameText) {
  auto model = Load("llama");
  EngineOptions o;
  o.context_tokens = 320;
  const auto a = Tokens(*Make(model, o), Prompt(100, 1), 150);
  const auto b = Tokens(*Make(model, o), Prompt(120, 2), 150);
  o.max_sequences = 2;
  o.kv_tokens = 384;  // less than the two need together
  auto engine = Make(model, o);
  std::vector<int32_t> got_a, got_b;
  int preemptions = 0;
  ASSERT_TRUE(engine->Submit(Ask(Prompt(100, 1), 150), [&](Completion c) { got_a = c.tokens; }).ok());
  ASSERT_TRUE(engine
                  ->Submit(Ask(Prompt(120, 2), 150),
                           [&](Completion c) {
                             got_b = c.tokens;
                             preemptions = c.preemptions;
                           })
                  .ok());
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_b, b);
}

TEST_F(EngineTest, ASharedBeginningIsReusedAndChangesNothing) {
  auto model = Load("llama");
  for (const auto policy : {AttentionPolicy::kDense, AttentionPolicy::kInfLlm2, AttentionPolicy::kSketch}) {
    EngineOptions o;
    o.attention = {.policy = policy, .top_k_blocks = 3, .local_window = 64, .dense_layers = 0};
    for (const int shared : {1, 63, 64, 65, 130, 299}) {
      auto prompt = Prompt(300, 9);
      auto other = prompt;
      for (size_t i = static_cast<size_t>(shared); i < other.size(); ++i) other[i] = (other[i] + 1) % 256;
      const auto fresh = Tokens(*Make(model, o), other, 20);
      auto engine = Make(model, o);
      (void)Tokens(*engine, prompt, 5);
      auto c = engine->Generate(Ask(other, 20));
      ASSERT_TRUE(c.ok());
      EXPECT_EQ(c->cached_tokens, shared);
      EXPECT_EQ(c->tokens, fresh) << AttentionPolicyName(policy) << " shared " << shared;
      const int64_t free = engine->stats().blocks_free;
      engine->DropCaches();
      EXPECT_GT(engine->stats().blocks_free, free);
      EXPECT_EQ(engine->stats().blocks_free, engine->stats().blocks_total) << "no block leaks";
    }
  }
}

TEST_F(EngineTest, AfterAChangeOfAttentionOnlyWhatWasReadDenselyIsReused) {
  auto model = Load("llama");
  AttentionOptions sparse{.policy = AttentionPolicy::kSketch, .phase = SparsePhase::kAll};
  sparse.block_size = 16;
  sparse.top_k_blocks = 4;
  sparse.local_window = 32;
  sparse.dense_below = 100;
  AttentionOptions dense = sparse;
  dense.policy = AttentionPolicy::kDense;
  auto engine = Make(model, {.attention = sparse});
  const auto prompt = Prompt(300, 11);
  (void)Tokens(*engine, prompt, 20);
  ASSERT_TRUE(engine->SetAttention(dense).ok());
  const auto c = engine->Generate(Ask(prompt, 20));
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->cached_tokens, 99) << "rows that saw fewer than 100 tokens did not select";
  EXPECT_EQ(c->tokens, Tokens(*Make(model, {.attention = dense}), prompt, 20));
  ASSERT_TRUE(engine->SetAttention(sparse).ok());

  dense.block_size = 32;
  EXPECT_EQ(engine->SetAttention(dense).code(), StatusCode::kInvalidArgument) << "pages have a fixed size";
  ASSERT_TRUE(engine->Submit(Ask(prompt, 1), [](const Completion&) {}).ok());
  dense.block_size = 16;
  EXPECT_EQ(engine->SetAttention(dense).code(), StatusCode::kInvalidArgument) << "a request is under way";
  EXPECT_EQ(engine->stats().attention.policy, AttentionPolicy::kSketch);
}

TEST_F(EngineTest, CancellingOneRequestLeavesTheOthers) {
  auto model = Load("llama");
  EngineOptions o;
  o.max_sequences = 2;
  const auto alone = Tokens(*Make(model, o), Prompt(50, 1), 30);
  auto engine = Make(model, o);
  std::vector<int32_t> kept;
  FinishReason reason = FinishReason::kStop;
  int64_t read = 0;
  ASSERT_TRUE(engine->Submit(Ask(Prompt(50, 1), 30), [&](Completion c) { kept = c.tokens; }).ok());
  auto doomed = engine->Submit(Ask(Prompt(70, 2), 500), [&](const Completion& c) {
    reason = c.finish_reason;
    read = c.read_tokens;
  });
  ASSERT_TRUE(doomed.ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine->Step().ok());
  engine->Cancel(*doomed);
  engine->Cancel(*doomed + 77);
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(reason, FinishReason::kCancelled);
  EXPECT_EQ(read, 70);
  EXPECT_EQ(kept, alone);
}

TEST_F(EngineTest, ACancelledReadingTellsHowFarItCame) {
  const auto engine = Make(Load("llama"), {.prefill_chunk = 16});
  Completion done;
  const auto id = engine->Submit(Ask(Prompt(70, 2), 5), [&](Completion c) { done = std::move(c); });
  ASSERT_TRUE(id.ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine->Step().ok());
  engine->Cancel(*id);
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(done.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(done.read_tokens, 32);
  EXPECT_EQ(done.prompt_tokens, 70);
}

TEST_F(EngineTest, ARequestWhoseLogitsAreNoNumberEndsAlone) {
  constexpr int kBroken = 77;
  auto loaded = Model::Load(dir_.Write("broken.gguf", TinyModel("llama", false, kBroken)), {.threads = 2});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  std::vector<int32_t> good = Prompt(50, 1), bad = Prompt(60, 2);
  std::replace(good.begin(), good.end(), kBroken, kBroken + 1);
  bad.back() = kBroken;
  EngineOptions o;
  o.max_sequences = 2;
  const auto ask = [&](std::vector<int32_t> prompt) {
    Request r = Ask(std::move(prompt), 30);
    r.sampling.logit_bias = {{kBroken, -std::numeric_limits<float>::infinity()}};
    return r;
  };
  const auto alone = Make(*loaded, o)->Generate(ask(good));
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  const auto engine = Make(*loaded, o);
  Completion kept, failed;
  ASSERT_TRUE(engine->Submit(ask(good), [&](Completion c) { kept = std::move(c); }).ok());
  ASSERT_TRUE(engine->Submit(ask(bad), [&](Completion c) { failed = std::move(c); }).ok());
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(failed.finish_reason, FinishReason::kError);
  EXPECT_NE(failed.status.message().find("logit"), std::string::npos) << failed.status.message();
  EXPECT_TRUE(failed.tokens.empty());
  EXPECT_EQ(kept.tokens, alone->tokens);
}

TEST_F(EngineTest, BadRequestsAreRefusedWithBothNumbers) {
  auto model = Load("llama");
  auto engine = Make(model, {.context_tokens = 100});
  const auto refused = [&](Request r) {
    const auto id = engine->Submit(std::move(r), nullptr);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    return id.status().message();
  };
  const std::string too_long = refused(Ask(Prompt(101, 1), 1));
  EXPECT_NE(too_long.find("101"), std::string::npos);
  EXPECT_NE(too_long.find("100"), std::string::npos);
  EXPECT_NE(refused(Ask({}, 1)).find("empty"), std::string::npos);
  for (const int32_t bad : {-1, kVocab, INT32_MAX})
    EXPECT_NE(refused(Ask({bad}, 1)).find("vocabulary"), std::string::npos);
  EXPECT_NE(refused(Ask({1}, -2)).find("max_new_tokens"), std::string::npos);
  Request hot = Ask({1}, 1);
  hot.sampling.temperature = -1;
  EXPECT_NE(refused(std::move(hot)).find("temperature"), std::string::npos);
  EXPECT_FALSE(engine->HasWork());
  EXPECT_EQ(Tokens(*engine, Prompt(99, 1), 1).size(), 1u) << "the engine goes on";
}

TEST_F(EngineTest, TheContextIsFilledAndNeverOverrun) {
  auto model = Load("llama");
  auto engine = Make(model, {.context_tokens = 64});
  for (const int prompt : {1, 63, 64}) {
    for (const int64_t wanted : {int64_t{-1}, int64_t{1} << 40}) {
      auto c = engine->Generate(Ask(Prompt(prompt, 1), wanted));
      ASSERT_TRUE(c.ok());
      EXPECT_EQ(static_cast<int>(c->tokens.size()), 64 - prompt + 1);
      EXPECT_EQ(c->finish_reason, FinishReason::kLength);
    }
  }
  auto none = engine->Generate(Ask(Prompt(10, 1), 0));
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->tokens.empty());
}

TEST_F(EngineTest, AStopStringOverTokenEdgesEndsTheText) {
  auto model = Load("llama");
  auto engine = Make(model, {});
  Request r = Ask(Prompt(20, 4), 60);
  auto whole = engine->Generate(std::move(r));
  ASSERT_TRUE(whole.ok());
  // Bytes are tokens here, so any three ASCII characters of the text cross two token edges.
  size_t at = 0;
  const auto printable = [](char c) { return c >= 32 && c < 127; };
  while (at + 3 < whole->text.size() &&
         !(printable(whole->text[at]) && printable(whole->text[at + 1]) && printable(whole->text[at + 2])))
    ++at;
  ASSERT_LT(at + 3, whole->text.size()) << "the random model wrote no three printable bytes in a row";
  Request again = Ask(Prompt(20, 4), 60);
  again.stop = {whole->text.substr(at, 3)};
  std::string streamed;
  again.on_token = [&](const TokenEvent& e) {
    streamed += e.text;
    return true;
  };
  auto stopped = engine->Generate(std::move(again));
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->text, whole->text.substr(0, whole->text.find(whole->text.substr(at, 3))));
  EXPECT_EQ(streamed, stopped->text);
}

TEST_F(EngineTest, SampledTextDependsOnTheSeedAlone) {
  auto model = Load("llama");
  EngineOptions o;
  o.max_sequences = 3;
  const auto ask = [](uint64_t seed) {
    Request r = Ask(Prompt(30, 6), 40);
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    return r;
  };
  auto one = Make(model, o)->Generate(ask(1));
  auto engine = Make(model, o);
  std::vector<std::vector<int32_t>> got(3);
  for (uint64_t s = 0; s < 3; ++s) {
    ASSERT_TRUE(engine->Submit(ask(s), [&, s](Completion c) { got[s] = c.tokens; }).ok());
  }
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(got[1], one->tokens);
  EXPECT_NE(got[0], got[1]);
}

TEST_F(EngineTest, BlocksReadAreCountedAndTraced) {
  auto model = Load("llama");
  EngineOptions o;
  o.attention = {.policy = AttentionPolicy::kSketch, .top_k_blocks = 4, .local_window = 64, .dense_layers = 1};
  auto engine = Make(model, o);
  Request r = Ask(Prompt(640, 8), 11);
  int64_t traced = 0;
  int rows = 0;
  r.on_blocks = [&](const BlockTrace& t) {
    if (t.layer == 0) {
      EXPECT_TRUE(t.dense);
      ++rows;
      traced += t.visible_blocks * kKvHeads;
      return;
    }
    EXPECT_EQ(t.blocks.size(), static_cast<size_t>(kKvHeads));
    for (const auto& ids : t.blocks) {
      EXPECT_EQ(ids.size(), 4u);
      EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      EXPECT_EQ(ids.back(), t.visible_blocks - 1);
      traced += static_cast<int64_t>(ids.size());
    }
  };
  auto c = engine->Generate(std::move(r));
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(rows, 10) << "the last token is never computed";
  EXPECT_EQ(c->blocks_read, traced);
  EXPECT_LT(c->blocks_read, c->blocks_held);
}

TEST_F(EngineTest, ModelsThatContradictThemselvesAreRefused) {
  const auto message = [&](std::string bytes) {
    return Model::Load(dir_.Write("bad.gguf", bytes), {}).status().message();
  };
  EXPECT_NE(Model::Load(dir_.path() + "/absent.gguf", {}).status().message().find("absent"), std::string::npos);
  EXPECT_NE(Model::Load(dir_.path(), {}).status().message().find("config.json"), std::string::npos);
  EXPECT_NE(message("GGUF").find("ends"), std::string::npos);
  const std::string good = TinyModel("llama");
  EXPECT_NE(message(good.substr(0, good.size() - 4096)).find("shorter"), std::string::npos);
  EXPECT_NE(message(good.substr(0, good.size() - 1)).find("shorter"), std::string::npos);
  testing::GgufWriter mamba;
  mamba.String("general.architecture", "mamba");
  EXPECT_NE(message(mamba.Build()).find("'mamba'"), std::string::npos);
}

}  // namespace
}  // namespace farsight
