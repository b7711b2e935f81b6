// What needs no model: statistics, draws, judging, tables and pictures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/report.h"

namespace farsight::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Statistics, WilsonsIntervalHasItsKnownValues) {
  const Interval i = Wilson(192, 200);
  EXPECT_NEAR(i.low, 0.923, 5e-4);
  EXPECT_NEAR(i.high, 0.980, 5e-4);
  EXPECT_EQ(Wilson(0, 10).low, 0);
  EXPECT_NEAR(Wilson(0, 10).high, 0.278, 5e-4);
  EXPECT_NEAR(Wilson(10, 10).low, 0.722, 5e-4);
  EXPECT_EQ(Wilson(10, 10).high, 1);
  EXPECT_EQ(Wilson(0, 0).high, 1);
}

TEST(Statistics, LogSumSurvivesLargeLogits) {
  const std::vector<float> logits = {1000.0f, 1000.0f};
  EXPECT_NEAR(LogSum(logits), 1000 + std::log(2.0), 1e-9);
}

TEST(Statistics, DivergenceIsZeroOnlyForTheSameDistribution) {
  const std::vector<float> a = {0.5f, -1.0f, 2.0f};
  std::vector<float> shifted = a;
  for (float& v : shifted) v += 3;  // the softmax is the same
  EXPECT_NEAR(Divergence(a, shifted), 0, 1e-6);
  const std::vector<float> even = {0, 0};
  const std::vector<float> odd = {std::log(3.0f), 0};  // 3/4, 1/4
  EXPECT_NEAR(Divergence(even, odd), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-6);
}

TEST(Statistics, MeanAndItsError) {
  Mean m;
  for (const double v : {1.0, 3.0, 1.0, 3.0}) m.Add(v);
  EXPECT_DOUBLE_EQ(m.mean(), 2);
  EXPECT_DOUBLE_EQ(m.error(), 0.5);  // deviation 1 over the root of 4
}

TEST(RandomTest, DrawsAreFixedForever) {
  Random r(0);
  EXPECT_EQ(r.Next(), 0xe220a8397b1dcdafu);  // the published first outputs of SplitMix64
  EXPECT_EQ(r.Next(), 0x6e789e6aa1b965f4u);
  Random a({1, 2, 3});
  Random b({1, 3, 2});
  EXPECT_NE(a.Next(), b.Next());
  std::set<size_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(a.Below(7));
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(*seen.rbegin(), 6u);
}

TEST(Words, AreManyAndDistinct) {
  const std::set<std::string_view> words(HeldOutWords().begin(), HeldOutWords().end());
  EXPECT_EQ(words.size(), HeldOutWords().size());
  EXPECT_GE(words.size(), 200u);
}

Query Expect(const std::string& expected, Match match) {
  Query q;
  q.expected = expected;
  q.match = match;
  return q;
}

TEST(Judge, NumbersAreComparedWhole) {
  const Query q = Expect("1234567", Match::kNumber);
  EXPECT_TRUE(Judge(q, "The code for x is 1234567.").right);
  EXPECT_TRUE(Judge(q, "1234567").right);
  EXPECT_FALSE(Judge(q, "12345678").right);
  EXPECT_FALSE(Judge(q, "01234567").right);
  EXPECT_FALSE(Judge(q, "7654321 or 1234567").right) << "the first number is the answer";
  EXPECT_TRUE(Judge(q, "Of the 3 codes: 1234567").right) << "short numbers are counts";
  EXPECT_FALSE(Judge(q, "").right);
}

TEST(Judge, GenerationStopsWhenTheNumberHasEnded) {
  const Query q = Expect("1234567", Match::kNumber);
  EXPECT_FALSE(Decided(q, "The code is 1234567"));
  EXPECT_TRUE(Decided(q, "The code is 1234567."));
  EXPECT_TRUE(Decided(q, "999 is"));
}

TEST(Judge, AWordMustStandAlone) {
  const Query q = Expect("qzv", Match::kWord);
  EXPECT_TRUE(Judge(q, "qzv'").right);
  EXPECT_TRUE(Judge(q, "The value is 'qzv'.").right);
  EXPECT_TRUE(Judge(q, "qzvx, no: qzv").right);
  EXPECT_FALSE(Judge(q, "qzvx").right);
  EXPECT_FALSE(Judge(q, "aqzv").right);
  EXPECT_FALSE(Decided(q, "qzv'"));
  EXPECT_TRUE(Decided(q, "qzv'\n"));
}

TEST(Judge, ACopyCountsTheWordsBeforeTheFirstMistake) {
  const Query q = Expect("one two three four", Match::kWords);
  EXPECT_TRUE(Judge(q, " one two three four\n").right);
  const Score half = Judge(q, " one two tree four");
  EXPECT_FALSE(half.right);
  EXPECT_DOUBLE_EQ(half.share, 0.5);
  EXPECT_FALSE(Decided(q, " one two thr")) << "the last word may still grow";
  EXPECT_TRUE(Decided(q, " one two thr ee"));
  EXPECT_FALSE(Decided(q, " one two three four"));
  EXPECT_TRUE(Decided(q, " one two three four\n"));
}

