// Speculation must never change a text: every drafter, on every kind of model, against plain decoding.
#include <gtest/gtest.h>

#include <random>

#include "engine/testing/requests.h"
#include "engine/testing/tiny_model.h"
#include "farsight/engine.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using testing::Ask;

const std::string kGolden = FARSIGHT_SOURCE_DIR "/training/golden/";

std::shared_ptr<Model> Load(const std::string& path) {
  auto model = Model::Load(path, {.threads = 2});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

// Text that quotes itself, so that lookups find something, with fresh tokens between.
std::vector<int32_t> Quoting(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> phrase, out;
  for (int i = 0; i < 12; ++i) phrase.push_back(static_cast<int32_t>(rng() % 200));
  while (static_cast<int>(out.size()) < n) {
    out.insert(out.end(), phrase.begin(), phrase.end());
    for (int i = 0; i < 5; ++i) out.push_back(static_cast<int32_t>(rng() % 200));
  }
  out.resize(static_cast<size_t>(n));
  return out;
}

struct Outcome {
  std::vector<std::vector<int32_t>> tokens;
  int64_t drafted = 0, accepted = 0;
};

class Speculation : public ::testing::Test {
 protected:
  static EngineOptions Options(Drafting drafting, int draft_max, const std::shared_ptr<Model>& draft) {
    EngineOptions o;
    o.context_tokens = 640;
    o.prefill_chunk = 64;
    o.max_sequences = 3;
    o.drafting = drafting;
    o.draft_max = draft_max;
    o.draft_model = draft;
    return o;
  }

  // Five requests of unequal length, three at a time.
  static Outcome Generate(const std::shared_ptr<Model>& model, const EngineOptions& options,
                          const SamplingParams& sampling) {
    auto made = Engine::Create(model, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    Engine& engine = **made;
    Outcome out;
    out.tokens.resize(5);
    for (int i = 0; i < 5; ++i) {
      Request r = Ask(Quoting(20 + 97 * i, static_cast<uint32_t>(i)), 70 - i);
      r.sampling = sampling;
      r.sampling.seed = static_cast<uint64_t>(40 + i);
      EXPECT_TRUE(engine
                      .Submit(std::move(r),
                              [&out, i](Completion c) {
                                EXPECT_TRUE(c.status.ok()) << c.status.message();
                                out.tokens[static_cast<size_t>(i)] = c.tokens;
                                out.drafted += c.drafted_tokens;
                                out.accepted += c.accepted_tokens;
                                EXPECT_EQ(static_cast<int64_t>(c.tokens.size()), 70 - i);
                              })
                      .ok());
    }
    while (engine.HasWork()) EXPECT_TRUE(engine.Step().ok());
    return out;
  }

  static std::vector<SamplingParams> Samplings() {
    SamplingParams greedy;
    SamplingParams penalised;
    penalised.repetition_penalty = 1.3;
    penalised.penalty_window = 20;
    SamplingParams warm;
    warm.temperature = 0.7;
    SamplingParams hot;
    hot.temperature = 1.5;
    hot.top_p = 0.9;
    hot.top_k = 20;
    hot.min_p = 0.02;
    hot.presence_penalty = 0.5;
    hot.logit_bias.emplace_back(7, 2.0f);
    return {greedy, penalised, warm, hot};
  }

  // Every drafter and length against plain decoding, in the default setting and under `attention`.
  static void ExpectSameText(const std::shared_ptr<Model>& model, const AttentionOptions& attention,
                             const std::string& what) {
    int64_t accepted = 0;
    for (const SamplingParams& sampling : Samplings()) {
      EngineOptions plain = Options(Drafting::kOff, 8, nullptr);
      plain.attention = attention;
      const Outcome wanted = Generate(model, plain, sampling);
      for (const Drafting d : {Drafting::kNgram, Drafting::kSuffix, Drafting::kModel, Drafting::kAuto}) {
        for (const int draft_max : {1, 7, 20, -20}) {  // negative: a tree
          if (draft_max < 0 && d != Drafting::kSuffix && d != Drafting::kModel) continue;
          EngineOptions o = Options(d, std::abs(draft_max), d == Drafting::kModel ? model : nullptr);
          o.attention = attention;
          if (draft_max < 0) o.draft_tree = {3, 2, 2, 1, 1};
          const Outcome got = Generate(model, o, sampling);
          EXPECT_EQ(got.tokens, wanted.tokens)
              << what << ", " << DraftingName(d) << " " << draft_max << ", temperature " << sampling.temperature;
          EXPECT_LE(got.accepted, got.drafted);
          accepted += got.accepted;
        }
      }
    }
    EXPECT_GT(accepted, 100) << what << ": a test of speculation needs guesses that hold";
  }

  testing::TempDir dir_;
};

TEST_F(Speculation, DenseModelsSayTheSame) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    const auto model = Load(dir_.Write(std::string(arch) + ".gguf", testing::TinyModel(arch)));
    ExpectSameText(model, {}, arch);
  }
}

