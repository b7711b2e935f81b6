#include "spec/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "spec/testing/random_tree.h"

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RandomTree;

Distribution Law(std::vector<int32_t> ids, std::vector<double> probs) { return {std::move(ids), std::move(probs)}; }

std::vector<float> RandomLogits(std::mt19937& rng, size_t n) {
  std::normal_distribution<double> normal(0, 1);
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(normal(rng));
  return logits;
}

// Logits of a language without end: a function of the last three tokens.
std::vector<float> LogitsAfter(std::span<const int32_t> text, int32_t vocab) {
  uint32_t h = 17;
  for (int32_t t : text.last(std::min<size_t>(3, text.size()))) h = h * 2654435761u + static_cast<uint32_t>(t) + 1;
  std::mt19937 rng(h);
  return RandomLogits(rng, static_cast<size_t>(vocab));
}

// The text of the match rule is plain decoding's, token by token, for any tree, any settings and any drafter.
TEST(Verify, MatchGivesPlainDecodingsText) {
  std::mt19937 rng(1);
  constexpr int32_t kVocab = 12;
  for (int round = 0; round < 60; ++round) {
    SamplingParams params;
    params.temperature = round % 6 == 0 ? 0 : 0.7 + 0.2 * (round % 4);
    params.top_p = round % 2 == 0 ? 1 : 0.85;
    params.top_k = round % 3 == 0 ? 5 : 0;
    params.min_p = round % 5 == 0 ? 0.05 : 0;
    params.repetition_penalty = 1.3;
    params.presence_penalty = 0.2;
    params.frequency_penalty = 0.1;
    params.penalty_window = round % 4 == 0 ? -1 : round % 7;
    params.logit_bias = {{3, 1.0f}, {5, -std::numeric_limits<float>::infinity()}};
    params.seed = rng();
    SamplerScratch scratch;
    std::vector<int32_t> plain = {1, 2};
    while (plain.size() < 60) {
      const auto token = Sample(LogitsAfter(plain, kVocab), params, plain, plain.size(), scratch);
      ASSERT_TRUE(token.ok());
      plain.push_back(*token);
    }
    std::vector<int32_t> text = {1, 2};
    int steps = 0;
    while (text.size() < plain.size()) {
      Draft draft;
      draft.tree = RandomTree(rng, 1 + static_cast<int>(rng() % 30), kVocab, 0.6);
      draft.tree.tokens[0] = text.back();
      // Half of the drafts know the answer for a while.
      if (rng() % 2 == 0) {
        const size_t end = std::min(plain.size(), text.size() + 1 + rng() % 6);
        draft.tree = MakeChain(text.back(), std::span(plain).subspan(text.size(), end - text.size()));
      }
      std::vector<float> logits;
      for (int u = 0; u < draft.tree.size(); ++u) {
        std::vector<int32_t> along = text;
        for (int32_t v : PathTo(draft.tree, u)) {
          if (v > 0) along.push_back(draft.tree.tokens[static_cast<size_t>(v)]);
        }
        const auto row = LogitsAfter(along, kVocab);
        logits.insert(logits.end(), row.begin(), row.end());
      }
      TargetLaws laws(draft.tree, logits, params, text, &scratch);
      const auto rule = params.temperature == 0 && rng() % 2 == 0 ? VerifyRule::kGreedy : VerifyRule::kMatch;
      const auto accepted = Verify({rule, params.seed, text.size() - 1}, draft, &laws);
      ASSERT_EQ(accepted.status().message(), "");
      ASSERT_EQ(laws.num_made(), static_cast<int>(accepted->path.size()));
      text.insert(text.end(), accepted->tokens.begin(), accepted->tokens.end());
      ++steps;
    }
    text.resize(plain.size());
    ASSERT_EQ(text, plain);
    EXPECT_LT(steps, 50);
  }
}

TEST(Verify, EveryRuleAcceptsARightDraftWhole) {
  // Draft and target agree: nothing may be rejected.
  const Distribution law = Law({1, 4, 6}, {0.5, 0.2, 0.3});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kWithoutReplacement}) {
      Draft draft;
      draft.drawing = Drawing::kWithoutReplacement;
      draft.tree.Add(-1, 0);
      for (int u = 0; u < 4; ++u) DrawChildren(law, u, 1, seed, 9, &draft);
      TargetLaws laws(std::vector<Distribution>(5, law));
      const auto accepted = Verify({rule, seed, 9}, draft, &laws);
      ASSERT_EQ(accepted.status().message(), "");
      ASSERT_THAT(accepted->path, ElementsAre(0, 1, 2, 3, 4));
      ASSERT_TRUE(std::equal(draft.tree.tokens.begin() + 1, draft.tree.tokens.end(), accepted->tokens.begin()));
    }
  }
}

