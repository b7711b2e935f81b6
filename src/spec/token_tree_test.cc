#include "spec/token_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "spec/testing/random_tree.h"

namespace farsight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RandomTree;

//        0
//      /   \.
//     1     2
//    / \     \.
//   3   4     5
TokenTree Sample() {
  TokenTree t;
  t.Add(-1, 10);
  t.Add(0, 11);
  t.Add(0, 12);
  t.Add(1, 13);
  t.Add(1, 14);
  t.Add(2, 15);
  return t;
}

TEST(TokenTree, ChainIsASpecialCase) {
  const TokenTree chain = MakeChain(7, std::vector<int32_t>{1, 2, 3});
  EXPECT_TRUE(IsChain(chain));
  EXPECT_THAT(chain.parents, ElementsAre(-1, 0, 1, 2));
  EXPECT_THAT(chain.depths, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(chain.num_drafted(), 3);
  EXPECT_EQ(OrderNodes(chain, NodeOrder::kBreadthFirst), OrderNodes(chain, NodeOrder::kDepthFirst));
  EXPECT_TRUE(IsChain(MakeChain(7, {})));
  EXPECT_FALSE(IsChain(Sample()));
  EXPECT_FALSE(IsChain(TokenTree()));
}

TEST(TokenTree, OrdersKeepSiblingsInOrder) {
  const TokenTree tree = Sample();
  EXPECT_THAT(OrderNodes(tree, NodeOrder::kBreadthFirst), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(OrderNodes(tree, NodeOrder::kDepthFirst), ElementsAre(0, 1, 3, 4, 2, 5));
  const TokenTree dfs = Reorder(tree, OrderNodes(tree, NodeOrder::kDepthFirst));
  EXPECT_THAT(dfs.tokens, ElementsAre(10, 11, 13, 14, 12, 15));
  EXPECT_THAT(dfs.parents, ElementsAre(-1, 0, 1, 1, 0, 4));
  EXPECT_EQ(Reorder(dfs, OrderNodes(dfs, NodeOrder::kBreadthFirst)), tree);
  EXPECT_THAT(PathTo(tree, 5), ElementsAre(0, 2, 5));
  const TreeChildren children = ChildrenOf(tree);
  EXPECT_EQ(children.Of(1)[0], 3);
  EXPECT_EQ(children.Of(1).size(), 2u);
  EXPECT_EQ(children.Of(5).size(), 0u);
}

std::multiset<std::vector<int32_t>> TokenPaths(const TokenTree& tree) {
  std::multiset<std::vector<int32_t>> paths;
  for (int u = 0; u < tree.size(); ++u) {
    std::vector<int32_t> tokens;
    for (int32_t v : PathTo(tree, u)) tokens.push_back(tree.tokens[static_cast<size_t>(v)]);
    paths.insert(tokens);
  }
  return paths;
}

TEST(TokenTree, RandomTreesKeepTheirPathsInEveryOrder) {
  std::mt19937 rng(1);
  for (int i = 0; i < 200; ++i) {
    const int nodes = 1 + static_cast<int>(rng() % 150);
    const TokenTree tree = RandomTree(rng, nodes, 50, i % 5 * 0.25);
    ASSERT_TRUE(Validate(tree).ok());
    for (NodeOrder order : {NodeOrder::kBreadthFirst, NodeOrder::kDepthFirst}) {
      auto places = OrderNodes(tree, order);
      const TokenTree moved = Reorder(tree, places);
      ASSERT_TRUE(Validate(moved).ok());
      ASSERT_EQ(TokenPaths(moved), TokenPaths(tree));
      const bool sorted = std::is_sorted(moved.depths.begin(), moved.depths.end());
      if (order == NodeOrder::kBreadthFirst) {
        ASSERT_TRUE(sorted);
      }
      std::sort(places.begin(), places.end());
      for (size_t u = 0; u < places.size(); ++u) ASSERT_EQ(places[u], static_cast<int32_t>(u));
    }
    const AncestorMasks masks = AncestorMasksOf(tree);
    for (int u = 0; u < nodes; ++u) {
      const auto path = PathTo(tree, u);
      for (int v = 0; v < nodes; ++v) {
        ASSERT_EQ(masks.Has(u, v), std::find(path.begin(), path.end(), v) != path.end()) << u << " " << v;
      }
    }
  }
}

TEST(TokenTree, ValidateNamesTheFault) {
  const auto message = [](const TokenTree& t) { return Validate(t).message(); };
  EXPECT_THAT(message(TokenTree()), HasSubstr("has no node"));
  TokenTree t = Sample();
  t.parents[3] = 3;
  EXPECT_THAT(message(t), HasSubstr("node 3 of a token tree has the parent 3"));
  t = Sample();
  t.parents[0] = 0;
  EXPECT_THAT(message(t), HasSubstr("node 0"));
  t = Sample();
  t.depths[5] = 1;
  EXPECT_THAT(message(t), HasSubstr("the depth 1, but its parent asks for 2"));
  t = Sample();
  t.tokens[2] = -1;
  EXPECT_THAT(message(t), HasSubstr("the token -1"));
  t = Sample();
  t.depths.pop_back();
  EXPECT_THAT(message(t), HasSubstr("6 tokens has 6 parents and 5 depths"));
  EXPECT_THAT(message(MakeChain(0, std::vector<int32_t>(kMaxTreeNodes, 1))), HasSubstr("at most 1024 nodes"));
  EXPECT_EQ(Validate(MakeChain(0, std::vector<int32_t>(kMaxTreeNodes - 1, 1))).message(), "");
}

TEST(TokenTree, AcceptedRunsEndAtAStop) {
  Accepted a{{0, 1, 2, 3}, {20, 21, 22, 23}};
  TruncateAccepted(9, &a);
  EXPECT_THAT(a.tokens, ElementsAre(20, 21, 22, 23));
  TruncateAccepted(2, &a);
  EXPECT_THAT(a.tokens, ElementsAre(20, 21));
  EXPECT_THAT(a.path, ElementsAre(0, 1));
  TruncateAccepted(1, &a);
  EXPECT_EQ(a, (Accepted{{0}, {20}}));
}

TEST(TokenTree, OrderNames) {
  EXPECT_EQ(*ParseNodeOrder("bfs"), NodeOrder::kBreadthFirst);
  EXPECT_EQ(*ParseNodeOrder("dfs"), NodeOrder::kDepthFirst);
  EXPECT_THAT(ParseNodeOrder("zfs").status().message(), HasSubstr("'zfs'"));
}

}  // namespace
}  // namespace farsight
