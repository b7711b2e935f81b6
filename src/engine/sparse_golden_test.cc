// The block-sparse architectures against values that the trainer's f32 reference computed (training/golden.py): logits
// and block lists of tiny models of every variant, and of the shipped nsa-35m and infllm-32m.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/testing/requests.h"
#include "farsight/engine.h"

namespace farsight {
namespace {

using Json = nlohmann::json;

const std::string kRoot = FARSIGHT_SOURCE_DIR;

using Outcome = testing::PrefillOutcome;
using testing::Ask;
using testing::Prefill;

Json Golden(const std::string& name) {
  std::ifstream in(kRoot + "/training/golden/" + name + ".json");
  return Json::parse(in);
}

std::shared_ptr<Model> Load(const std::string& path, bool reference, const std::string& isa = "best") {
  auto model = Model::Load(path, {.threads = 2, .isa = isa, .reference = reference});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

std::unique_ptr<Engine> MakeEngine(const std::shared_ptr<Model>& model, int chunk, int64_t context, KvType kv) {
  EngineOptions o;
  o.context_tokens = context;
  o.prefill_chunk = chunk;
  o.kv_type = kv;
  auto engine = Engine::Create(model, o);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

class TinySparse : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(TinySparse, LogitsAndListsAreTheTrainersReference) {
  const auto& [name, reference] = GetParam();
  const auto model = Load(kRoot + "/training/golden/" + name + ".gguf", reference);
  const auto engine = MakeEngine(model, 64, 1024, KvType::kF32);
  for (const Json& c : Golden(name)["cases"]) {
    const auto tokens = c["tokens"].get<std::vector<int32_t>>();
    const auto positions = c["positions"].get<std::vector<int64_t>>();
    const Outcome run = Prefill(*engine, tokens);
    double worst = 0, scale = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto wanted = c["logits"][i].get<std::vector<float>>();
      const auto& got = run.logits.at(positions[i]);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t j = 0; j < wanted.size(); ++j) {
        worst = std::max<double>(worst, std::fabs(got[j] - wanted[j]));
        scale = std::max<double>(scale, std::fabs(wanted[j]));
      }
      for (size_t l = 0; l < c["blocks"].size(); ++l) {
        const auto lists = c["blocks"][l][i].get<std::vector<std::vector<int32_t>>>();
        EXPECT_EQ(run.blocks.at({positions[i], static_cast<int>(l)}), lists)
            << tokens.size() << " tokens, position " << positions[i] << ", layer " << l;
      }
    }
    // The golden file holds four decimals; the fast backend's products are f32.
    EXPECT_LT(worst, reference ? 2e-4 * scale : 1e-3 * scale) << tokens.size() << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TinySparse,
                         ::testing::Combine(::testing::Values("tiny-nsa", "tiny-nsa-shared", "tiny-nsa-start-bias",
                                                              "tiny-infllm", "tiny-infllm-roped"),
                                            ::testing::Bool()),
                         [](const auto& param) {
                           std::string s = std::get<0>(param.param);
                           std::replace(s.begin(), s.end(), '-', '_');
                           return s + (std::get<1>(param.param) ? "_reference" : "_fast");
                         });

std::vector<int32_t> Tokens(const char* name) {
  return Golden(name)["cases"].back()["tokens"].get<std::vector<int32_t>>();
}

TEST(SparsePaths, ChunksOfAnySizeGiveTheSameBitsAndLists) {
  for (const char* name : {"tiny-nsa", "tiny-nsa-shared", "tiny-nsa-start-bias", "tiny-infllm"}) {
    const auto tokens = Tokens(name);
    for (const char* isa : {"scalar", "best"}) {
      const auto model = Load(kRoot + "/training/golden/" + std::string(name) + ".gguf", false, isa);
      const Outcome whole = Prefill(*MakeEngine(model, 64, 1024, KvType::kF16), tokens);
      for (const int chunk : {1, 2, 3, 5, 8, 17}) {
        const Outcome run = Prefill(*MakeEngine(model, chunk, 1024, KvType::kF16), tokens);
        EXPECT_EQ(run.logits, whole.logits) << name << " chunk " << chunk;
        EXPECT_EQ(run.blocks, whole.blocks) << name << " chunk " << chunk;
      }
    }
  }
}

TEST(SparsePaths, ACacheCutAnywhereGoesOnAsIfFresh) {
  for (const char* name : {"tiny-nsa", "tiny-nsa-start-bias", "tiny-infllm"}) {
    const auto tokens = Tokens(name);
    const auto model = Load(kRoot + "/training/golden/" + std::string(name) + ".gguf", false);
    const auto generate = [&](Engine& engine, std::span<const int32_t> prompt) {
      return *engine.Generate(Ask({prompt.begin(), prompt.end()}, 40));
    };
    const auto reused = MakeEngine(model, 128, 1024, KvType::kF16);
    for (const int shared : {1, 15, 16, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 200, 400, 699}) {
      // The same beginning, then other tokens: the cache is forked inside a window, a block, a copy-on-write page.
      std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + shared);
      for (int i = 0; i < 20; ++i) prompt.push_back(tokens[static_cast<size_t>((i * 37 + shared) % 600)]);
      (void)generate(*reused, tokens);
      const auto warm = generate(*reused, prompt);
      const auto fresh = generate(*MakeEngine(model, 128, 1024, KvType::kF16), prompt);
      EXPECT_GE(warm.cached_tokens, shared);
      EXPECT_EQ(warm.tokens, fresh.tokens) << name << " shared " << shared;
    }
  }
}

TEST(SparsePaths, SeveralSequencesAreEachAsAlone) {
  const auto model = Load(kRoot + "/training/golden/tiny-nsa.gguf", false);
  const auto tokens = Tokens("tiny-nsa");
  EngineOptions o;
  o.context_tokens = 1024;
  o.prefill_chunk = 48;
  o.max_sequences = 3;
  auto made = Engine::Create(model, o);
  ASSERT_TRUE(made.ok());
  const auto engine = std::move(*made);
  std::vector<std::vector<int32_t>> together(5);
  const auto request = [&](int i) { return Ask({tokens.begin() + i, tokens.begin() + 30 + 120 * i}, 25); };
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(engine->Submit(request(i), [&, i](Completion c) { together[static_cast<size_t>(i)] = c.tokens; }).ok());
  }
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  for (int i = 0; i < 5; ++i) {
    const auto alone = MakeEngine(model, 512, 1024, KvType::kF16)->Generate(request(i));
    EXPECT_EQ(together[static_cast<size_t>(i)], alone->tokens) << i;
  }
}

// Shipped models, whose weights are Q8_0: the reference multiplies them as they are, the fast backend by 8-bit
// activations. Logits stay within `tolerance`; of the lists that rounding cannot decide (a clear margin between the
// last block chosen and the first left out) the reference has every block, the fast backend at least nine in ten.
void ExpectShipped(const std::string& name, bool reference, size_t first_case, size_t last_case, double tolerance) {
  const auto model = Load(kRoot + "/models/" + name + ".gguf", reference);
  const auto engine = MakeEngine(model, 256, 8192, KvType::kF32);
  const Json golden = Golden(name);
  for (size_t k = first_case; k <= last_case; ++k) {
    const Json& c = golden["cases"][k];
    const Outcome run = Prefill(*engine, c["tokens"].get<std::vector<int32_t>>());
    const auto positions = c["positions"].get<std::vector<int64_t>>();
    size_t same = 0, all = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto ids = c["top"][i].get<std::vector<int>>();
      const auto wanted = c["logits"][i].get<std::vector<float>>();
      for (size_t j = 0; j < ids.size(); ++j) {
        EXPECT_NEAR(run.logits.at(positions[i])[static_cast<size_t>(ids[j])], wanted[j], tolerance)
            << name << " position " << positions[i];
      }
      for (size_t l = 0; l < c["blocks"].size(); ++l) {
        const auto lists = c["blocks"][l][i].get<std::vector<std::vector<int32_t>>>();
        const auto& got = run.blocks.at({positions[i], static_cast<int>(l)});
        ASSERT_EQ(got.size(), lists.size());
        for (size_t h = 0; h < lists.size(); ++h) {
          if (c["margins"][l][i][h].get<double>() < 1e-3) continue;
          for (const int32_t b : lists[h]) same += std::count(got[h].begin(), got[h].end(), b) > 0 ? 1 : 0;
          all += lists[h].size();
        }
      }
    }
    EXPECT_GT(all, 0u);
    EXPECT_GE(static_cast<double>(same), (reference ? 1.0 : 0.9) * static_cast<double>(all)) << name;
  }
}

