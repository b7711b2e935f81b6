#include "spec/drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "spec/suffix_index.h"
#include "spec/testing/scripted_drafter.h"

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Text = std::vector<int32_t>;

Text RandomText(std::mt19937& rng, int n, int32_t vocab) {
  Text text;
  for (int i = 0; i < n; ++i) text.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
  return text;
}

Text Drafted(const TokenTree& tree) { return Text(tree.tokens.begin() + 1, tree.tokens.end()); }

SuffixOptions Unlimited() {
  SuffixOptions o;
  o.min_probability = 0;
  o.depth_offset = 1000;
  return o;
}

SuffixIndex Indexed(const Text& text, const SuffixOptions& o = Unlimited()) {
  SuffixIndex index(o);
  index.Append(text);
  return index;
}

// The chain by search: the longest repeated suffix of text and draft, and what followed it most often (or last).
Text ChainOracle(const Text& text, int n, const SuffixOptions& o) {
  Text all = text, draft;
  size_t context = 0;  // tokens of context left to use; the first lookup uses the longest
  for (size_t m = 1; m < text.size(); ++m) {
    for (size_t next = m; next < text.size(); ++next) {
      if (std::equal(all.end() - static_cast<std::ptrdiff_t>(m), all.end(),
                     text.begin() + static_cast<std::ptrdiff_t>(next - m))) {
        context = m;
      }
    }
  }
  while (static_cast<int>(draft.size()) < n) {
    int32_t best = -1;
    for (; context >= static_cast<size_t>(o.min_match) && best < 0; --context) {
      std::map<int32_t, std::pair<int, size_t>> votes;
      for (size_t next = context; next < text.size(); ++next) {
        if (std::equal(all.end() - static_cast<std::ptrdiff_t>(context), all.end(),
                       text.begin() + static_cast<std::ptrdiff_t>(next - context))) {
          votes[text[next]].first += o.continuation == Continuation::kMostFrequent ? 1 : 0;
          votes[text[next]].second = next;
        }
      }
      std::pair<int, size_t> most{-1, 0};
      for (const auto& [token, vote] : votes) {
        if (vote > most) most = vote, best = token;
      }
      if (best >= 0) break;
    }
    if (best < 0) break;
    all.push_back(best);
    draft.push_back(best);
    ++context;
  }
  return draft;
}

TEST(SuffixIndex, AChainFollowsTheLongestMatch) {
  std::mt19937 rng(1);
  int drafted = 0;
  for (int round = 0; round < 300; ++round) {
    const Text text = RandomText(rng, 40, 2 + round % 4);
    SuffixOptions o = Unlimited();
    o.min_match = 1 + round % 3;
    if (round % 2 == 1) o.continuation = Continuation::kMostRecent;
    const SuffixIndex index = Indexed(text, o);
    const TokenTree tree = index.Propose(ChainShape(8), 8);
    ASSERT_TRUE(IsChain(tree));
    ASSERT_EQ(Drafted(tree), index.match_length() < o.min_match ? Text() : ChainOracle(text, 8, o)) << round;
    drafted += tree.num_drafted();
  }
  EXPECT_GT(drafted, 1000);
}

TEST(SuffixIndex, CutsByProbabilityAndByMatch) {
  const Text text = {1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2};  // three continuations, each once
  SuffixOptions o;
  o.min_probability = 0.4;
  EXPECT_THAT(Drafted(Indexed(text, o).Propose(ChainShape(5), 5)), IsEmpty());
  o.min_probability = 0.3;
  EXPECT_THAT(Drafted(Indexed(text, o).Propose(ChainShape(5), 5)), ElementsAre(5, 1, 2));
  o.min_probability = 0;
  o.depth_per_match = 1;
  o.depth_offset = 2;  // match 2: depth 4
  EXPECT_EQ(Indexed(text, o).Propose(ChainShape(9), 9).num_drafted(), 4);
  o.depth_per_match = 0;
  o.depth_offset = 0;
  EXPECT_EQ(Indexed(text, o).Propose(ChainShape(9), 9).num_drafted(), 0);
}

TEST(SuffixIndex, ForksHoldSeveralContinuationsBestFirst) {
  const Text text = {1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2};  // after 1 2: twice 3, once 4
  const TokenTree tree = Indexed(text).Propose({{2, 2}, 10}, 10);
  EXPECT_THAT(Drafted(tree), ElementsAre(3, 4, 8, 9, 7));
  EXPECT_THAT(tree.parents, ElementsAre(-1, 0, 0, 1, 1, 2));
  EXPECT_THAT(Drafted(Indexed(text).Propose({{2, 2}, 10}, 1)), ElementsAre(3));
}

