// Prompts, grids and likelihood on a tiny random model with a byte vocabulary: a token is a character.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/testing/random_forecast.h"
#include "engine/testing/tiny_model.h"
#include "eval/likelihood.h"
#include "eval/report.h"
#include "io/testing/temp_dir.h"

namespace farsight::eval {
namespace {

using ::testing::HasSubstr;

class EvalTest : public ::testing::Test {
 protected:
  EvalTest() : model_(Load()), hay_(*Haystack::Make(*model_, std::vector<std::string>{std::string(BuiltInText())})) {}

  std::shared_ptr<Model> Load() {
    auto model = Model::Load(dir_.Write("tiny.gguf", farsight::testing::TinyModel("llama")), {.threads = 1});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return *model;
  }
  PromptWriter Writer(Form form = Form::kCompletion) { return PromptWriter(*model_, hay_, form); }
  static TaskSpec Spec(Task task, int64_t axis, int64_t length = 1200) {
    TaskSpec spec;
    spec.task = task;
    spec.axis = axis;
    spec.length = length;
    return spec;
  }
  Sample Make(const TaskSpec& spec) {
    auto sample = MakeSample(Writer(), spec);
    EXPECT_TRUE(sample.ok()) << sample.status().message();
    return sample.ok() ? *sample : Sample(1);
  }
  std::string Text(const Query& q) { return model_->Detokenize(q.prompt); }
  PolicyEngines Engines(const std::vector<AttentionPolicy>& policies, const std::vector<int>& budgets,
                        int64_t context = 1200) {
    AttentionOptions base;
    base.block_size = 16;
    base.kernel_size = 16;
    base.kernel_stride = 16;
    base.local_window = 32;
    base.dense_layers = 0;
    EngineOptions options;
    options.context_tokens = context;
    auto engines = PolicyEngines::Make(model_, *MakeVariants(policies, budgets, {}, base), options);
    EXPECT_TRUE(engines.ok()) << engines.status().message();
    return std::move(*engines);
  }

