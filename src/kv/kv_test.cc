#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kv/block_pool.h"
#include "kv/sequence_cache.h"

namespace farsight {
namespace {

std::vector<int32_t> Tokens(int n) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  std::iota(t.begin(), t.end(), 0);
  return t;
}

TEST(BlockPool, HandsOutEveryBlockOnceAndTakesItBack) {
  BlockPool pool(3);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.Allocate(), -1);
  pool.AddOwner(1);
  EXPECT_TRUE(pool.Shared(1));
  pool.Release(1);
  EXPECT_EQ(pool.num_free(), 0);
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(SequenceCache, AppendTakesBlocksOnlyWhenTheLastIsFull) {
  BlockPool pool(4);
  SequenceCache s(&pool, 16);
  std::vector<BlockCopy> copies;
  EXPECT_TRUE(s.Append(Tokens(16), &copies));
  EXPECT_EQ(s.blocks().size(), 1u);
  EXPECT_TRUE(s.Append(Tokens(1), &copies));
  EXPECT_EQ(s.blocks().size(), 2u);
  EXPECT_FALSE(s.Append(Tokens(48), &copies)) << "17 + 48 tokens need 5 blocks";
  EXPECT_EQ(s.length(), 17) << "a refused append changes nothing";
  EXPECT_TRUE(s.Append(Tokens(47), &copies));
  EXPECT_EQ(pool.num_free(), 0);
  s.Truncate(16);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_TRUE(copies.empty());
}

TEST(SequenceCache, AForkSharesAndTheFirstWriterCopies) {
  BlockPool pool(8);
  std::vector<BlockCopy> copies;
  SequenceCache a(&pool, 16);
  ASSERT_TRUE(a.Append(Tokens(40), &copies));
  SequenceCache b = a.Fork(40);
  EXPECT_EQ(pool.num_free(), 5);
  EXPECT_EQ(b.BlocksNeeded(1), 1);
  ASSERT_TRUE(b.Append(Tokens(1), &copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, a.blocks()[2]);
  EXPECT_EQ(copies[0].to, b.blocks()[2]);
  EXPECT_EQ(a.blocks()[1], b.blocks()[1]);
  copies.clear();
  ASSERT_TRUE(a.Append(Tokens(1), &copies)) << "the other owner left, so no copy";
  EXPECT_TRUE(copies.empty());
}

TEST(SequenceCache, AForkAtABlockEdgeNeedsNoCopy) {
  BlockPool pool(8);
  std::vector<BlockCopy> copies;
  SequenceCache a(&pool, 16);
  ASSERT_TRUE(a.Append(Tokens(40), &copies));
  SequenceCache b = a.Fork(32);
  ASSERT_TRUE(b.Append(Tokens(20), &copies));
  EXPECT_TRUE(copies.empty());
}

TEST(SequenceCache, RandomLivesLeaveThePoolFull) {
  std::mt19937 rng(7);
  BlockPool pool(64);
  {
    std::vector<SequenceCache> live;
    std::vector<BlockCopy> copies;
    for (int i = 0; i < 5000; ++i) {
      const auto pick = [&] { return rng() % live.size(); };
      switch (live.empty() ? 0 : rng() % 4) {
        case 0:
          live.emplace_back(&pool, 16);
          break;
        case 1:
          (void)live[pick()].Append(Tokens(static_cast<int>(rng() % 50)), &copies);
          break;
        case 2: {
          auto& s = live[pick()];
          s.Truncate(static_cast<int64_t>(rng() % static_cast<uint32_t>(s.length() + 1)));
          break;
        }
        default: {
          const size_t from = pick();
          SequenceCache fork =
              live[from].Fork(static_cast<int64_t>(rng() % static_cast<uint32_t>(live[from].length() + 1)));
          if (live.size() < 12) {
            live.push_back(std::move(fork));
          } else {
            live[pick()] = std::move(fork);
          }
        }
      }
      for (const auto& s : live) ASSERT_EQ(static_cast<int64_t>(s.blocks().size()), (s.length() + 15) / 16);
    }
  }
  EXPECT_EQ(pool.num_free(), 64);
}

}  // namespace
}  // namespace farsight
