// Trees of guesses in the forward: every node as if its path were the text, and what is kept as if it had been read.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/engine_plan.h"
#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "engine/speculator.h"
#include "engine/step_batch.h"
#include "engine/testing/random_forecast.h"
#include "engine/testing/tiny_model.h"
#include "io/testing/fake_async_file.h"
#include "io/testing/temp_dir.h"
#include "kv/tiers.h"
#include "sched/scheduler.h"
#include "spec/token_tree.h"

namespace farsight {
namespace {

constexpr int kContext = 512;
constexpr int kMaxNodes = 64;
// Over a file: longer than a split of attention, and few forks, so that memory is short.
constexpr int kFileContext = 1400;
constexpr int kFileNodes = 8;
constexpr int kFileChunk = 64;

// Keys and values in a file that answers late and in any order.
struct OverFile {
  double memory = 0;  // of the least; 0: all in memory
  bool lookahead = true;
  uint32_t seed = 0;
};

struct Case {
  std::string name;
  std::shared_ptr<Model> model;
  AttentionOptions attention;
  std::shared_ptr<Forecast> forecast = nullptr;
};

// One sequence on a runner of its own, stepped as the engine does it.
class Writer {
 public:
  Writer(const Case& c, std::vector<int32_t> prompt, int context = kContext, const OverFile& file = {})
      : scheduler_({.max_sequences = 1, .prefill_chunk = file.memory > 0 ? kFileChunk : kContext}) {
    const Model& model = *c.model;
    const ModelConfig& config = model.impl().config;
    std::optional<ForecastInfo> info;
    if (c.forecast) info = c.forecast->info;
    plan_ = PlanFor(c.attention, config, info).value();
    const int block = plan_.options.block_size;
    RunnerOptions r;
    r.context_tokens = context;
    r.max_rows = kContext;
    r.max_seqs = kMaxNodes;
    r.max_logit_rows = kMaxNodes + 1;
    r.num_blocks = context / block + kMaxNodes * (kMaxNodes / block + 2);
    r.plan = plan_;
    r.forecast = c.forecast.get();
    r.scores = true;
    if (file.memory > 0) PutInFile(model, file, &r);
    runner_ = model.impl().loaded->NewRunner(r).value();
    pool_ = std::make_unique<BlockPool>(r.num_blocks);
    sequence_ = std::make_unique<Sequence>(1, pool_.get(), block);
    scheduler_.Add(sequence_.get());
    vocab_ = static_cast<size_t>(config.vocab);
    sequence_->tokens = std::move(prompt);
    sequence_->prompt_tokens = static_cast<int64_t>(sequence_->tokens.size()) - 1;
    while (sequence_->pending() > 1) Step(0);
  }

  Sequence& sequence() { return *sequence_; }
  const ErrorMeter& meter() const { return meter_; }
  // What no request and no unfilled block but the sequence's holds is free to leave memory, or gone.
  void ExpectNothingOfDrafts() {
    KvTiers& tiers = *runner_->tiers();
    ASSERT_TRUE(tiers.Follow(*pool_).ok());
    int64_t open = 0;
    for (int32_t b = 0; b < pool_->num_blocks(); ++b) {
      EXPECT_EQ(tiers.place(b).store >= 0, pool_->Owned(b)) << b;
      if (pool_->Owned(b) && tiers.Open(b)) open += tiers.options().layers * tiers.options().heads;
    }
    EXPECT_EQ(tiers.CountHeld(), open);
    const auto written = static_cast<size_t>((sequence_->cache.length() + block() - 1) / block());
    EXPECT_EQ(pool_->num_blocks() - pool_->num_free(), static_cast<int32_t>(written));
  }
  KvTiers& tiers() { return *runner_->tiers(); }
  int64_t missed() { return static_cast<int64_t>(tiers().Total().missed); }
  int64_t block() const { return plan_.options.block_size; }
  const std::vector<float>& logits() const { return logits_; }  // [rows, vocab] of the last step
  const std::vector<std::vector<int32_t>>& lists() const { return lists_; }
  std::span<const float> Row(int row) const {
    return std::span(logits_).subspan(static_cast<size_t>(row) * vocab_, vocab_);
  }
  std::vector<int32_t> List(int row) const { return lists_[static_cast<size_t>(row)]; }

