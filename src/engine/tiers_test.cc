// An engine whose keys and values lie mostly in a file must give the bits of one that holds them all, whatever the
// budget, the order of the reads and the neighbours, and outlive what a disk does to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "engine/model_impl.h"
#include "engine/profiler.h"
#include "engine/speculator.h"
#include "engine/testing/random_forecast.h"
#include "engine/testing/requests.h"
#include "engine/testing/tiny_model.h"
#include "farsight/engine.h"
#include "io/testing/fake_async_file.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using testing::Ask;
using testing::Prompt;

// A model with options for it; every path of attention is one of these.
struct Case {
  std::string name;
  std::shared_ptr<Model> model;
  EngineOptions options;
};

class TiersTest : public ::testing::Test {
 protected:
  static EngineOptions Options(AttentionPolicy policy, SparsePhase phase) {
    EngineOptions o;
    o.context_tokens = 1600;
    o.prefill_chunk = 48;
    o.attention.policy = policy;
    o.attention.phase = phase;
    o.attention.block_size = 16;
    o.attention.top_k_blocks = 6;
    o.attention.local_window = 32;
    o.attention.dense_layers = policy == AttentionPolicy::kSketch ? 1 : 0;
    o.attention.kernel_size = 8;
    o.attention.kernel_stride = 4;
    return o;
  }

  std::vector<Case> Cases() {
    std::vector<Case> cases;
    const std::string path = dir_.Write("llama.gguf", testing::TinyModel("llama"));
    const auto llama = Model::Load(path, {.threads = 2}).value();
    cases.push_back({"dense", llama, Options(AttentionPolicy::kDense, SparsePhase::kAll)});
    cases.push_back({"pooled", llama, Options(AttentionPolicy::kInfLlm2, SparsePhase::kAll)});
    cases.push_back({"sketch", llama, Options(AttentionPolicy::kSketch, SparsePhase::kDecode)});
    cases.push_back({"infinigen", llama, Options(AttentionPolicy::kInfinigen, SparsePhase::kAll)});
    cases.push_back({"stale", llama, Options(AttentionPolicy::kStale, SparsePhase::kAll)});
    for (const auto keys : {SummaryKind::kPooledKeys, SummaryKind::kSketch}) {
      const bool pooled = keys == SummaryKind::kPooledKeys;
      const std::string file = dir_.Write(pooled ? "pooled.safetensors" : "sketch.safetensors", "");
      const auto forecast = testing::RandomForecast(llama, keys, pooled ? testing::kKvHeads : testing::kHeads);
      EXPECT_TRUE(SaveForecast(file, forecast, llama->impl().config, DType::kF32).ok());
      EngineOptions o = Options(AttentionPolicy::kSparda, pooled ? SparsePhase::kAll : SparsePhase::kDecode);
      o.forecast = file;
      cases.push_back({pooled ? "forecast over windows" : "forecast over sketches", llama, o});
    }
    const auto nosa = Model::Load(dir_.Write("nosa.gguf", testing::TinyModel("nosa")), {.threads = 2}).value();
    EngineOptions with = Options(AttentionPolicy::kModel, SparsePhase::kAll);
    with.forecast = dir_.Write("nosa.safetensors", "");
    const auto forecast = testing::RandomForecast(nosa, SummaryKind::kPooledKeys);
    EXPECT_TRUE(SaveForecast(with.forecast, forecast, nosa->impl().config, DType::kF32).ok());
    for (const auto policy : {AttentionPolicy::kNosa, AttentionPolicy::kSparda}) {
      with.attention = {.policy = policy, .block_size = 16};
      cases.push_back({std::string("nosa model, ") + AttentionPolicyName(policy), nosa, with});
    }
    for (const char* name : {"tiny-nsa", "tiny-nsa-shared", "tiny-infllm"}) {
      const std::string gguf = std::string(FARSIGHT_SOURCE_DIR) + "/training/golden/" + name + ".gguf";
      EngineOptions o;
      o.context_tokens = 700;
      o.prefill_chunk = 100;
      cases.push_back({name, Model::Load(gguf, {.threads = 2}).value(), o});
    }
    return cases;
  }

  static std::unique_ptr<Engine> Make(const Case& c, int64_t memory, bool lookahead = true) {
    EngineOptions o = c.options;
    o.kv_memory = memory;
    o.lookahead = lookahead;
    auto engine = Engine::Create(c.model, o);
    EXPECT_TRUE(engine.ok()) << c.name << ": " << engine.status().message();
    return std::move(engine).value();
  }