TEST(Shipped, ReferenceIsTheTrainersReference) {
  for (const char* name : {"nsa-35m", "infllm-32m"}) ExpectShipped(name, true, 0, 0, 5e-3);
}
TEST(Shipped, FastBackendStaysClose) {
  for (const char* name : {"nsa-35m", "infllm-32m"}) ExpectShipped(name, false, 0, 2, 0.5);
}
// Logits and lists of the first `length` of 2,048 held-out tokens (both models have one tokenizer), read in chunks.
void ExpectChunksAgree(const std::string& name, size_t length, const std::vector<int>& chunks) {
  const auto model = Load(kRoot + "/models/" + name + ".gguf", false);
  auto tokens = Golden("nsa-35m")["cases"][1]["tokens"].get<std::vector<int32_t>>();
  tokens.resize(length);
  const Outcome whole = Prefill(*MakeEngine(model, 64, 2048, KvType::kF16), tokens);
  for (const int chunk : chunks) {
    const Outcome run = Prefill(*MakeEngine(model, chunk, 2048, KvType::kF16), tokens);
    EXPECT_TRUE(run.logits == whole.logits) << name << " chunk " << chunk;
    EXPECT_TRUE(run.blocks == whole.blocks) << name << " chunk " << chunk;
  }
}
TEST(Shipped, ChunksGiveTheSameBitsAndLists) { ExpectChunksAgree("nsa-35m", 704, {3, 17}); }
TEST(Shipped, DISABLED_ChunksOfAnySizeGiveTheSameBitsAndLists) {
  for (const char* name : {"nsa-35m", "infllm-32m"}) ExpectChunksAgree(name, 2048, {1, 2, 3, 5, 8, 17});
}
// Too long for every run; --gtest_also_run_disabled_tests. In double 2,048 tokens take minutes, 8,192 many.
TEST(Shipped, DISABLED_ReferenceIsTheTrainersReferenceAt2048) {
  for (const char* name : {"nsa-35m", "infllm-32m"}) ExpectShipped(name, true, 1, 1, 5e-3);
}
TEST(Shipped, DISABLED_ReferenceIsTheTrainersReferenceAt8192) {
  for (const char* name : {"nsa-35m", "infllm-32m"}) ExpectShipped(name, true, 2, 2, 5e-3);
}

TEST(NsaPolicy, OtherPoliciesAreRefusedByName) {
  const auto nsa = Load(kRoot + "/training/golden/tiny-nsa.gguf", false);
  EngineOptions o;
  o.attention.policy = AttentionPolicy::kSketch;
  const auto sketch = Engine::Create(nsa, o);
  ASSERT_FALSE(sketch.ok());
  EXPECT_NE(sketch.status().message().find("sketch"), std::string::npos);
  const auto infllm = Load(kRoot + "/training/golden/tiny-infllm.gguf", false);
  o.attention.policy = AttentionPolicy::kNsa;
  EXPECT_FALSE(Engine::Create(infllm, o).ok());
}

}  // namespace
}  // namespace farsight