TEST(Tasks, NamesGoBothWays) {
  for (const Task t : {Task::kNeedle, Task::kMultiKey, Task::kMultiNeedle, Task::kVarTrack, Task::kCopy}) {
    const auto parsed = ParseTask(TaskName(t));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, t);
  }
  EXPECT_FALSE(ParseTask("haystack").ok());
}

TEST(Grid, DepthsAreEvenlySpread) {
  EXPECT_THAT(Depths(10), ElementsAre(5, 15, 25, 35, 45, 55, 65, 75, 85, 95));
  EXPECT_THAT(Depths(1), ElementsAre(50));
}

TEST(Variants, EveryBudgetAndNumberOfBitsOnce) {
  const auto v = MakeVariants({AttentionPolicy::kDense, AttentionPolicy::kSketch, AttentionPolicy::kInfLlm2}, {16, 24},
                              {1, 2, 4}, {});
  ASSERT_TRUE(v.ok());
  ASSERT_EQ(v->size(), 1u + 6u + 2u);
  EXPECT_EQ((*v)[0].Label(), "dense");
  EXPECT_EQ((*v)[1].Label(), "sketch 1 bit 16 blocks");
  EXPECT_EQ((*v)[6].Label(), "sketch 4 bits 24 blocks");
  EXPECT_EQ((*v)[8].Label(), "infllm2 24 blocks");
  EXPECT_FALSE(MakeVariants({AttentionPolicy::kSketch}, {0}, {}, {}).ok());
  EXPECT_FALSE(MakeVariants({}, {}, {}, {}).ok());
}

Table Small() {
  Table t({"name", "n", "share"});
  t.Add({Table::Text("a,\"b\""), Table::Integer(3), Table::Real(1.0 / 3, 2)});
  t.Add({Table::Text("c"), {}, Table::Real(1, 2)});
  return t;
}

TEST(Tables, MarkdownIsRounded) {
  EXPECT_EQ(Small().Print(Format::kMarkdown),
            "| name | n | share |\n| --- | --- | --- |\n| a,\"b\" | 3 | 0.33 |\n"
            "| c |  | 1.00 |\n");
}

TEST(Tables, JsonIsNotRounded) {
  const auto j = nlohmann::json::parse(Small().Print(Format::kJson));
  ASSERT_EQ(j.size(), 2u);
  EXPECT_EQ(j[0]["name"], "a,\"b\"");
  EXPECT_DOUBLE_EQ(j[0]["share"].get<double>(), 1.0 / 3);
  EXPECT_TRUE(j[1]["n"].is_null());
}

TEST(Tables, CsvQuotesWhatItMust) {
  EXPECT_THAT(Small().Print(Format::kCsv), HasSubstr("name,n,share\n\"a,\"\"b\"\"\",3,0.33333"));
}

TEST(Tables, FormatsAreNamed) {
  EXPECT_TRUE(ParseFormat("csv").ok());
  EXPECT_FALSE(ParseFormat("xml").ok());
}

TEST(Picture, ShowsEveryCellAndNeedsNothingElse) {
  Grid grid;
  grid.lengths = {1024, 2048};
  grid.axis = {25, 75};
  std::vector<Cell> cells(8);
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i].n = i == 7 ? 0 : 10;
    cells[i].right = static_cast<int64_t>(i);
  }
  const std::string svg = DrawGrid(grid, {"dense", "sketch <2>"}, cells, "a & b");
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, HasSubstr("sketch &lt;2&gt;"));
  EXPECT_THAT(svg, HasSubstr("<title>6 of 10</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#ddd\"")) << "a cell that was not measured";
  size_t cells_drawn = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++cells_drawn;
  EXPECT_EQ(cells_drawn, 7u);
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_EQ(svg.find("script"), std::string::npos);
}

TEST(Likelihood, ComparingNothingWithItself) {
  const std::vector<float> logits = {1, 2, 3, 3, 2, 1};
  const std::vector<int32_t> next = {0};
  const Comparison same = Compare(logits, logits, 3, next);
  EXPECT_EQ(same.tokens, 2);
  EXPECT_EQ(same.kl_mean, 0);
  EXPECT_EQ(same.top1, 1);
  EXPECT_NEAR(same.nll, LogSum(std::span(logits).first(3)) - 1, 1e-12);
  EXPECT_EQ(same.nll, same.nll_reference);
  const std::vector<float> other = {3, 2, 1, 3, 2, 1};
  const Comparison half = Compare(logits, other, 3, next);
  EXPECT_GT(half.kl_mean, 0.1);
  EXPECT_EQ(half.top1, 0.5);
  EXPECT_LT(half.nll, half.nll_reference);
}

}  // namespace
}  // namespace farsight::eval