  // The least memory that the engine accepts, as it says itself.
  static int64_t Least(const Case& c) {
    EngineOptions o = c.options;
    o.kv_memory = 1;
    const std::string message = Engine::Create(c.model, o).status().message();
    const size_t at = message.find("at least ");
    EXPECT_NE(at, std::string::npos) << message;
    return std::stoll(message.substr(at + 9));
  }

  // Logits of every row, and the tokens of two answers.
  struct Run {
    std::vector<float> logits;
    std::vector<int32_t> tokens;
    bool operator==(const Run&) const = default;
  };
  static Run Generate(Engine& engine, const std::vector<int32_t>& prompt, int64_t n) {
    Run run;
    Request all = Ask(prompt, n);
    all.on_logits = [&](int64_t, std::span<const float> l) { run.logits.insert(run.logits.end(), l.begin(), l.end()); };
    const auto done = engine.Generate(std::move(all));
    EXPECT_TRUE(done.ok()) << done.status().message();
    if (!done.ok()) return run;
    // Another end: its beginning is shared, and the block that they part in is copied on write.
    auto branch = prompt;
    branch.back() ^= 1;
    const auto other = engine.Generate(Ask(branch, 5));
    EXPECT_TRUE(other.ok()) << other.status().message();
    run.tokens = done->tokens;
    if (other.ok()) run.tokens.insert(run.tokens.end(), other->tokens.begin(), other->tokens.end());
    return run;
  }
  static int PromptOf(const Case& c) { return c.options.context_tokens > 1000 ? 1100 : 500; }
  static std::vector<int32_t> TokensFor(const Case& c, int n, uint32_t seed) {
    auto tokens = Prompt(n, seed);
    for (auto& t : tokens) t %= static_cast<int32_t>(c.model->info().vocab);
    return tokens;
  }

  testing::TempDir dir_;
};

TEST_F(TiersTest, EveryPolicyAndBudgetGivesTheResidentBits) {
  for (const Case& c : Cases()) {
    const auto prompt = TokensFor(c, PromptOf(c), 3);
    const Run resident = Generate(*Make(c, 0), prompt, 20);
    const int64_t least = Least(c);
    for (const bool lookahead : {true, false}) {
      for (const int64_t memory : {least, lookahead ? least * 3 / 2 : int64_t{1} << 30}) {
        const auto engine = Make(c, memory, lookahead);
        EXPECT_EQ(Generate(*engine, prompt, 20), resident) << c.name << ", " << memory << ", " << lookahead;
        const EngineStats stats = engine->stats();
        const int64_t holds = stats.kv_memory / 4096 / c.model->info().layers / c.model->info().kv_heads;
        int64_t missed = 0;
        for (const auto& t : stats.kv_tiers) missed += t.missed;
        EXPECT_GE(missed > 0, holds < PromptOf(c) / 16) << c.name << ", " << memory << ", " << lookahead;
        EXPECT_LE(missed > 0, holds < 2 * PromptOf(c) / 16) << c.name << ", " << memory << ", " << lookahead;
      }
    }
  }
}

TEST_F(TiersTest, LateReadsInAnyOrderChangeNothing) {
  for (const Case& c : Cases()) {
    const auto prompt = TokensFor(c, PromptOf(c), 4);
    const Run resident = Generate(*Make(c, 0), prompt, 30);
    const int64_t least = Least(c);
    uint32_t seed = 1;
    c.model->impl().open_kv_file = [&]() -> StatusOr<std::unique_ptr<AsyncFile>> {
      auto file = std::make_unique<testing::FakeAsyncFile>(std::make_shared<testing::FakeDisk>(), seed++);
      file->max_delay = 7;
      return std::unique_ptr<AsyncFile>(std::move(file));
    };
    for (const bool lookahead : {true, false}) {
      EXPECT_EQ(Generate(*Make(c, least * 5 / 4, lookahead), prompt, 30), resident) << c.name << ", " << lookahead;
    }
    c.model->impl().open_kv_file = nullptr;
  }
}

TEST_F(TiersTest, EveryEdgeOfABlockIsPassedWell) {
  for (const Case& c : Cases()) {
    const int block = 16;
    const int64_t least = Least(c);
    for (const int past : {1, 16, 63, 64, 65}) {
      const auto prompt = TokensFor(c, 8 * block + past, static_cast<uint32_t>(past));
      EXPECT_EQ(Make(c, least)->Generate(Ask(prompt, 17)).value().tokens,
                Make(c, 0)->Generate(Ask(prompt, 17)).value().tokens)
          << c.name << " " << past;
    }
  }
}

