#include "train/sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace farsight {
namespace {

using ::testing::ElementsAre;

TEST(PackedText, DocumentsFollowEachOther) {
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3}, {}, {4, 5}};
  const PackedText text(documents, 9, 3);  // 9 1 2 | 3 9 9 | 4 5
  ASSERT_EQ(text.size(), 2);
  EXPECT_THAT(text[0], ElementsAre(9, 1, 2));
  EXPECT_THAT(text[1], ElementsAre(3, 9, 9));
  EXPECT_THAT(PackedText(documents, -1, 5)[0], ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(PackedText(documents, -1, 6).size(), 0);
}

TEST(PackedText, TheEndCanBeKeptForValidation) {
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3, 4, 5, 6, 7}};
  PackedText text(documents, -1, 2);
  const PackedText held = text.SplitOff(1);
  ASSERT_EQ(text.size(), 2);
  ASSERT_EQ(held.size(), 1);
  EXPECT_THAT(held[0], ElementsAre(5, 6));
  EXPECT_THAT(text[1], ElementsAre(3, 4));
}

TEST(SequenceOrder, EverySequenceOnceAnEpochInItsOwnOrder) {
  SequenceOrder order(20, 7);
  std::vector<int64_t> first, second;
  for (int64_t n = 0; n < 20; ++n) first.push_back(order.At(n));
  for (int64_t n = 20; n < 40; ++n) second.push_back(order.At(n));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 20u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 20u);
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  // Where one begins does not matter.
  SequenceOrder later(20, 7);
  EXPECT_EQ(later.At(33), second[13]);
  EXPECT_EQ(later.At(3), first[3]);
  SequenceOrder other(20, 8);
  std::vector<int64_t> third;
  for (int64_t n = 0; n < 20; ++n) third.push_back(other.At(n));
  EXPECT_NE(first, third);
  EXPECT_EQ(SequenceOrder(1, 7).At(5), 0);
}

TEST(DrawRows, OneOfEachPart) {
  const auto rows = DrawRows(100, 1100, 10, 3);
  ASSERT_EQ(rows.size(), 10u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GE(rows[i], 100 + 100 * static_cast<int32_t>(i));
    EXPECT_LT(rows[i], 200 + 100 * static_cast<int32_t>(i));
  }
  EXPECT_EQ(DrawRows(100, 1100, 10, 3), rows);
  EXPECT_NE(DrawRows(100, 1100, 10, 4), rows);
  EXPECT_THAT(DrawRows(5, 8, 0, 1), ElementsAre(5, 6, 7));
  EXPECT_THAT(DrawRows(5, 8, 100, 1), ElementsAre(5, 6, 7));
  EXPECT_THAT(DrawRows(8, 5, 2, 1), ElementsAre());
}

TEST(SeededRandom, IsSpreadAndRepeatable) {
  SeededRandom a(5);
  SeededRandom b(5);
  std::vector<int> seen(7, 0);
  double sum = 0;
  for (int i = 0; i < 7000; ++i) {
    const uint64_t x = a.Below(7);
    EXPECT_EQ(b.Below(7), x);
    ++seen[x];
    sum += a.Uniform();
    b.Uniform();
  }
  for (const int n : seen) EXPECT_NEAR(n, 1000, 150);
  EXPECT_NEAR(sum / 7000, 0.5, 0.02);
  EXPECT_NE(MixSeed(1, 2, 3), MixSeed(1, 3, 2));
}

}  // namespace
}  // namespace farsight