TEST(SuffixIndex, ForksFillUpWithShorterContexts) {
  SuffixOptions o = Unlimited();
  const SuffixIndex index = Indexed({1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3}, o);
  EXPECT_EQ(index.match_length(), 3);
  EXPECT_THAT(Drafted(index.Propose(ChainShape(1), 1)), ElementsAre(4));
  EXPECT_THAT(Drafted(index.Propose({{2}, 2}, 2)), ElementsAre(4, 5));
}

TEST(SuffixIndex, APeriodRunsOn) {
  EXPECT_THAT(Drafted(Indexed({7, 7, 7}).Propose(ChainShape(5), 5)), ElementsAre(7, 7, 7, 7, 7));
  EXPECT_THAT(Drafted(Indexed({1, 2, 1, 2}).Propose(ChainShape(5), 5)), ElementsAre(1, 2, 1, 2, 1));
}

TEST(SuffixIndex, TakingBackIsAsIfNeverSeen) {
  std::mt19937 rng(2);
  SuffixOptions o = Unlimited();
  o.journal = 20;      // some cuts are undone token by token, some index anew
  o.max_tokens = 150;  // and the window moves
  SuffixIndex index(o);
  Text text;
  for (int step = 0; step < 300; ++step) {
    if (rng() % 3 == 0) {
      const auto cut = std::min<size_t>(text.size(), rng() % (rng() % 4 == 0 ? 400 : 25));
      text.resize(text.size() - cut);
      index.Truncate(static_cast<int64_t>(text.size()));
    }
    const Text more = RandomText(rng, 1 + static_cast<int>(rng() % 40), 3);
    index.Append(more);
    text.insert(text.end(), more.begin(), more.end());
    const SuffixIndex fresh = Indexed(text, o);
    ASSERT_EQ(index.size(), static_cast<int64_t>(text.size()));
    ASSERT_EQ(index.match_length(), fresh.match_length());
    ASSERT_LE(index.automaton().size(), 150);
    ASSERT_EQ(index.Propose({{3, 2, 1, 1}, 20}, 20), fresh.Propose({{3, 2, 1, 1}, 20}, 20)) << step;
  }
  EXPECT_GT(text.size(), 300u);
}

TEST(Drafter, RandomForksAreValidTreesWithinTheirShape) {
  std::mt19937 rng(3);
  for (const bool suffix : {false, true}) {
    auto drafter = suffix ? MakeSuffixDrafter(Unlimited()) : MakeNgramDrafter({});
    ASSERT_TRUE(drafter.ok());
    int largest = 0;
    for (uint64_t id = 0; id < 100; ++id) {
      ASSERT_TRUE((*drafter)->Begin(id).ok());
      ASSERT_TRUE((*drafter)->Observe(id, RandomText(rng, 80, 3)).ok());
      const TreeShape shape{{1 + static_cast<int>(id % 3), 2, 1, 3, 1}, 1 + static_cast<int>(rng() % 20)};
      const int max_tokens = static_cast<int>(rng() % 25);
      std::vector<Draft> drafts(1);
      const DraftRequest request{id, shape, max_tokens};
      ASSERT_TRUE((*drafter)->Propose(std::span(&request, 1), drafts).ok());
      ASSERT_EQ(Validate(drafts[0], 3).message(), "");
      const TokenTree& tree = drafts[0].tree;
      ASSERT_LE(tree.num_drafted(), std::min(max_tokens, shape.max_nodes));
      ASSERT_LE(MaxDepth(tree), 5);
      const TreeChildren children = ChildrenOf(tree);
      for (int u = 0; u < tree.size(); ++u) {
        const auto depth = static_cast<size_t>(tree.depths[static_cast<size_t>(u)]);
        ASSERT_LE(children.Of(u).size(), depth < 5 ? static_cast<size_t>(shape.widths[depth]) : 0);
      }
      largest = std::max(largest, tree.num_drafted());
    }
    EXPECT_GT(largest, 12);
  }
}