TEST_F(TiersTest, SequencesThatShareABudgetWriteWhatEachWritesAlone) {
  for (const Case& c : Cases()) {
    const std::vector<int> lengths = {3, 130, 410, 255};
    std::vector<std::vector<int32_t>> alone;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto prompt = TokensFor(c, lengths[i], static_cast<uint32_t>(i));
      alone.push_back(Make(c, 0)->Generate(Ask(prompt, 40)).value().tokens);
    }
    Case shared = c;
    shared.options.max_sequences = 3;  // the fourth waits
    const auto engine = Make(shared, Least(shared));
    std::vector<std::vector<int32_t>> together(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto prompt = TokensFor(c, lengths[i], static_cast<uint32_t>(i));
      ASSERT_TRUE(engine->Submit(Ask(prompt, 40), [&, i](Completion done) { together[i] = done.tokens; }).ok());
    }
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
    EXPECT_EQ(together, alone) << c.name;
  }
}

TEST_F(TiersTest, AResumedSessionGoesOnAsIfNothingHadEnded) {
  int number = 0;
  for (Case& c : Cases()) {
    const auto prompt = TokensFor(c, 150 + number, 5);
    const auto uninterrupted = Make(c, 0);
    c.options.session = dir_.path() + "/session" + std::to_string(number++);
    const int64_t memory = number % 2 == 0 ? Least(c) : 0;
    std::vector<int32_t> got;
    for (int part = 0; part < 3; ++part) {  // each as if by a new process
      auto next = prompt;
      next.insert(next.end(), got.begin(), got.end());
      const auto engine = Make(c, memory);
      const auto done = engine->Generate(Ask(next, 20));
      ASSERT_TRUE(done.ok()) << done.status().message();
      EXPECT_EQ(done->tokens, uninterrupted->Generate(Ask(next, 20)).value().tokens) << c.name << " " << part;
      EXPECT_EQ(done->cached_tokens, got.empty() ? 0 : static_cast<int64_t>(next.size()) - 1) << c.name;
      got.insert(got.end(), done->tokens.begin(), done->tokens.end());
      const Status saved = engine->SaveSession();
      ASSERT_TRUE(saved.ok()) << saved.message();
      EXPECT_EQ(engine->stats().session_tokens, static_cast<int64_t>(next.size()) + 19);
    }
    // Another end: only what is shared is kept.
    auto other = prompt;
    other.back() ^= 1;
    Case fresh = c;
    fresh.options.session = "";
    const auto branched = Make(c, memory)->Generate(Ask(other, 10));
    ASSERT_TRUE(branched.ok());
    EXPECT_EQ(branched->cached_tokens, static_cast<int64_t>(prompt.size()) - 1);
    EXPECT_EQ(branched->tokens, Make(fresh, 0)->Generate(Ask(other, 10)).value().tokens) << c.name;
  }
}