  // The last token and, where there is one, the sequence's draft; or a piece of the prompt.
  void Step(int group) {
    VerifyMode mode;
    mode.group = std::max(group, 1);
    Step(mode, group);
  }
  void Step(const VerifyMode& mode) { Step(mode, mode.group); }
  void Step(const VerifyMode& mode, int group) {
    // A prompt's last token is left for the first step that counts.
    std::vector<int32_t> last;
    if (sequence_->pending() > 1) last.push_back(sequence_->tokens.back()), sequence_->tokens.pop_back();
    const StepPlan plan = scheduler_.Plan();
    ASSERT_EQ(plan.rows.size(), 1u);
    Batch batch;
    batch.copies = plan.copies;
    batch.group_rows = group;
    batch.want_lists = true;
    AddRows(plan.rows[0], runner_->max_blocks(), &batch);
    if (runner_->tiers() != nullptr) PrepareTiers(plan.rows[0], &batch);
    const bool wanted = last.empty();
    batch.want_scores = wanted;
    if (wanted && plan.rows[0].drafts()) Approximate(mode, sequence_->paths.depth, plan_, &batch);
    for (int i = 0; i < batch.num_rows(); ++i) {
      batch.selects.push_back(plan_.RowSelects(batch.positions[static_cast<size_t>(i)], wanted) ? 1 : 0);
      if (wanted) batch.logit_rows.push_back(i);
    }
    StepResult result;
    ASSERT_TRUE(runner_->Step(batch, &result).ok());
    if (wanted) mode.is_exact() ? meter_.Exact(batch, result, plan_) : meter_.Approximate(result);
    logits_.assign(result.logits.begin(), result.logits.end());
    lists_.assign(static_cast<size_t>(batch.num_rows()), {});
    for (const auto& layer : result.lists) {
      const size_t heads = layer.counts.size() / lists_.size();
      for (size_t pair = 0; pair < layer.counts.size(); ++pair) {
        auto& list = lists_[pair / heads];
        list.push_back(layer.counts[pair]);
        const auto ids = layer.ids.subspan(pair * static_cast<size_t>(plan_.top_k));
        for (int i = 0; i < layer.counts[pair]; ++i) list.push_back(ids[static_cast<size_t>(i)]);
      }
    }
    sequence_->tokens.insert(sequence_->tokens.end(), last.begin(), last.end());
  }

  void Draft(const TokenTree& tree) {
    sequence_->DropDraft();
    sequence_->draft.assign(tree.tokens.begin() + 1, tree.tokens.end());
    if (!IsChain(tree)) sequence_->draft_parents = tree.parents;
  }

 private:
  // A chain of a draft may fill a block, which the next step closes, and go as far again.
  void PutInFile(const Model& model, const OverFile& file, RunnerOptions* r) const {
    r->max_rows = kFileChunk;
    r->max_seqs = kFileNodes;
    r->tiers.lookahead = file.lookahead;
    r->tiers.open_blocks = 1 + (2 * kFileNodes + static_cast<int>(block()) - 1) / static_cast<int>(block());
    r->tiers.fork_tables = kFileNodes - 1;
    r->tiers.fork_blocks = ForkBlocks({{kFileNodes, 1, 1, 1, 1, 1, 1, 1}, kFileNodes}, static_cast<int>(block()));
    r->tiers.memory_bytes = 1;
    const std::string least = model.impl().loaded->NewRunner(*r).status().message();
    r->tiers.memory_bytes = static_cast<uint64_t>(file.memory * std::stod(least.substr(least.find("at least ") + 9)));
    r->tiers.open_file = [seed = file.seed]() -> StatusOr<std::unique_ptr<AsyncFile>> {
      auto made = std::make_unique<testing::FakeAsyncFile>(std::make_shared<testing::FakeDisk>(), seed);
      made->max_delay = 5;
      return std::unique_ptr<AsyncFile>(std::move(made));
    };
  }
  void PrepareTiers(const PlannedRows& rows, Batch* batch) {
    KvTiers& tiers = *runner_->tiers();
    ASSERT_TRUE(tiers.Follow(*pool_).ok());
    const auto blocks = sequence_->cache.blocks();
    const int32_t own = blocks[static_cast<size_t>(rows.first / block())];
    if (rows.first % block() != 0 && !tiers.Open(own)) {
      ASSERT_TRUE(tiers.Reopen(own).ok());
    }
    const int64_t certain = rows.drafts() ? rows.first : rows.first + rows.count;
    for (int64_t b = 0; b < certain / block(); ++b) batch->full_blocks.push_back(blocks[static_cast<size_t>(b)]);
    batch->open_blocks = 1 + static_cast<int>((2 * kFileNodes + block() - 1) / block());
    for (const SequenceCache& fork : sequence_->forks) {
      batch->open_blocks += static_cast<int>(fork.blocks().size()) - static_cast<int>(rows.first / block());
    }
  }