  farsight::testing::TempDir dir_;
  std::shared_ptr<Model> model_;
  Haystack hay_;
};

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_F(EvalTest, ANeedleLiesAtItsDepthInAPromptOfTheLength) {
  for (const int64_t depth : {0, 25, 90, 100}) {
    const Sample sample = Make(Spec(Task::kNeedle, depth));
    ASSERT_EQ(sample.size(), 1u);
    EXPECT_EQ(sample[0].prompt.size(), 1160u) << "room for the answer is left";
    const std::string text = Text(sample[0]);
    const size_t at = text.find("\nThe code for");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(Count(text, sample[0].expected), 1u);
    EXPECT_EQ(sample[0].expected.size(), 7u);
    const std::string statement = text.substr(at, text.find(" is ", at) + 4 - at);
    EXPECT_TRUE(text.ends_with(statement)) << "the statement's own words are asked for again";
    const auto hay = static_cast<double>(1160 - 2 * statement.size() - 9);
    EXPECT_NEAR(static_cast<double>(at), hay * static_cast<double>(depth) / 100, 2);
  }
}

TEST_F(EvalTest, SamplesDependOnTheirSpecAlone) {
  TaskSpec spec = Spec(Task::kNeedle, 50);
  const Sample first = Make(spec);
  EXPECT_EQ(Make(spec)[0].prompt, first[0].prompt);
  spec.sample = 1;
  EXPECT_NE(Make(spec)[0].expected, first[0].expected);
  spec.sample = 0;
  spec.seed = 2;
  EXPECT_NE(Make(spec)[0].expected, first[0].expected);
}

TEST_F(EvalTest, DepthsOfASampleShareTheBeginningOfTheirHay) {
  const auto deep = Make(Spec(Task::kNeedle, 90))[0].prompt;
  const auto shallow = Make(Spec(Task::kNeedle, 50))[0].prompt;
  const auto split = std::mismatch(deep.begin(), deep.end(), shallow.begin()).first - deep.begin();
  EXPECT_GT(split, 450);
  EXPECT_LT(split, 600);
}

TEST_F(EvalTest, QuestionsNeedAChatTemplate) {
  const auto sample = MakeSample(Writer(Form::kQuestion), Spec(Task::kNeedle, 50));
  EXPECT_FALSE(sample.ok());
}

TEST_F(EvalTest, TooShortAPromptIsRefusedWithBothNumbers) {
  const auto sample = MakeSample(Writer(), Spec(Task::kNeedle, 50, 60));
  ASSERT_FALSE(sample.ok());
  EXPECT_THAT(sample.status().message(), HasSubstr("20 tokens"));
  EXPECT_FALSE(MakeSample(Writer(), Spec(Task::kNeedle, 50, 10)).ok());
  EXPECT_FALSE(MakeSample(Writer(), Spec(Task::kMultiKey, 0)).ok());
}

TEST_F(EvalTest, SimilarKeysDifferAndOneIsAskedFor) {
  const Sample sample = Make(Spec(Task::kMultiKey, 5));
  const std::string text = Text(sample[0]);
  EXPECT_EQ(Count(text, "\nThe code for"), 6u);
  EXPECT_EQ(Count(text, sample[0].expected), 1u);
  const std::string asked = text.substr(text.rfind("\nThe code for"));
  EXPECT_EQ(Count(text, asked + sample[0].expected + ".\n"), 1u);
  EXPECT_EQ(Count(text, asked), 2u) << "no other statement has the same key";
}

TEST_F(EvalTest, EveryNeedleIsAskedForAfterTheAnswersBefore) {
  const Sample sample = Make(Spec(Task::kMultiNeedle, 3));
  ASSERT_EQ(sample.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const std::string text = Text(sample[i]);
    EXPECT_LE(sample[i].prompt.size(), 1160u);
    EXPECT_EQ(Count(text, sample[i].expected), 1u);
    if (i == 0) continue;
    EXPECT_EQ(Count(text, sample[i - 1].expected), 2u) << "the answer before is given";
    const std::string before = Text(sample[i - 1]);
    EXPECT_EQ(text.substr(0, before.size()), before) << "so that a cache serves all questions";
  }
}

TEST_F(EvalTest, FollowingTheAssignmentsGivesTheValue) {
  for (const int64_t hops : {0, 1, 3}) {
    const Sample sample = Make(Spec(Task::kVarTrack, hops));
    const std::string text = Text(sample[0]);
    const size_t ask = text.rfind("\nprint(");
    ASSERT_NE(ask, std::string::npos);
    std::string name = text.substr(ask + 7, text.find(')', ask) - ask - 7);
    int64_t steps = 0;
    for (;; ++steps) {
      const size_t at = text.find("\n" + name + " = ");
      ASSERT_NE(at, std::string::npos);
      const size_t begin = at + name.size() + 4;
      name = text.substr(begin, text.find('\n', begin) - begin);
      if (name[0] == '\'') break;
    }
    EXPECT_EQ(name, "'" + sample[0].expected + "'");
    EXPECT_EQ(steps, hops);
    EXPECT_EQ(Count(text, " = '"), 2u) << "another chain leads astray";
  }
}

TEST_F(EvalTest, ACopyComesAfterItsGap) {
  const Sample sample = Make(Spec(Task::kCopy, 300, 0));  // its length is that of the gap
  const std::string text = Text(sample[0]);
  const size_t end = text.find('\n', 1);
  EXPECT_EQ(text[0], '\n');
  const std::string line = text.substr(1, end - 1);
  const std::string first = line.substr(0, line.find(' '));
  EXPECT_EQ(line, first + " " + sample[0].expected);
  EXPECT_TRUE(text.ends_with("\n" + first));
  EXPECT_EQ(text.size() - end - 1, 300 + 1 + first.size());
}

TEST_F(EvalTest, AGridCountsEverySampleUnderEveryPolicy) {
  Grid grid;
  grid.lengths = {300, 400};
  grid.axis = {25, 75};
  grid.samples = 2;
  auto engines = Engines({AttentionPolicy::kDense, AttentionPolicy::kSketch, AttentionPolicy::kInfLlm2}, {4, 1000});
  int64_t last = 0;
  const auto cells = RunGrid(*model_, hay_, grid, engines, {[&last](int64_t done, int64_t) { last = done; }, {}});
  ASSERT_TRUE(cells.ok()) << cells.status().message();
  ASSERT_EQ(cells->size(), 2u * 2u * 5u);
  EXPECT_EQ(last, 40);
  for (const Cell& c : *cells) {
    EXPECT_EQ(c.n, 2);
    EXPECT_GT(c.blocks_held, 0);
    const bool all = engines.variant(c.variant).blocks != 4;
    EXPECT_EQ(c.blocks_read == c.blocks_held, all);
  }
  EXPECT_THAT(PrintGrid(grid, engines, *cells, "tiny", Format::kMarkdown),
              HasSubstr("| sketch 4 bits 4 blocks | 400 | 4 |"));
  EXPECT_THAT(PrintGrid(grid, engines, *cells, "tiny", Format::kCsv),
              HasSubstr("tiny,needle,completion,1,infllm2,4,0,300,25,2,"));
}

TEST_F(EvalTest, AStoppedGridKeepsWholeSamplesOnly) {
  Grid grid;
  grid.lengths = {300};
  grid.axis = {25, 75};
  grid.samples = 1;
  auto engines = Engines({AttentionPolicy::kDense}, {});
  int looked = 0;
  const auto cells = RunGrid(*model_, hay_, grid, engines, {{}, [&looked] { return ++looked > 3; }});
  ASSERT_TRUE(cells.ok()) << cells.status().message();
  EXPECT_EQ((*cells)[0].n, 0);
  EXPECT_EQ((*cells)[1].n, 0) << "the answer was not finished";
}

// Answers and the logits of given rows.
struct Seen {
  std::vector<int32_t> answer;
  std::vector<float> logits;
  bool operator==(const Seen&) const = default;
};

TEST_F(EvalTest, PoliciesAnswerAsEnginesOfTheirOwnDo) {
  auto together = Engines({AttentionPolicy::kDense, AttentionPolicy::kSketch, AttentionPolicy::kInfLlm2}, {4, 6});
  const std::vector<int32_t> prompt = hay_.Slice(100, 700);
  const auto look = [&prompt](Engine& engine, int64_t* cached) {
    Request r;
    r.prompt = prompt;
    r.max_new_tokens = 40;
    r.ignore_eos = true;
    auto c = engine.Generate(std::move(r));
    EXPECT_TRUE(c.ok()) << c.status().message();
    auto logits = TailLogits(engine, prompt, 650);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    *cached = c->cached_tokens;
    return Seen{c->tokens, *logits};
  };
  std::map<std::string, Seen> alone;
  int64_t cached = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    EngineOptions options;
    options.context_tokens = 1200;
    options.attention = together.variant(i).options;
    alone[together.variant(i).Label()] = look(**Engine::Create(model_, options), &cached);
  }
  int64_t kept = 0;  // by the look before: all that its policy read densely
  for (const size_t i : {size_t{1}, size_t{0}, size_t{4}, size_t{2}, size_t{3}, size_t{1}}) {
    const auto engine = together.Use(i);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const Seen seen = look(**engine, &cached);
    EXPECT_TRUE(seen == alone[together.variant(i).Label()]) << together.variant(i).Label();
    EXPECT_EQ(cached, kept) << "the prompt is read once";
    kept = i == 0 ? 699 : 650;
  }
  EXPECT_NE(alone["dense"].answer, alone["infllm2 4 blocks"].answer)
      << "the policies must differ for this test to mean anything";
}

TEST_F(EvalTest, PoliciesThatReadSparselyKeepEnginesOfTheirOwn) {
  AttentionOptions base;
  base.dense_layers = 0;
  base.block_size = 16;
  base.local_window = 32;
  auto variants = *MakeVariants({AttentionPolicy::kDense, AttentionPolicy::kSketch}, {4}, {1, 2}, base);
  variants[2].options.phase = SparsePhase::kAll;
  EngineOptions options;
  options.context_tokens = 600;
  auto engines = PolicyEngines::Make(model_, variants, options);
  ASSERT_TRUE(engines.ok()) << engines.status().message();
  Engine* const dense = *engines->Use(0);
  EXPECT_EQ(*engines->Use(1), dense);
  EXPECT_NE(*engines->Use(2), dense);
}

TEST_F(EvalTest, AVariantTellsTheBlocksThatItRunsWith) {
  EngineOptions options;
  options.context_tokens = 400;
  auto dense = PolicyEngines::Make(
      model_, *MakeVariants({AttentionPolicy::kDense, AttentionPolicy::kSketch}, {}, {}, {}), options);
  ASSERT_TRUE(dense.ok()) << dense.status().message();
  EXPECT_EQ(dense->variant(0).Label(), "dense");
  EXPECT_EQ(dense->variant(1).Label(), "sketch 4 bits 24 blocks");
  const auto model = Model::Load(dir_.Write("nosa.gguf", farsight::testing::TinyModel("nosa")), {.threads = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const auto& [asked, runs] : {std::pair<std::vector<int>, int>{{}, 8}, {{7}, 7}}) {
    auto sparse = PolicyEngines::Make(*model, *MakeVariants({AttentionPolicy::kStale}, asked, {}, {}), options);
    ASSERT_TRUE(sparse.ok()) << sparse.status().message();
    EXPECT_EQ(sparse->variant(0).blocks, runs) << "what the model was trained with, unless a number is asked for";
  }
}

TEST_F(EvalTest, OnlySpardaUsesTheForecast) {
  const Forecast forecast = farsight::testing::RandomForecast(model_, SummaryKind::kSketch);
  const std::string path = dir_.Path("tiny.forecast.safetensors");
  ASSERT_TRUE(SaveForecast(path, forecast, model_->impl().config, DType::kF32).ok());
  AttentionOptions base;
  base.block_size = 16;
  base.local_window = 32;
  base.dense_layers = 0;
  EngineOptions options;
  options.context_tokens = 600;
  options.forecast = path;
  const auto variants =
      *MakeVariants({AttentionPolicy::kDense, AttentionPolicy::kSparda, AttentionPolicy::kSketch}, {6, 8}, {}, base);
  ASSERT_EQ(variants.size(), 5u) << "dense once, the others with every budget";
  auto engines = PolicyEngines::Make(model_, variants, options);
  ASSERT_TRUE(engines.ok()) << engines.status().message();
  for (const size_t i : {0, 1, 2, 3, 4, 1, 0}) {
    auto engine = engines->Use(i);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const EngineStats stats = (*engine)->stats();
    EXPECT_EQ(stats.attention.policy, variants[i].options.policy);
    EXPECT_EQ(stats.forecast, variants[i].options.policy == AttentionPolicy::kSparda);
    EXPECT_EQ(*engine, *engines->Use(0)) << "one reading serves all";
    if (i > 0) {
      EXPECT_EQ(stats.attention.top_k_blocks, variants[i].options.top_k_blocks);
    }
  }
}

TEST_F(EvalTest, ScoresAddUpOverBuckets) {
  auto engines = Engines({AttentionPolicy::kDense}, {}, 400);
  TextSpec spec;
  spec.context = 400;
  spec.tokens = 700;
  const auto score = ScoreText(*model_, engines, hay_.tokens(), spec, {});
  ASSERT_TRUE(score.ok()) << score.status().message();
  ASSERT_EQ(score->size(), 1u);
  const TextScore& first = score->front();
  EXPECT_EQ(first.nll.n(), 798) << "two windows; the last token of each has no next one";
  ASSERT_EQ(first.buckets.size(), 2u);
  EXPECT_EQ(first.buckets[0].tokens, 512);
  EXPECT_EQ(first.buckets[1].high, 400);
  EXPECT_EQ(first.buckets[0].bytes + first.buckets[1].bytes, 798) << "a token is a byte";
  const double nats = first.buckets[0].nats + first.buckets[1].nats;
  EXPECT_NEAR(nats, first.nll.mean() * 798, 1e-6);
  EXPECT_NEAR(BitsPerByte(nats, 798), first.nll.mean() / std::log(2.0), 1e-9);
}

TEST_F(EvalTest, AScoreIsTheLogProbabilityOfTheNextToken) {
  auto engines = Engines({AttentionPolicy::kDense}, {}, 100);
  const std::vector<int32_t> text = hay_.Slice(0, 4);
  std::vector<float> logits;
  Request r;
  r.prompt = text;
  r.max_new_tokens = 0;
  r.on_logits = [&](int64_t, std::span<const float> l) { logits.insert(logits.end(), l.begin(), l.end()); };
  ASSERT_TRUE((*engines.Use(0))->Generate(std::move(r)).ok());
  const size_t vocab = logits.size() / 4;
  const auto row = std::span(logits).subspan(2 * vocab, vocab);
  TextSpec spec;
  spec.context = 100;
  spec.prefix = 2;
  const auto score = ScoreText(*model_, engines, text, spec, {});
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_EQ(score->front().nll.n(), 1);
  EXPECT_NEAR(score->front().nll.mean(), LogSum(row) - row[static_cast<size_t>(text[3])], 1e-9);
}

TEST_F(EvalTest, TextWithoutAScoredTokenIsRefused) {
  auto engines = Engines({AttentionPolicy::kDense}, {}, 100);
  TextSpec spec;
  spec.context = 100;
  spec.prefix = 50;
  const auto score = ScoreText(*model_, engines, hay_.Slice(0, 20), spec, {});
  ASSERT_FALSE(score.ok());
  EXPECT_THAT(score.status().message(), HasSubstr("51"));
}

TEST_F(EvalTest, ABudgetOfAllBlocksIsDense) {
  auto engines =
      Engines({AttentionPolicy::kDense, AttentionPolicy::kSketch, AttentionPolicy::kInfLlm2}, {3, 1000}, 600);
  const std::vector<int32_t> text = hay_.Slice(50, 600);
  const auto dense = TailLogits(**engines.Use(0), text, 500);
  ASSERT_TRUE(dense.ok());
  for (size_t i = 1; i < engines.size(); ++i) {
    const auto other = TailLogits(**engines.Use(i), text, 500);
    ASSERT_TRUE(other.ok());
    const Comparison c = Compare(*dense, *other, model_->info().vocab, std::span(text).subspan(501));
    EXPECT_EQ(c.tokens, 100);
    EXPECT_EQ(c.kl_mean == 0, engines.variant(i).blocks == 1000) << engines.variant(i).Label();
  }
}

TEST_F(EvalTest, EmptyTextsAreNoHay) { EXPECT_FALSE(Haystack::Make(*model_, std::vector<std::string>{""}).ok()); }

}  // namespace
}  // namespace farsight::eval
