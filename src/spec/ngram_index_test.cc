#include "spec/ngram_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Text = std::vector<int32_t>;

Text RandomText(std::mt19937& rng, int n, int32_t vocab) {
  Text text;
  for (int i = 0; i < n; ++i) text.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
  return text;
}

// Places by the words of the header: longest context first, then latest.
std::vector<std::pair<int32_t, int>> Oracle(const Text& text, const NgramOptions& o, bool shorter) {
  std::vector<std::pair<int32_t, int>> found;
  const int n = static_cast<int>(text.size());
  for (int m = o.max_match; m >= o.min_match; --m) {
    if (!shorter && !found.empty()) break;
    for (int next = n - 1; next >= m; --next) {
      const bool equal = std::equal(text.end() - m, text.end(), text.begin() + (next - m));
      const bool known = std::any_of(found.begin(), found.end(), [&](auto f) { return f.first == next; });
      if (equal && !known && found.size() < static_cast<size_t>(o.max_matches)) found.emplace_back(next, m);
    }
  }
  return found;
}

std::vector<std::pair<int32_t, int>> Found(const NgramIndex& index, bool shorter) {
  std::vector<std::pair<int32_t, int>> out;
  for (const auto& m : index.Find(shorter)) out.emplace_back(m.next, m.length);
  return out;
}

// The draft of one place, read on periodically beyond the end.
Text Continue(const Text& text, int32_t next, int n) {
  Text virtual_text = text;
  for (int i = 0; i < n; ++i) virtual_text.push_back(virtual_text[static_cast<size_t>(next + i)]);
  return Text(virtual_text.end() - n, virtual_text.end());
}

Text Drafted(const TokenTree& tree) { return Text(tree.tokens.begin() + 1, tree.tokens.end()); }

TEST(NgramIndex, FindsWhatASearchFindsAtEveryLength) {
  std::mt19937 rng(1);
  for (int round = 0; round < 40; ++round) {
    NgramOptions o;
    o.min_match = 1 + round % 3;
    o.max_match = o.min_match + round % 5;
    o.max_matches = 1 + round % 7;
    const Text text = RandomText(rng, 200, 2 + round % 6);
    NgramIndex index(o);
    for (size_t n = 1; n <= text.size(); ++n) {
      index.Append(std::span(text).subspan(n - 1, 1));
      const Text prefix(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n));
      ASSERT_EQ(Found(index, false), Oracle(prefix, o, false)) << round << " " << n;
      ASSERT_EQ(Found(index, true), Oracle(prefix, o, true)) << round << " " << n;
    }
  }
}

TEST(NgramIndex, TakingBackIsAsIfNeverSeen) {
  std::mt19937 rng(2);
  const NgramOptions o;
  NgramIndex index(o);
  Text text;
  for (int step = 0; step < 400; ++step) {
    if (rng() % 3 == 0) {
      const auto length = static_cast<size_t>(rng() % (text.size() + 1));
      index.Truncate(static_cast<int64_t>(length));
      text.resize(length);
    }
    const Text more = RandomText(rng, 1 + static_cast<int>(rng() % 90), 3);
    index.Append(more);
    text.insert(text.end(), more.begin(), more.end());
    NgramIndex fresh(o);
    fresh.Append(text);
    ASSERT_EQ(index.size(), static_cast<int64_t>(text.size()));
    ASSERT_EQ(Found(index, true), Found(fresh, true));
    ASSERT_EQ(index.Propose({{3, 2, 1}, 12}, 12), fresh.Propose({{3, 2, 1}, 12}, 12));
  }
}

TEST(NgramIndex, AChainFollowsTheLatestOfTheLongestMatches) {
  std::mt19937 rng(3);
  NgramOptions o;
  int drafted = 0;
  for (int round = 0; round < 300; ++round) {
    const Text text = RandomText(rng, 60, 3);
    NgramIndex index(o);
    index.Append(text);
    const auto places = Oracle(text, o, false);
    const TokenTree tree = index.Propose(ChainShape(9), 9);
    ASSERT_TRUE(IsChain(tree));
    ASSERT_EQ(tree.tokens[0], text.back());
    if (places.empty()) {
      ASSERT_EQ(tree.num_drafted(), 0);
      continue;
    }
    ASSERT_EQ(Drafted(tree), Continue(text, places[0].first, 9));
    ++drafted;
  }
  EXPECT_GT(drafted, 200);
}

TEST(NgramIndex, AVoteTakesTheMostFrequentContinuation) {
  NgramOptions o;
  o.continuation = Continuation::kMostFrequent;
  NgramIndex vote(o), recent(NgramOptions{});
  const Text text = {1, 2, 5, 8, 1, 2, 5, 7, 1, 2, 6, 9, 1, 2};  // after 1 2: twice 5, then 6
  vote.Append(text);
  recent.Append(text);
  EXPECT_THAT(Drafted(vote.Propose(ChainShape(2), 2)), ElementsAre(5, 7));  // 8 and 7 tie: the later wins
  EXPECT_THAT(Drafted(recent.Propose(ChainShape(2), 2)), ElementsAre(6, 9));
  const TokenTree fork = vote.Propose({{2, 2}, 8}, 8);
  EXPECT_THAT(Drafted(fork), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(fork.parents, ElementsAre(-1, 0, 0, 1, 1, 2));
  EXPECT_THAT(Drafted(vote.Propose({{2, 2}, 8}, 3)), ElementsAre(5, 6, 7));
  EXPECT_THAT(Drafted(vote.Propose({{1, 2}, 8}, 8)), ElementsAre(5, 7, 8));
}

TEST(NgramIndex, ForksFillUpWithShorterContexts) {
  NgramOptions o;
  NgramIndex index(o);
  index.Append(Text{1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3});  // 1 2 3 -> 4; 2 3 -> 5
  EXPECT_THAT(Drafted(index.Propose(ChainShape(1), 1)), ElementsAre(4));
  EXPECT_THAT(Drafted(index.Propose({{2}, 2}, 2)), ElementsAre(4, 5));
}

TEST(NgramIndex, APeriodRunsOn) {
  NgramIndex index(NgramOptions{});
  index.Append(Text{7, 7, 7});
  EXPECT_THAT(Drafted(index.Propose(ChainShape(5), 5)), ElementsAre(7, 7, 7, 7, 7));
  NgramIndex two(NgramOptions{});
  two.Append(Text{1, 2, 1, 2});
  EXPECT_THAT(Drafted(two.Propose(ChainShape(5), 5)), ElementsAre(1, 2, 1, 2, 1));
}

TEST(NgramIndex, ShortTextsGiveNothing) {
  for (const Text& text : {Text{5}, Text{5, 6}, Text{5, 6, 7}}) {
    NgramIndex index(NgramOptions{});
    index.Append(text);
    EXPECT_THAT(Drafted(index.Propose(ChainShape(5), 5)), IsEmpty());
  }
  NgramIndex index(NgramOptions{});
  index.Append(Text{1, 2, 1, 2});
  EXPECT_EQ(index.Propose(ChainShape(5), 0).num_drafted(), 0);
  EXPECT_EQ(index.Propose(ChainShape(0), 5).num_drafted(), 0);
}

}  // namespace
}  // namespace farsight