TEST_F(Speculation, SparsePoliciesSayTheSame) {
  const auto model = Load(dir_.Write("llama.gguf", testing::TinyModel("llama")));
  for (const auto policy : {AttentionPolicy::kInfLlm2, AttentionPolicy::kSketch}) {
    ExpectSameText(model,
                   {.policy = policy,
                    .block_size = 16,
                    .top_k_blocks = 5,
                    .local_window = 32,
                    .dense_layers = 1,
                    .kernel_size = 8,
                    .kernel_stride = 4},
                   AttentionPolicyName(policy));
  }
}

TEST_F(Speculation, ModelsTrainedSparseSayTheSame) {
  for (const char* name : {"tiny-nsa", "tiny-nsa-shared", "tiny-nsa-start-bias", "tiny-infllm"}) {
    ExpectSameText(Load(kGolden + name + ".gguf"), {}, name);
  }
}

TEST_F(Speculation, AModelThatDraftsForItselfIsAlwaysRight) {
  const auto model = Load(dir_.Write("llama.gguf", testing::TinyModel("llama")));
  const Outcome got = Generate(model, Options(Drafting::kModel, 6, model), {});
  // Its window is shorter than no text here, so only rounding could part the two, and rows do not depend on batches.
  EXPECT_EQ(got.accepted, got.drafted);
  EXPECT_GT(got.drafted, 250);
}

TEST_F(Speculation, TheCacheAfterwardsIsThatOfTheText) {
  for (const char* name : {"tiny-nsa", "tiny-infllm"}) {
    const auto model = Load(kGolden + name + ".gguf");
    std::mt19937 rng(3);
    EngineOptions o = Options(Drafting::kSuffix, 9, nullptr);
    o.max_sequences = 1;
    auto made = Engine::Create(model, o);
    ASSERT_TRUE(made.ok());
    const std::unique_ptr<Engine> engine = std::move(made).value();
    std::vector<int32_t> text = Quoting(150, 9);
    for (int turn = 0; turn < 12; ++turn) {
      const Request r = Ask(text, 1 + static_cast<int64_t>(rng() % 30));
      const auto warm = engine->Generate(r);
      ASSERT_TRUE(warm.ok());
      if (turn > 0) {
        EXPECT_GT(warm->cached_tokens, 140);
      }
      EngineOptions plain = Options(Drafting::kOff, 1, nullptr);
      plain.max_sequences = 1;
      EXPECT_EQ(warm->tokens, (*Engine::Create(model, plain))->Generate(r)->tokens) << name << " turn " << turn;
      text.insert(text.end(), warm->tokens.begin(), warm->tokens.end());
      text.push_back(static_cast<int32_t>(rng() % 200));
    }
  }
}