TEST_F(TiersTest, ASessionIsNeverMixedUp) {
  Case c = Cases()[1];
  c.options.session = dir_.path() + "/session";
  const auto refused = [](const Case& bad, const std::string& word) {
    const auto engine = Engine::Create(bad.model, bad.options);
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  {
    const auto engine = Make(c, 0);
    refused(c, "session");  // one writer
    ASSERT_TRUE(engine->Generate(Ask(TokensFor(c, 50, 1), 5)).ok());
    ASSERT_TRUE(engine->SaveSession().ok());
    EXPECT_EQ(engine->stats().session_tokens, 54);
  }
  Case other = c;
  other.options.attention.top_k_blocks = 7;
  refused(other, "top-k blocks 6");
  other = c;
  other.options.attention.kernel_size = 16;
  refused(other, "session");
  other = c;
  other.options.kv_type = KvType::kF32;
  refused(other, "F32");
  other = c;
  other.options.session = dir_.path() + "/llama.gguf";
  refused(other, "llama.gguf");
}

TEST_F(TiersTest, DraftsAreTakenBackAsInMemory) {
  int64_t taken_back = 0;
  for (Case& c : Cases()) {
    auto prompt = TokensFor(c, 60, 9);  // repeats itself, so that there are guesses
    for (int i = 0; i < 2; ++i) prompt.insert(prompt.end(), prompt.begin(), prompt.end());
    const auto plain = Make(c, 0)->Generate(Ask(prompt, 60)).value().tokens;
    c.options.drafting = Drafting::kNgram;
    c.options.draft_max = 20;
    // Pages that guesses left pinned would soon fill the least memory.
    const auto engine = Make(c, Least(c));
    const auto drafted = engine->Generate(Ask(prompt, 60)).value();
    EXPECT_EQ(drafted.tokens, plain) << c.name;
    taken_back += drafted.drafted_tokens - drafted.accepted_tokens;
    // The rows of a draft ask for a page once, together: a guess adds fewer pages than a row by itself asks for.
    c.options.drafting = Drafting::kOff;
    const auto asked = [](const Engine& e) {
      int64_t pages = 0;
      for (const auto& layer : e.stats().kv_tiers) pages += layer.selected;
      return static_cast<double>(pages);
    };
    const auto reading = Make(c, Least(c));
    ASSERT_TRUE(reading->Generate(Ask(prompt, 1)).ok());
    const auto one_by_one = Make(c, Least(c));
    ASSERT_TRUE(one_by_one->Generate(Ask(prompt, 60)).ok());
    if (drafted.drafted_tokens > 0) {
      const double alone = (asked(*one_by_one) - asked(*reading)) / 59;
      const double without = static_cast<double>(drafted.decode_steps) * alone;
      const double added = asked(*engine) - asked(*reading) - without;
      EXPECT_LT(added, 0.2 * alone * static_cast<double>(drafted.drafted_tokens)) << c.name;
    }
  }
  EXPECT_GT(taken_back, 0);
}

// What a draft as a tree keeps is read in memory or from a file alike, down to the logits; what it does not keep is
// gone.
TEST_F(TiersTest, TreesOverAFileWriteWhatIsWrittenInMemory) {
  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<std::pair<int32_t, float>> best;
    bool operator==(const Answer&) const = default;
  };
  const auto ask = [](Engine& engine, const std::vector<int32_t>& prompt, Completion* whole) {
    Answer answer;
    Request request = Ask(prompt, 60);
    request.sampling.top_logprobs = 5;
    const auto done = engine.Generate(std::move(request));
    EXPECT_TRUE(done.ok()) << done.status().message();
    if (!done.ok()) return answer;
    answer.tokens = done->tokens;
    for (const auto& l : done->logprobs) {
      for (const auto& t : l.top) answer.best.emplace_back(t.token, t.logprob);
    }
    *whole = *done;
    return answer;
  };
  int64_t accepted = 0, taken_back = 0;
  int number = 0;
  for (Case& c : Cases()) {
    ++number;
    // What was said after the same text before, in two ways, so that there are guesses and forks of them.
    const auto text = TokensFor(c, 40, 9);
    auto prompt = TokensFor(c, PromptOf(c) - 400, 10);
    const auto said = Make(c, 0)->Generate(Ask(text, 60)).value().tokens;
    for (int i = 0; i < 4; ++i) {
      prompt.insert(prompt.end(), text.begin(), text.end());
      if (i < 3) prompt.insert(prompt.end(), said.begin(), said.begin() + 60);
      if (i < 3) prompt.back() = prompt[prompt.size() - 31 + static_cast<size_t>(i) * 10] = i + 1;
    }
    Completion done;
    const Answer plain = ask(*Make(c, 0), prompt, &done);
    c.options.drafting = number % 2 == 0 ? Drafting::kSuffix : Drafting::kNgram;
    c.options.draft_tree = {3, 2, 1, 1};
    c.options.draft_max = 12;
    uint32_t seed = 1;
    c.model->impl().open_kv_file = [&]() -> StatusOr<std::unique_ptr<AsyncFile>> {
      auto file = std::make_unique<testing::FakeAsyncFile>(std::make_shared<testing::FakeDisk>(), seed++);
      file->max_delay = 7;
      return std::unique_ptr<AsyncFile>(std::move(file));
    };
    const int64_t least = Least(c);
    for (const bool lookahead : {true, false}) {
      c.options.draft_breadth_first = !lookahead;
      for (const int64_t memory : {least, least * 5 / 4}) {
        const auto engine = Make(c, memory, lookahead);
        EXPECT_EQ(ask(*engine, prompt, &done), plain) << c.name << ", " << memory << ", " << lookahead;
        accepted += done.accepted_tokens;
        taken_back += done.drafted_tokens - done.accepted_tokens;
        // From what the other left, shared up to where they part.
        auto branch = prompt;
        branch[branch.size() - 5] ^= 1;
        const Answer other = ask(*engine, branch, &done);
        EXPECT_GT(done.cached_tokens, 0) << c.name;
        Case resident = c;
        resident.options.drafting = Drafting::kOff;
        resident.options.draft_tree = {};
        EXPECT_EQ(other, ask(*Make(resident, 0), branch, &done)) << c.name;
      }
    }
    c.model->impl().open_kv_file = nullptr;
    // Written behind into a session, from which another goes on.
    c.options.session = dir_.path() + "/trees" + std::to_string(number);
    for (int part = 0; part < 2; ++part) {
      const auto engine = Make(c, part == 0 ? least : 0);
      EXPECT_EQ(ask(*engine, prompt, &done), plain) << c.name << ", " << part;
      EXPECT_EQ(done.cached_tokens > 0, part > 0) << c.name;
      ASSERT_TRUE(engine->SaveSession().ok()) << c.name;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(taken_back, 0);
}

TEST_F(TiersTest, SequencesWithTreesShareABudget) {
  for (Case& c : Cases()) {
    c.options.max_sequences = 3;
    std::vector<std::vector<int32_t>> prompts, alone, together(4);
    for (int i = 0; i < 4; ++i) {
      auto prompt = TokensFor(c, 30 + 5 * i, static_cast<uint32_t>(i));
      while (prompt.size() < 300) prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 30);
      alone.push_back(Make(c, 0)->Generate(Ask(prompt, 40)).value().tokens);
      prompts.push_back(std::move(prompt));
    }
    c.options.drafting = Drafting::kNgram;
    c.options.draft_tree = {2, 2, 1};
    c.options.draft_max = 8;
    const auto engine = Make(c, Least(c));
    for (size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(engine->Submit(Ask(prompts[i], 40), [&, i](Completion done) { together[i] = done.tokens; }).ok());
    }
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
    EXPECT_EQ(together, alone) << c.name;
  }
}

TEST_F(TiersTest, TreesAreTakenWhereMemoryDoes) {
  Case c = Cases()[1];
  c.options.drafting = Drafting::kNgram;
  c.options.draft_max = 15;
  const int64_t chains = Least(c);
  Case trees = c;
  trees.options.draft_tree = {3, 2, 1};
  EXPECT_GT(Least(trees), chains);
  trees.options.kv_memory = chains;
  const auto refused = Engine::Create(trees.model, trees.options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("trees; chains need less"), std::string::npos)
      << refused.status().message();
  // The planner has those that fit.
  c.options.drafting = Drafting::kAuto;
  c.options.max_sequences = 2;
  const auto forks = [&](int64_t blocks) {
    std::set<std::vector<int>> widths;
    const auto speculator = Speculator::Create(c.options, *c.model, blocks).value();
    for (const Strategy& s : speculator->menu()) {
      if (s.drafts() && !s.shape.is_chain()) widths.insert(s.shape.widths);
    }
    return widths;
  };
  const std::set<std::vector<int>> narrow = {{2, 2, 1, 1}}, both = {{2, 2, 1, 1}, {3, 2, 2, 1, 1}};
  const int64_t needed = int64_t{2} * ForkBlocks({{2, 2, 1, 1}, 7}, 16);
  EXPECT_TRUE(forks(needed - 1).empty());
  EXPECT_EQ(forks(needed), narrow);
  EXPECT_EQ(forks(std::numeric_limits<int64_t>::max()), both);
}

// Approximate steps, and those that run exactly as well to be measured, which write their rows twice.
TEST_F(TiersTest, ApproximateDraftsAreThoseInMemory) {
  int64_t measured = 0;
  for (Case& c : Cases()) {
    if (c.options.attention.policy == AttentionPolicy::kDense || !c.options.forecast.empty()) continue;
    const auto said = Make(c, 0)->Generate(Ask(TokensFor(c, 40, 9), 60)).value().tokens;
    auto prompt = TokensFor(c, PromptOf(c) - 200, 10);
    for (int i = 0; i < 2; ++i) prompt.insert(prompt.end(), said.begin(), said.begin() + 60);
    prompt.insert(prompt.end(), said.begin(), said.begin() + 10);
    for (const bool trees : {false, true}) {
      QualityRecord record;
      record.mode.group = 4;
      record.mode.shared_list = true;
      record.mode.refresh.assign(static_cast<size_t>(c.model->info().layers), 0);
      record.mode.refresh[0] = 1;
      record.tokens = 512;
      c.options.precision = PrecisionClass::kSharedReuse;
      c.options.drafting = Drafting::kNgram;
      c.options.draft_max = 12;
      c.options.draft_tree = trees ? std::vector<int>{2, 2, 1, 1} : std::vector<int>();
      c.options.profile = dir_.path() + "/profile.json";
      Profile profile;
      profile.of = ProfileFingerprint(*c.model, c.options).value();
      profile.quality = {record};
      ASSERT_TRUE(WriteProfile(c.options.profile, profile).ok());
      const auto ask = [&](int64_t memory, bool lookahead) {
        const auto engine = Make(c, memory, lookahead);
        auto tokens = engine->Generate(Ask(prompt, 100)).value().tokens;
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.profile_fault, "") << c.name;
        measured += stats.approximation.rows;
        return std::make_tuple(std::move(tokens), stats.approximation.rows, stats.approximation.kl_mean);
      };
      const auto resident = ask(0, true);
      const int64_t least = Least(c);
      EXPECT_EQ(ask(least, true), resident) << c.name;
      EXPECT_EQ(ask(least * 5 / 4, false), resident) << c.name;
      // The first such step is measured; in one of these it fills a block.
      for (int past = 0; past < 16 && c.name == "tiny-nsa-shared"; ++past) {
        prompt.erase(prompt.begin());
        const auto over = ask(least, true);
        EXPECT_EQ(over, ask(0, true)) << c.name << ", " << past;
      }
    }
  }
  EXPECT_GT(measured, 0);
}