TEST(Verify, WhatTheTargetRulesOutIsNeverEmitted) {
  const Distribution p = Law({2, 3}, {0.25, 0.75}), q = Law({0, 1}, {0.5, 0.5});
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (VerifyRule rule :
         {VerifyRule::kMatch, VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kIndependent, VerifyRule::kTypical}) {
      Draft draft;
      draft.drawing = Drawing::kIndependent;
      draft.tree.Add(-1, 0);
      DrawChildren(q, 0, 1, seed, 0, &draft);
      DrawChildren(q, 1, 1, seed, 0, &draft);
      TargetLaws laws({p, p, p});
      const auto accepted = Verify({rule, seed, 0}, draft, &laws);
      ASSERT_EQ(accepted.status().message(), "");
      ASSERT_THAT(accepted->path, ElementsAre(0));
      ASSERT_GE(accepted->tokens[0], 2);
    }
  }
}

TEST(Verify, GreedyWalksWhileTheBestTokenWasDrafted) {
  Draft draft;
  draft.tree.Add(-1, 9);
  draft.tree.Add(0, 1);
  draft.tree.Add(0, 2);
  draft.tree.Add(2, 5);
  draft.tree.Add(2, 6);
  TargetLaws laws({Law({2}, {1}), Law({0}, {1}), Law({6}, {1}), Law({0}, {1}), Law({7}, {1})});
  const auto accepted = Verify({VerifyRule::kGreedy, 1, 4}, draft, &laws);
  ASSERT_TRUE(accepted.ok());
  EXPECT_THAT(accepted->path, ElementsAre(0, 2, 4));
  EXPECT_THAT(accepted->tokens, ElementsAre(2, 6, 7));
  TargetLaws spread({Law({1, 2}, {0.5, 0.5}), Law({0}, {1}), Law({6}, {1}), Law({0}, {1}), Law({7}, {1})});
  EXPECT_THAT(Verify({VerifyRule::kGreedy, 1, 4}, draft, &spread).status().message(), HasSubstr("over 2 tokens"));
}

TEST(Verify, TypicalTakesTheLongestPassingPath) {
  Draft draft;
  draft.tree.Add(-1, 9);
  draft.tree.Add(0, 1);
  draft.tree.Add(0, 2);
  draft.tree.Add(2, 5);
  const Distribution spread = Law({1, 2, 5}, {0.5, 0.25, 0.25});
  TargetLaws laws({spread, spread, spread, Law({3}, {1})});
  const auto accepted = Verify({VerifyRule::kTypical, 1, 4}, draft, &laws);
  ASSERT_TRUE(accepted.ok());
  EXPECT_THAT(accepted->path, ElementsAre(0, 2, 3));
  EXPECT_THAT(accepted->tokens, ElementsAre(2, 5, 3));
  TargetLaws sharp({Law({1, 2}, {0.95, 0.05}), spread, spread, Law({3}, {1})});
  EXPECT_THAT(Verify({VerifyRule::kTypical, 1, 4}, draft, &sharp)->path, ElementsAre(0, 1));
}

TEST(Verify, TheSameInputsGiveTheSameOutputs) {
  const Distribution p = Law({0, 1, 2}, {0.2, 0.3, 0.5}), q = Law({0, 1, 2}, {0.5, 0.3, 0.2});
  std::set<std::vector<int32_t>> texts;
  for (uint64_t position = 0; position < 30; ++position) {
    Draft draft;
    draft.drawing = Drawing::kIndependent;
    draft.tree.Add(-1, 0);
    for (int u = 0; u < 3; ++u) DrawChildren(q, u, 1, 5, position, &draft);
    Accepted first;
    for (int i = 0; i < 3; ++i) {
      TargetLaws laws(std::vector<Distribution>(4, p));
      const auto accepted = Verify({VerifyRule::kBlock, 5, position}, draft, &laws);
      ASSERT_TRUE(accepted.ok());
      if (i == 0) first = *accepted;
      ASSERT_EQ(*accepted, first);
    }
    texts.insert(first.tokens);
  }
  EXPECT_GT(texts.size(), 5u);  // and another position draws afresh
}