  AttentionPlan plan_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Sequence> sequence_;
  Scheduler scheduler_;
  size_t vocab_ = 0;
  ErrorMeter meter_;
  std::vector<float> logits_;
  std::vector<std::vector<int32_t>> lists_;
};

class Trees : public ::testing::Test {
 protected:
  std::vector<Case> Cases() {
    std::vector<Case> cases;
    const auto load = [](const std::string& path) { return Model::Load(path, {.threads = 2}).value(); };
    for (const char* name : {"tiny-nsa", "tiny-nsa-shared", "tiny-infllm"}) {
      cases.push_back({name, load(std::string(FARSIGHT_SOURCE_DIR "/training/golden/") + name + ".gguf"), {}});
    }
    const auto llama = load(dir_.Write("llama.gguf", testing::TinyModel("llama")));
    cases.push_back({"dense", llama, {.block_size = 16}});
    cases.push_back({"nosa", load(dir_.Write("nosa.gguf", testing::TinyModel("nosa"))), {.block_size = 16}});
    cases.push_back({"sketch",
                     llama,
                     {.policy = AttentionPolicy::kSketch,
                      .phase = SparsePhase::kAll,
                      .block_size = 16,
                      .top_k_blocks = 5,
                      .local_window = 32,
                      .dense_layers = 1}});
    return cases;
  }
  // Those whose lists may be known one layer early as well, with windows and local blocks so that some are not.
  std::vector<Case> FileCases() {
    std::vector<Case> cases = Cases();
    const auto llama = cases[3].model;
    AttentionOptions a;
    a.phase = SparsePhase::kAll;
    a.block_size = 16;
    a.top_k_blocks = 5;
    a.local_window = 16;
    for (const auto policy : {AttentionPolicy::kInfLlm2, AttentionPolicy::kInfinigen, AttentionPolicy::kStale}) {
      a.policy = policy;
      cases.push_back({AttentionPolicyName(policy), llama, a});
    }
    a.policy = AttentionPolicy::kSparda;
    for (const auto keys : {SummaryKind::kPooledKeys, SummaryKind::kSketch}) {
      auto forecast = std::make_shared<Forecast>(testing::RandomForecast(llama, keys));
      forecast->info.kernel_size = 32;
      forecast->info.kernel_stride = 16;
      const bool pooled = keys == SummaryKind::kPooledKeys;
      cases.push_back({pooled ? "forecast over windows" : "forecast over sketches", llama, a, forecast});
    }
    return cases;
  }
  std::vector<int32_t> Text(int64_t n) {
    std::vector<int32_t> text;
    for (int64_t i = 0; i < n; ++i) text.push_back(Token());
    return text;
  }
  int32_t Token() { return static_cast<int32_t>(rng_() % 200); }
  // At least a root; a small `spread` makes long paths.
  TokenTree RandomTree(int32_t root, int nodes, int spread) {
    TokenTree tree;
    tree.Add(-1, root);
    for (int i = 1; i <= nodes; ++i) {
      tree.Add(std::max(0, i - 1 - static_cast<int>(rng_() % static_cast<uint32_t>(spread))), Token());
    }
    return tree;
  }
  // After a step with the tree a random path of it is kept, and a token more. The plain side reads what is kept token
  // by token, or all at once, and finds the same.
  void KeepAPath(const Case& c, const TokenTree& tree, int step, std::vector<int32_t>* text, Writer* drafted,
                 Writer* plain) {
    const auto path = PathTo(tree, static_cast<int>(rng_() % static_cast<uint32_t>(tree.size())));
    std::vector<int32_t> kept;
    for (size_t i = 1; i < path.size(); ++i) kept.push_back(tree.tokens[static_cast<size_t>(path[i])]);
    plain->Draft(MakeChain(text->back(), kept));
    plain->Step(1);
    for (size_t i = 0; i < path.size(); ++i) {
      ASSERT_TRUE(std::ranges::equal(drafted->Row(path[i]), plain->Row(static_cast<int>(i))))
          << c.name << ", step " << step << ", length " << text->size() << ", node " << path[i];
      ASSERT_EQ(drafted->List(path[i]), plain->List(static_cast<int>(i))) << c.name;
    }
    const auto count = static_cast<int>(path.size());
    drafted->sequence().Commit(path.back(), count);
    if (count > 1) plain->sequence().Commit(count - 1, count);
    kept.push_back(Token());
    text->insert(text->end(), kept.begin(), kept.end());
    for (Writer* w : {drafted, plain}) {
      w->sequence().tokens.insert(w->sequence().tokens.end(), kept.begin(), kept.end());
    }
  }