TEST_F(TiersTest, ABrokenPageFailsItsRequestAlone) {
  Case c = Cases()[0];
  c.options.max_sequences = 2;
  c.options.attention.block_size = 64;
  c.options.prefill_chunk = 100;
  const auto good = TokensFor(c, 300, 1);
  const auto wanted = Make(c, 0)->Generate(Ask(good, 20)).value().tokens;
  auto disk = std::make_shared<testing::FakeDisk>();
  bool broken = false;
  c.model->impl().open_kv_file = [&]() -> StatusOr<std::unique_ptr<AsyncFile>> {
    auto file = std::make_unique<testing::FakeAsyncFile>(disk);
    file->fault = [&broken](IoKind kind, const IoPiece& piece) {
      const bool hit = broken && kind == IoKind::kRead && piece.offset < 16 * 6 * kIoAlignment;
      return hit ? DataLoss("the disk cannot be read") : OkStatus();
    };
    return std::unique_ptr<AsyncFile>(std::move(file));
  };
  const auto engine = Make(c, Least(c) * 2 / 3, false);  // without lookahead it needs less
  Status status;
  std::vector<int32_t> got;
  // The first sequence has the first group of the file.
  ASSERT_TRUE(engine->Submit(Ask(TokensFor(c, 1400, 2), 150), [&](Completion done) { status = done.status; }).ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(engine->Step().ok());
  ASSERT_TRUE(engine->Submit(Ask(good, 20), [&](Completion done) { got = done.tokens; }).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step().ok());
  broken = true;
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
  EXPECT_EQ(got, wanted);
  c.model->impl().open_kv_file = nullptr;
}

TEST_F(TiersTest, AFullDiskEndsWhatDoesNotFitAndNothingElse) {
  Case c = Cases()[1];
  c.options.max_sequences = 2;
  const auto small = TokensFor(c, 200, 1);
  const auto wanted = Make(c, 0)->Generate(Ask(small, 20)).value().tokens;
  c.model->impl().open_kv_file = [&]() -> StatusOr<std::unique_ptr<AsyncFile>> {
    auto file = std::make_unique<testing::FakeAsyncFile>();
    file->capacity = uint64_t{48} * 6 * kIoAlignment;  // 48 blocks
    return std::unique_ptr<AsyncFile>(std::move(file));
  };
  const auto engine = Make(c, Least(c));
  std::vector<Completion> done(2);
  ASSERT_TRUE(engine->Submit(Ask(TokensFor(c, 1200, 2), 9), [&](Completion d) { done[0] = std::move(d); }).ok());
  ASSERT_TRUE(engine->Submit(Ask(small, 20), [&](Completion d) { done[1] = std::move(d); }).ok());
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(done[0].status.code(), StatusCode::kResourceExhausted) << done[0].status.message();
  EXPECT_EQ(done[1].tokens, wanted) << done[1].status.message();
  EXPECT_EQ(engine->Generate(Ask(small, 20)).value().tokens, wanted) << "the engine goes on";
  c.model->impl().open_kv_file = nullptr;
}

}  // namespace
}  // namespace farsight