TEST(Drafter, SequencesAreApart) {
  for (const bool suffix : {false, true}) {
    auto made = suffix ? MakeSuffixDrafter({}) : MakeNgramDrafter({});
    ASSERT_TRUE(made.ok());
    Drafter& drafter = **made;
    EXPECT_EQ(drafter.kind(), suffix ? DrafterKind::kSuffix : DrafterKind::kNgram);
    ASSERT_TRUE(drafter.Begin(1).ok());
    ASSERT_TRUE(drafter.Begin(2).ok());
    EXPECT_THAT(drafter.Begin(1).message(), HasSubstr("sequence 1 was begun twice"));
    ASSERT_TRUE(drafter.Observe(1, Text{1, 2, 3, 1, 2}).ok());
    ASSERT_TRUE(drafter.Observe(2, Text{1, 2, 4, 1}).ok());
    ASSERT_TRUE(drafter.Observe(2, Text{2}).ok());
    const std::vector<DraftRequest> requests = {{2, ChainShape(2), 2}, {1, ChainShape(2), 1}, {1, ChainShape(2), 0}};
    std::vector<Draft> drafts(3);
    ASSERT_TRUE(drafter.Propose(requests, drafts).ok());
    EXPECT_THAT(drafts[0].tree.tokens, ElementsAre(2, 4, 1));
    EXPECT_THAT(drafts[1].tree.tokens, ElementsAre(2, 3));
    EXPECT_THAT(drafts[2].tree.tokens, ElementsAre(2));
    std::vector<Draft> again(3);
    ASSERT_TRUE(drafter.Propose(requests, again).ok());
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(again[i].tree, drafts[i].tree);
    ASSERT_TRUE(drafter.Truncate(2, 3).ok());
    ASSERT_TRUE(drafter.Propose(std::span(requests).first(1), std::span(drafts).first(1)).ok());
    EXPECT_THAT(drafts[0].tree.tokens, ElementsAre(4));
    drafter.End(1);
    drafter.End(1);
    EXPECT_THAT(drafter.Propose(std::span(requests).last(1), std::span(drafts).first(1)).message(),
                HasSubstr("does not know sequence 1"));
  }
}

TEST(Drafter, MistakesGetASentence) {
  auto made = MakeNgramDrafter({});
  Drafter& drafter = **made;
  ASSERT_TRUE(drafter.Begin(1).ok());
  const DraftRequest request{1, ChainShape(2), 2};
  std::vector<Draft> drafts(1);
  EXPECT_THAT(drafter.Propose(std::span(&request, 1), drafts).message(), HasSubstr("has no token to draft after"));
  EXPECT_THAT(drafter.Propose(std::span(&request, 1), {}).message(), HasSubstr("1 drafts were asked for"));
  EXPECT_THAT(drafter.Observe(1, Text{1, -5}).message(), HasSubstr("the token -5"));
  EXPECT_THAT(drafter.Truncate(1, 1).message(), HasSubstr("saw 0 tokens was to keep 1"));
  EXPECT_THAT(drafter.Observe(9, {}).message(), HasSubstr("sequence 9"));
  EXPECT_FALSE(MakeNgramDrafter({0, 5}).ok());
  EXPECT_FALSE(MakeNgramDrafter({3, 2}).ok());
  EXPECT_FALSE(MakeNgramDrafter({2, 17}).ok());
  EXPECT_FALSE(MakeNgramDrafter({2, 5, 0}).ok());
  SuffixOptions o;
  o.min_probability = 1.5;
  EXPECT_THAT(MakeSuffixDrafter(o).status().message(), HasSubstr("from 0 to 1"));
  o = SuffixOptions();
  o.max_tokens = 3;
  EXPECT_THAT(MakeSuffixDrafter(o).status().message(), HasSubstr("not 3"));
  EXPECT_THAT(ParseDrafterKind("eagle").status().message(), HasSubstr("'eagle'"));
  EXPECT_EQ(*ParseDrafterKind("suffix"), DrafterKind::kSuffix);
}

TEST(Drafter, Scripts) {
  testing::ScriptedDrafter right(testing::PerfectScript({1, 2, 3, 4, 5}));
  testing::ScriptedDrafter wrong(testing::WrongScript({1, 2, 3, 4, 5}, 10));
  testing::ScriptedDrafter turns(testing::AlternatingScript({1, 2, 3, 4, 5}, 10));
  const std::vector<std::pair<Drafter*, Text>> cases = {
      {&right, {2, 3, 4, 5}}, {&wrong, {2, 4, 5, 6}}, {&turns, {2, 3, 5, 5}}};
  for (const auto& [drafter, expected] : cases) {
    ASSERT_TRUE(drafter->Begin(1).ok());
    ASSERT_TRUE(drafter->Observe(1, Text{1, 2}).ok());
    const DraftRequest request{1, ChainShape(9), 9};
    std::vector<Draft> drafts(1);
    ASSERT_TRUE(drafter->Propose(std::span(&request, 1), drafts).ok());
    EXPECT_EQ(drafts[0].tree.tokens, expected);
  }
}

TEST(Drafter, SelfMatchRate) {
  EXPECT_EQ(SelfMatchRate(Text{1, 2}), 0);
  EXPECT_EQ(SelfMatchRate(Text{1, 2, 3, 4, 5}), 0);
  EXPECT_EQ(SelfMatchRate(Text{7, 7, 7, 7, 7}), 2.0 / 3);
  EXPECT_EQ(SelfMatchRate(Text{1, 2, 3, 1, 2, 3}), 1.0 / 4);
}

}  // namespace
}  // namespace farsight