  std::mt19937 rng_{7};
  testing::TempDir dir_;
};

TEST_F(Trees, EveryNodeIsAsOnItsPathAlone) {
  for (const Case& c : Cases()) {
    for (const int prompt : {2, 60, 131}) {
      const auto text = Text(prompt);
      for (const auto& [nodes, spread] : {std::pair(9, 3), std::pair(kMaxNodes, 4), std::pair(kMaxNodes, 60)}) {
        const TokenTree made = RandomTree(text.back(), nodes, spread);
        for (const NodeOrder order : {NodeOrder::kBreadthFirst, NodeOrder::kDepthFirst}) {
          const TokenTree tree = Reorder(made, OrderNodes(made, order));
          Writer writer(c, text);
          writer.Draft(tree);
          const int group = static_cast<int>(rng_() % 3 * 4);  // as suits, 4, 8
          writer.Step(group);
          const DraftPaths paths = PathsOf(tree.parents);
          Writer alone(c, text);
          for (size_t p = 0; p < paths.rows.size(); p += 1 + paths.rows.size() / 6) {
            const auto& path = paths.rows[p];
            TokenTree chain;
            for (const int32_t row : path) chain.Add(chain.size() - 1, tree.tokens[static_cast<size_t>(row)]);
            alone.Draft(chain);
            alone.Step(1);
            for (size_t i = 0; i < path.size(); ++i) {
              ASSERT_TRUE(std::ranges::equal(writer.Row(path[i]), alone.Row(static_cast<int>(i))))
                  << c.name << ", prompt " << prompt << ", " << nodes << " nodes, " << NodeOrderName(order)
                  << ", group " << group << ", path " << p << ", node " << path[i];
              ASSERT_EQ(writer.List(path[i]), alone.List(static_cast<int>(i))) << c.name;
            }
            alone.sequence().Commit(0, 0);  // takes the root back as well
          }
        }
      }
    }
  }
}

// What is kept of a thousand drafts of random shape, from nothing to all: the next rows are those of the plain text.
TEST_F(Trees, WhatIsKeptIsWhatWasRead) {
  for (const Case& c : Cases()) {
    std::vector<int32_t> text = Text(3);
    auto drafted = std::make_unique<Writer>(c, text);
    auto plain = std::make_unique<Writer>(c, text);
    for (int step = 0; step < 200; ++step) {
      if (text.size() + 20 > kContext) {  // from the start again, and the plain one by one prompt
        text = Text(1 + static_cast<int64_t>(rng_() % 200));
        drafted = std::make_unique<Writer>(c, text);
        plain = std::make_unique<Writer>(c, text);
      }
      const int nodes = 1 + static_cast<int>(rng_() % 18);
      const TokenTree tree = RandomTree(text.back(), nodes, rng_() % 2 == 0 ? 1 : 5);
      drafted->Draft(tree);
      drafted->Step(0);
      ASSERT_NO_FATAL_FAILURE(KeepAPath(c, tree, step, &text, drafted.get(), plain.get()));
    }
    // All of the text at once, as a prompt.
    Writer fresh(c, text);
    fresh.Step(0);
    drafted->Step(0);
    EXPECT_TRUE(std::ranges::equal(drafted->Row(0), fresh.Row(0))) << c.name;
    EXPECT_EQ(drafted->List(0), fresh.List(0)) << c.name;
  }
}

// The same over a file: a step's paths share the pages that are read, whatever memory is left and whenever reads come;
// what was not kept leaves nothing behind.
TEST_F(Trees, WhatIsKeptOverAFileIsWhatWasReadInMemory) {
  for (const Case& c : FileCases()) {
    uint32_t seed = 0;
    int64_t missed = 0;
    std::vector<int32_t> text;
    std::unique_ptr<Writer> drafted, plain;
    for (int step = 0; step < 160; ++step) {
      if (step % 24 == 0 || static_cast<int>(text.size()) + 2 * kFileNodes > kFileContext) {
        if (drafted) missed += drafted->missed();
        text = Text(kFileContext - 30 - static_cast<int64_t>(rng_() % 200));
        const OverFile file{step % 48 == 0 ? 1 : 1.3, step % 72 != 24, ++seed};
        drafted = std::make_unique<Writer>(c, text, kFileContext, file);
        plain = std::make_unique<Writer>(c, text, kFileContext);
      }
      const int nodes = 1 + static_cast<int>(rng_() % kFileNodes);
      TokenTree tree = RandomTree(text.back(), nodes, rng_() % 2 == 0 ? 1 : 5);
      tree = Reorder(tree, OrderNodes(tree, rng_() % 2 == 0 ? NodeOrder::kDepthFirst : NodeOrder::kBreadthFirst));
      drafted->Draft(tree);
      drafted->Step(0);
      ASSERT_NO_FATAL_FAILURE(KeepAPath(c, tree, step, &text, drafted.get(), plain.get()));
      drafted->ExpectNothingOfDrafts();
    }
    EXPECT_GT(missed, 0) << c.name;
  }
}

// A dense step names what the paths have in common once, and of each path what is its own.
TEST_F(Trees, PathsAskForWhatTheyShareOnce) {
  const Case dense = Cases()[3];
  ASSERT_EQ(dense.name, "dense");
  for (const int64_t length : {1025, 1100, 1136}) {
    for (const bool lookahead : {true, false}) {
      const auto text = Text(length + 1);
      Writer writer(dense, text, kFileContext, {1, lookahead, 1});
      const TokenTree tree = RandomTree(text.back(), kFileNodes, 4);
      const int64_t block = writer.block();
      const int64_t lanes = writer.tiers().options().layers * writer.tiers().options().heads;
      const auto before = static_cast<int64_t>(writer.tiers().Total().selected);
      writer.Draft(tree);
      writer.Step(0);
      int64_t pages = length / block;
      const DraftPaths paths = PathsOf(tree.parents);
      for (const auto& path : paths.rows) {
        pages += (length + static_cast<int64_t>(path.size()) - 1) / block - length / block + 1;
      }
      // And the block that is not full, where it is copied.
      if (length % block != 0) pages += static_cast<int64_t>(paths.rows.size()) - 1;
      EXPECT_EQ(static_cast<int64_t>(writer.tiers().Total().selected) - before, lanes * pages) << length;
    }
  }
}

TEST_F(Trees, ForksHaveNoMoreBlocksThanWasSaid) {
  for (const TreeShape& shape : {TreeShape{{3, 2, 1}, 20}, TreeShape{{2, 2, 1, 1}, 7}, TreeShape{{1, 5}, 32},
                                 TreeShape{{4, 3, 2, 2, 1, 1, 1}, 31}, TreeShape{{64}, 64}, ChainShape(30)}) {
    int most = 0;
    for (int i = 0; i < 300; ++i) {
      TokenTree tree;
      tree.Add(-1, 0);
      std::vector<int> children(65, 0);
      // Wide or long, at random, until the shape is full.
      const auto wide = rng_() % 10;
      for (int tries = 0; tries < 2000 && tree.num_drafted() < shape.max_nodes; ++tries) {
        const int back = static_cast<int>(rng_() % static_cast<uint32_t>(tree.size()));
        const int at = rng_() % 10 < wide ? back : tree.size() - 1;
        const int depth = tree.depths[static_cast<size_t>(at)];
        if (depth >= shape.max_depth() || children[static_cast<size_t>(at)] == shape.widths[static_cast<size_t>(depth)])
          continue;
        ++children[static_cast<size_t>(at)];
        tree.Add(at, tree.size());
      }
      const DraftPaths paths = PathsOf(tree.parents);
      for (int root = 0; root < 16; ++root) {
        int blocks = 0;
        for (size_t p = 1; p < paths.rows.size(); ++p) {
          blocks += (root + static_cast<int>(paths.rows[p].size()) - 1) / 16 + 1;
        }
        most = std::max(most, blocks);
      }
    }
    EXPECT_LE(most, ForkBlocks(shape, 16)) << ShapeName(shape);
    EXPECT_GE(most, ForkBlocks(shape, 16) / 2) << ShapeName(shape);
  }
}

// Lists at second hand: of one row in a group, of one layer for those after it; and what the meter says of them.
TEST_F(Trees, ApproximateListsAreThoseTheyAreSaidToBe) {
  for (const Case& c : Cases()) {
    if (c.name == "dense") continue;
    const auto text = Text(420);
    TokenTree chain = MakeChain(text.back(), Text(7));
    Writer writer(c, text);
    const auto step = [&](const VerifyMode& mode) {
      writer.Draft(chain);
      writer.Step(mode);
      writer.sequence().Commit(0, 0);
    };
    VerifyMode mode;
    step(mode);
    const std::vector<float> exact = writer.logits();
    const auto own = writer.lists();
    mode.shared_list = true;  // with oneself
    step(mode);
    EXPECT_EQ(writer.logits(), exact) << c.name;
    EXPECT_EQ(writer.meter().error().rows, 8) << c.name;
    EXPECT_EQ(writer.meter().error().flip_rate, 0) << c.name;
    EXPECT_EQ(writer.meter().error().substitution_p99, 0) << c.name;
    mode.group = 4;
    step(mode);
    for (const int row : {0, 1, 2}) EXPECT_EQ(writer.List(row), writer.List(3)) << c.name << ", row " << row;
    EXPECT_EQ(writer.List(7).size(), own[7].size());
    const ApproximationError e = writer.meter().error();
    EXPECT_EQ(e.rows, 16) << c.name;
    EXPECT_TRUE(e.substitution_mean >= 0 && e.substitution_p99 <= 1 && e.kl_mean >= 0) << c.name;
    mode = {};
    mode.refresh.assign(static_cast<size_t>(c.model->info().layers), 0);
    mode.refresh[0] = 1;
    step(mode);
    // Every layer reports what the first that selects chose.
    const std::vector<int32_t> list = writer.List(5);
    const size_t layer = static_cast<size_t>(c.model->info().kv_heads) * (1 + static_cast<size_t>(list[0]));
    for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], list[i % layer]) << c.name;
    EXPECT_GT(list.size(), 0u);
  }
}

