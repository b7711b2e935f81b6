// Trees of guesses in the forward: every node as if its path were the text, and what is kept as if it had been read.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "engine/step_batch.h"
#include "engine/testing/tiny_model.h"
#include "io/testing/temp_dir.h"
#include "sched/scheduler.h"
#include "spec/token_tree.h"

namespace farsight {
namespace {

constexpr int kContext = 512;
constexpr int kMaxNodes = 64;

// One sequence on a runner of its own, stepped as the engine does it.
class Writer {
 public:
  Writer(const Model& model, const AttentionOptions& attention, std::vector<int32_t> prompt) {
    const ModelConfig& config = model.impl().config;
    plan_ = MakeAttentionPlan(attention, config.attention, config.layers).value();
    const int block = plan_.options.block_size;
    RunnerOptions r;
    r.context_tokens = kContext;
    r.max_rows = kContext;
    r.max_seqs = kMaxNodes;
    r.max_logit_rows = kMaxNodes + 1;
    r.num_blocks = kContext / block + kMaxNodes * (kMaxNodes / block + 2);
    r.plan = plan_;
    r.scores = true;
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
  AttentionPlan plan_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Sequence> sequence_;
  Scheduler scheduler_{{.max_sequences = 1, .prefill_chunk = kContext}};
  size_t vocab_ = 0;
  ErrorMeter meter_;
  std::vector<float> logits_;
  std::vector<std::vector<int32_t>> lists_;
};

class Trees : public ::testing::Test {
 protected:
  struct Case {
    std::string name;
    std::shared_ptr<Model> model;
    AttentionOptions attention;
  };
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
          Writer writer(*c.model, c.attention, text);
          writer.Draft(tree);
          const int group = static_cast<int>(rng_() % 3 * 4);  // as suits, 4, 8
          writer.Step(group);
          const DraftPaths paths = PathsOf(tree.parents);
          Writer alone(*c.model, c.attention, text);
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
    auto drafted = std::make_unique<Writer>(*c.model, c.attention, text);
    auto plain = std::make_unique<Writer>(*c.model, c.attention, text);
    for (int step = 0; step < 200; ++step) {
      if (text.size() + 20 > kContext) {  // from the start again, and the plain one by one prompt
        text = Text(1 + static_cast<int64_t>(rng_() % 200));
        drafted = std::make_unique<Writer>(*c.model, c.attention, text);
        plain = std::make_unique<Writer>(*c.model, c.attention, text);
      }
      const int nodes = 1 + static_cast<int>(rng_() % 18);
      const TokenTree tree = RandomTree(text.back(), nodes, rng_() % 2 == 0 ? 1 : 5);
      drafted->Draft(tree);
      drafted->Step(0);
      const auto path = PathTo(tree, static_cast<int>(rng_() % static_cast<uint32_t>(tree.size())));
      // The plain side reads what is kept token by token, or all at once.
      std::vector<int32_t> kept;
      for (size_t i = 1; i < path.size(); ++i) kept.push_back(tree.tokens[static_cast<size_t>(path[i])]);
      plain->Draft(MakeChain(text.back(), kept));
      plain->Step(1);
      for (size_t i = 0; i < path.size(); ++i) {
        ASSERT_TRUE(std::ranges::equal(drafted->Row(path[i]), plain->Row(static_cast<int>(i))))
            << c.name << ", step " << step << ", length " << text.size() << ", node " << path[i];
      }
      const auto count = static_cast<int>(path.size());
      drafted->sequence().Commit(path.back(), count);
      if (count > 1) plain->sequence().Commit(count - 1, count);
      kept.push_back(Token());
      text.insert(text.end(), kept.begin(), kept.end());
      for (Writer* w : {drafted.get(), plain.get()}) {
        w->sequence().tokens.insert(w->sequence().tokens.end(), kept.begin(), kept.end());
      }
    }
    // All of the text at once, as a prompt.
    Writer fresh(*c.model, c.attention, text);
    fresh.Step(0);
    drafted->Step(0);
    EXPECT_TRUE(std::ranges::equal(drafted->Row(0), fresh.Row(0))) << c.name;
    EXPECT_EQ(drafted->List(0), fresh.List(0)) << c.name;
  }
}

// Lists at second hand: of one row in a group, of one layer for those after it; and what the meter says of them.
TEST_F(Trees, ApproximateListsAreThoseTheyAreSaidToBe) {
  for (const Case& c : Cases()) {
    if (c.name == "dense") continue;
    const auto text = Text(420);
    TokenTree chain = MakeChain(text.back(), Text(7));
    Writer writer(*c.model, c.attention, text);
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

}  // namespace
}  // namespace farsight