TEST_F(Speculation, StopsAndLimitsInsideADraftHold) {
  const auto model = Load(dir_.Write("llama.gguf", testing::TinyModel("llama")));
  Request r = Ask(Quoting(60, 1), 40);
  EngineOptions plain = Options(Drafting::kOff, 1, nullptr);
  const auto whole = (*Engine::Create(model, plain))->Generate(r);
  ASSERT_TRUE(whole.ok());
  for (int n = 1; n <= 12; ++n) {
    EngineOptions o = Options(Drafting::kModel, 8, model);
    auto made = Engine::Create(model, o);
    ASSERT_TRUE(made.ok());
    const std::unique_ptr<Engine> engine = std::move(made).value();
    Request cut = r;
    int seen = 0;
    cut.on_token = [&](const TokenEvent&) { return ++seen < n; };
    const auto got = engine->Generate(cut);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->tokens, std::vector<int32_t>(whole->tokens.begin(), whole->tokens.begin() + n));
    EXPECT_EQ(got->finish_reason, FinishReason::kCancelled);
    Request limited = r;
    limited.max_new_tokens = n;
    EXPECT_EQ(engine->Generate(limited)->tokens.size(), static_cast<size_t>(n));
  }
  // A context that ends inside what would be drafted.
  EngineOptions tight = Options(Drafting::kModel, 8, model);
  tight.context_tokens = 75;
  r.max_new_tokens = -1;
  const auto got = (*Engine::Create(model, tight))->Generate(r);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->finish_reason, FinishReason::kLength);
  EXPECT_EQ(got->tokens, std::vector<int32_t>(whole->tokens.begin(), whole->tokens.begin() + 16));
}

TEST_F(Speculation, OneEngineDraftsInEveryWayInTurn) {
  const auto model = Load(kGolden + "tiny-nsa.gguf");
  EngineOptions options = Options(Drafting::kAuto, 15, nullptr);
  options.max_sequences = 1;
  auto made = Engine::Create(model, options);
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<Engine> engine = std::move(made).value();
  Request r = Ask(Quoting(200, 4), 40);
  ASSERT_TRUE(engine->SetDrafting(Options(Drafting::kOff, 1, nullptr)).ok());
  const auto plain = engine->Generate(r);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->draft_steps, 0);
  for (const Drafting d : {Drafting::kNgram, Drafting::kModel}) {
    for (const int group : {1, 2, 3, 16}) {
      for (const bool breadth_first : {false, true}) {
        EngineOptions o = Options(d, 15, model);
        o.draft_tree = {3, 2, 1};
        o.draft_group = group;
        o.draft_breadth_first = breadth_first;
        ASSERT_TRUE(engine->SetDrafting(o).ok());
        const auto got = engine->Generate(r);
        ASSERT_TRUE(got.ok());
        EXPECT_EQ(got->tokens, plain->tokens) << DraftingName(d) << " group " << group;
        EXPECT_GT(got->cached_tokens, 190) << "the prompt is read once";
        EXPECT_GT(got->draft_steps, 0);
      }
    }
  }
  EXPECT_FALSE(engine->SetDrafting(Options(Drafting::kNgram, 16, nullptr)).ok()) << "longer than there is room for";
  EXPECT_EQ(engine->Generate(r)->tokens, plain->tokens);
  ASSERT_TRUE(engine->Submit(r, [](const Completion&) {}).ok());
  EXPECT_FALSE(engine->SetDrafting(options).ok()) << "a request is under way";
}

TEST_F(Speculation, ADraftModelWithAnotherTokenizerIsRefused) {
  const auto model = Load(dir_.Write("llama.gguf", testing::TinyModel("llama")));
  const auto other = Load(kGolden + "tiny-infllm.gguf");
  const auto engine = Engine::Create(model, Options(Drafting::kModel, 4, other));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("tokens"), std::string::npos);
  EXPECT_FALSE(Engine::Create(model, Options(Drafting::kModel, 4, nullptr)).ok());
}

}  // namespace
}  // namespace farsight