// Such lists are read from a file like others.
TEST_F(Trees, ApproximateListsOverAFileAreThoseInMemory) {
  std::vector<VerifyMode> modes(4);
  modes[0].group = modes[2].group = 4;
  modes[0].shared_list = modes[2].shared_list = true;
  uint32_t seed = 0;
  for (const Case& c : FileCases()) {
    if (c.name == "dense") continue;
    for (int m = 1; m < 4; ++m) {  // one layer of two, or the first alone, chooses
      auto& refresh = modes[static_cast<size_t>(m)].refresh;
      refresh.assign(static_cast<size_t>(c.model->info().layers), 0);
      for (size_t l = 0; l < refresh.size(); ++l) refresh[l] = m == 3 ? l == 0 : l % 2 == 0;
    }
    int64_t missed = 0;
    for (const bool lookahead : {true, false}) {
      const auto text = Text(kFileContext - 60 - static_cast<int64_t>(rng_() % 100));
      Writer over(c, text, kFileContext, {lookahead ? 1 : 1.2, lookahead, ++seed});
      Writer resident(c, text, kFileContext);
      for (int i = 0; i < 16; ++i) {
        VerifyMode mode = modes[static_cast<size_t>(i % 4)];
        const int nodes = 1 + static_cast<int>(rng_() % kFileNodes);
        TokenTree tree = RandomTree(over.sequence().tokens.back(), nodes, i % 3 == 0 ? 1 : 5);
        if (i % 8 < 4) mode.order = NodeOrder::kDepthFirst;
        tree = Reorder(tree, OrderNodes(tree, mode.order));
        const auto path = PathTo(tree, tree.size() - 1);
        for (Writer* w : {&over, &resident}) {
          w->Draft(tree);
          w->Step(mode);
        }
        ASSERT_EQ(over.logits(), resident.logits()) << c.name << ", " << VerifyModeName(mode) << ", step " << i;
        ASSERT_EQ(over.lists(), resident.lists()) << c.name << ", " << VerifyModeName(mode);
        const int32_t next = Token();
        for (Writer* w : {&over, &resident}) {
          w->sequence().Commit(path.back(), static_cast<int>(path.size()));
          for (size_t n = 1; n < path.size(); ++n) {
            w->sequence().tokens.push_back(tree.tokens[static_cast<size_t>(path[n])]);
          }
          w->sequence().tokens.push_back(next);
        }
        over.ExpectNothingOfDrafts();
      }
      missed += over.missed();
    }
    EXPECT_GT(missed, 0) << c.name;
  }
}

}  // namespace
}  // namespace farsight