TEST(Verify, RefusesDraftsThatItsProofDoesNotCover) {
  const Distribution law = Law({1, 2}, {0.5, 0.5});
  Draft fork;
  fork.tree.Add(-1, 0);
  fork.tree.Add(0, 1);
  fork.tree.Add(0, 2);
  const auto message = [&](VerifyRule rule, const Draft& draft) {
    TargetLaws laws(std::vector<Distribution>(3, law));
    return Verify({rule, 1, 1}, draft, &laws).status().message();
  };
  EXPECT_THAT(message(VerifyRule::kBlock, fork), HasSubstr("block takes a chain"));
  EXPECT_THAT(message(VerifyRule::kToken, fork), HasSubstr("token takes a chain"));
  EXPECT_THAT(message(VerifyRule::kWithoutReplacement, fork), HasSubstr("drawn without replacement"));
  EXPECT_THAT(message(VerifyRule::kIndependent, fork), HasSubstr("drawn independently"));
  EXPECT_EQ(message(VerifyRule::kMatch, fork), "");

  Draft twice = fork;
  twice.tree.tokens[2] = 1;
  EXPECT_THAT(message(VerifyRule::kMatch, twice), HasSubstr("token 1 was drafted twice after node 0"));
  Draft drawn = fork;
  drawn.drawing = Drawing::kWithoutReplacement;
  EXPECT_THAT(message(VerifyRule::kWithoutReplacement, drawn), HasSubstr("comes with 0 laws"));
  drawn.laws = {Law({2}, {1}), {}, {}};
  EXPECT_THAT(message(VerifyRule::kWithoutReplacement, drawn), HasSubstr("gives it no chance"));
  drawn.laws = {Law({1, 2}, {1}), {}, {}};
  EXPECT_THAT(message(VerifyRule::kWithoutReplacement, drawn), HasSubstr("2 tokens but 1 probabilities"));

  TargetLaws two(std::vector<Distribution>(2, law));
  EXPECT_THAT(Verify({}, fork, &two).status().message(), HasSubstr("3 nodes was to be verified with 2 laws"));
  SamplerScratch scratch;
  const SamplingParams params;
  const std::vector<float> logits(7, 0);
  const std::vector<int32_t> history = {0};
  TargetLaws ragged(fork.tree, logits, params, history, &scratch);
  EXPECT_THAT(Verify({}, fork, &ragged).status().message(), HasSubstr("a row of logits for each, not 7 numbers"));
}

TEST(Verify, RuleNames) {
  for (int i = 0; i < 7; ++i) {
    const auto rule = static_cast<VerifyRule>(i);
    EXPECT_EQ(*ParseVerifyRule(VerifyRuleName(rule)), rule);
    EXPECT_EQ(IsLossless(rule), rule != VerifyRule::kTypical);
  }
  EXPECT_THAT(ParseVerifyRule("best").status().message(), HasSubstr("'best'"));
}

TEST(DraftShape, NamesAndLimits) {
  for (const char* name : {"off", "chain:1", "chain:7", "fork:4,2,1:15", "fork:1,1:1"}) {
    ASSERT_TRUE(ParseShape(name).ok()) << name;
    EXPECT_EQ(ShapeName(*ParseShape(name)), name);
  }
  EXPECT_EQ(*ParseShape("chain:2"), ChainShape(2));
  for (const char* name : {"", "chain", "chain:", "chain:0", "chain:-3", "chain:99999999999", "chain:2x", "fork:2",
                           "fork::3", "fork:2,:3", "fork:0:3", "fork:65:3", "fork:2:1024", "tree:3"}) {
    EXPECT_EQ(ParseShape(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(Draft, RemoveTokenRenormalises) {
  Distribution law = Law({1, 4, 6}, {0.5, 0.2, 0.3});
  RemoveToken(2, &law);
  EXPECT_EQ(law.ids.size(), 3u);
  RemoveToken(4, &law);
  EXPECT_THAT(law.ids, ElementsAre(1, 6));
  EXPECT_DOUBLE_EQ(law.probs[0], 0.625);
  RemoveToken(1, &law);
  EXPECT_THAT(law.probs, ElementsAre(1));
  RemoveToken(6, &law);
  EXPECT_TRUE(law.ids.empty());
}

TEST(Draft, ReorderMovesTheLaws) {
  Draft draft;
  draft.drawing = Drawing::kWithoutReplacement;
  draft.tree.Add(-1, 0);
  DrawChildren(Law({1, 2, 3}, {0.2, 0.3, 0.5}), 0, 2, 1, 1, &draft);
  DrawChildren(Law({4}, {1}), 1, 3, 1, 1, &draft);
  DrawChildren(Law({5}, {1}), 2, 1, 1, 1, &draft);
  draft.laws.resize(draft.tree.tokens.size());
  ASSERT_EQ(draft.tree.size(), 5);  // one law held a single token
  const Draft moved = Reorder(draft, NodeOrder::kDepthFirst);
  EXPECT_EQ(Validate(moved, 10).message(), "");
  EXPECT_THAT(moved.tree.parents, ElementsAre(-1, 0, 1, 0, 3));
  EXPECT_THAT(moved.laws[1].ids, ElementsAre(4));
  EXPECT_THAT(moved.laws[3].ids, ElementsAre(5));
  EXPECT_THAT(Validate(draft, 5).message(), HasSubstr("token 5, but the vocabulary has 5"));
}

}  // namespace
}  // namespace farsight
