// The definition against numbers computed elsewhere, against finite differences, and against the forward's selection.
#include "train/forecast_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/ref/ref_backend.h"
#include "train/testing/golden.h"

namespace farsight {
namespace {

using testing::Floats;
using testing::GoldenCase;
using testing::Hashed;
using Ids = std::vector<int32_t>;

ForecastReferenceRow RowOf(const GoldenCase& g, int64_t position, int head) {
  const ForecastTask& t = g.task;
  const std::span<const double> f(g.forecast.data() + (position * t.kv_heads + head) * t.head_dim,
                                  static_cast<size_t>(t.head_dim));
  return ForecastReference(t, {g.length, g.q, g.k}, position, head, f);
}

// Two KV heads, eight query heads, 1,200 tokens, as the golden files have it.
GoldenCase Published(ForecastTeacher teacher) {
  GoldenCase g = testing::GoldenCases().at(0);
  g.task.teacher = teacher;
  return g;
}

TEST(ForecastReference, ListsAsPublished) {
  const GoldenCase fine = Published(ForecastTeacher::kFine);
  const GoldenCase model = Published(ForecastTeacher::kModel);
  for (const int h : {0, 1}) {
    EXPECT_EQ(RowOf(fine, 30, h).forecast_ids, (Ids{0}));
    EXPECT_EQ(RowOf(model, 30, h).teacher_ids, (Ids{0}));
    EXPECT_EQ(RowOf(fine, 500, h).forecast_ids, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(RowOf(model, 1100, 0).teacher_ids, (Ids{0, 2, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17}));
  EXPECT_EQ(RowOf(model, 1100, 1).teacher_ids, (Ids{0, 1, 2, 3, 4, 7, 9, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(RowOf(model, 1199, 0).teacher_ids, (Ids{0, 1, 3, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(RowOf(model, 1199, 1).teacher_ids, (Ids{0, 1, 2, 5, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
  for (const GoldenCase* g : {&fine, &model}) {  // whichever windows are visible, the Forecast's list is the same
    EXPECT_EQ(RowOf(*g, 1100, 0).forecast_ids, (Ids{0, 2, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17}));
    EXPECT_EQ(RowOf(*g, 1100, 1).forecast_ids, (Ids{0, 1, 2, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
    EXPECT_EQ(RowOf(*g, 1199, 0).forecast_ids, (Ids{0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
    EXPECT_EQ(RowOf(*g, 1199, 1).forecast_ids, (Ids{0, 1, 2, 3, 4, 7, 8, 10, 12, 14, 15, 16, 17, 18}));
  }
  EXPECT_EQ(RowOf(fine, 1199, 0).teacher_ids, (Ids{0, 1, 3, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(RowOf(fine, 1199, 1).teacher_ids, (Ids{0, 1, 2, 4, 5, 7, 9, 11, 13, 14, 15, 16, 17, 18}));
}

TEST(ForecastReference, ScoresAndLossesAsPublished) {
  const GoldenCase g = Published(ForecastTeacher::kFine);
  const auto model = RowOf(Published(ForecastTeacher::kModel), 1199, 0);
  EXPECT_NEAR(model.teacher[0], 0.05620742, 1e-8);
  EXPECT_NEAR(model.teacher[1], 0.05395273, 1e-8);
  EXPECT_NEAR(model.teacher[2], 0.05363684, 1e-8);
  double sum = 0;
  for (const double v : model.teacher) sum += v;
  EXPECT_NEAR(sum, 4, 1e-12);

  const auto keys = ForecastKeys(g.task, {g.length, g.q, g.k}, 1);
  EXPECT_NEAR(keys[7 * 8 + 2], -0.01537804, 1e-8);
  double score = 0;  // window 10 of head 1 at 1199: a plain dot product
  for (size_t d = 0; d < 8; ++d) score += g.forecast[(1199 * 2 + 1) * 8 + d] * keys[10 * 8 + d];
  EXPECT_NEAR(score, -0.03069475, 1e-8);

  const auto mean_loss = [&](int64_t first, int64_t last) {
    double loss = 0;
    for (int64_t p = first; p <= last; ++p) loss += RowOf(g, p, 0).loss + RowOf(g, p, 1).loss;
    return loss / static_cast<double>(2 * (last - first + 1));
  };
  EXPECT_NEAR(mean_loss(500, 500), 0.00126860, 5e-9);
  EXPECT_NEAR(mean_loss(1199, 1199), 0.00126976, 5e-9);
  EXPECT_NEAR(mean_loss(1136, 1199), 0.00203564, 5e-9);
}

TEST(ForecastReference, LossTeacherAndGradientAsAutomaticDifferentiation) {
  const auto cases = testing::GoldenCases();
  ASSERT_EQ(cases.size(), 7u);
  for (const GoldenCase& g : cases) {
    ASSERT_TRUE(Validate(g.task).ok());
    for (const auto& want : g.rows) {
      SCOPED_TRACE(want.position);
      const auto got = RowOf(g, want.position, want.head);
      EXPECT_EQ(got.teacher_ids, want.ids);
      EXPECT_NEAR(got.loss, want.loss, 1e-9 + 1e-7 * want.loss);
      for (size_t d = 0; d < 8; ++d) EXPECT_NEAR(got.gradient[d], want.gradient[d], 1e-8);
    }
  }
}

TEST(ForecastReference, GradientIsTheSlopeOfTheLoss) {
  for (const GoldenCase& g : testing::GoldenCases()) {
    for (const auto& row : g.rows) {
      const size_t at = static_cast<size_t>((row.position * 2 + row.head) * 8);
      const std::vector<double> f(g.forecast.begin() + static_cast<std::ptrdiff_t>(at),
                                  g.forecast.begin() + static_cast<std::ptrdiff_t>(at + 8));
      const auto loss_at = [&](size_t d, double step) {
        auto moved = f;
        moved[d] += step;
        return ForecastReference(g.task, {g.length, g.q, g.k}, row.position, row.head, moved).loss;
      };
      const auto grad = ForecastReference(g.task, {g.length, g.q, g.k}, row.position, row.head, f).gradient;
      for (const size_t d : {size_t{0}, size_t{5}}) {
        const double h = 1e-5;
        EXPECT_NEAR((loss_at(d, h) - loss_at(d, -h)) / (2 * h), grad[d], 1e-8 + 1e-4 * std::fabs(grad[d]));
      }
    }
  }
}

TEST(ForecastReference, GradientOfAForecastForEachQueryHead) {
  for (GoldenCase g : testing::GoldenCases()) {
    g.task.queries = g.task.group();
    const auto f = Hashed(g.task.queries * 8, 5, 2);
    for (const int64_t p : {int64_t{900}, g.length - 1}) {
      const auto loss_at = [&](size_t d, double step) {
        auto moved = f;
        moved[d] += step;
        return ForecastReference(g.task, {g.length, g.q, g.k}, p, 1, moved).loss;
      };
      const auto grad = ForecastReference(g.task, {g.length, g.q, g.k}, p, 1, f).gradient;
      ASSERT_EQ(grad.size(), f.size());
      for (const size_t d : {size_t{3}, size_t{17}}) {
        const double h = 1e-5;
        EXPECT_NEAR((loss_at(d, h) - loss_at(d, -h)) / (2 * h), grad[d], 1e-8 + 1e-4 * std::fabs(grad[d]));
      }
    }
  }
}

TEST(ForecastReference, APerfectStudentHasNoLossAndItsListIsTheTeachers) {
  // One query head a KV head: a Forecast that equals the target's query scores every window in the same order.
  GoldenCase g = testing::GoldenCases().at(1);
  g.task.heads = g.task.kv_heads;
  g.q = Hashed(g.length * 2 * 8, 3, 2);
  g.forecast = g.q;
  for (const int64_t p : {63, 64, 500, 900, 1100, 1199}) {
    for (const int h : {0, 1}) {
      const auto row = RowOf(g, p, h);
      EXPECT_EQ(row.forecast_ids, row.teacher_ids);
      EXPECT_NEAR(row.loss, 0, 1e-10);
      for (const double v : row.gradient) EXPECT_NEAR(v, 0, 1e-9);
    }
  }
  g.task.keys = SummaryKind::kSketch;
  const auto row = RowOf(g, 1199, 0);
  EXPECT_EQ(row.forecast_ids, row.teacher_ids);
  EXPECT_NEAR(row.loss, 0, 1e-10);
}

TEST(ForecastReference, RowsWithoutAChoiceTeachNothing) {
  const GoldenCase g = testing::GoldenCases().at(0);
  for (const int64_t p : {0, 1, 31, 32, 63, 64, 320, 383}) {
    const auto row = RowOf(g, p, 0);
    EXPECT_NEAR(row.loss, 0, 1e-12) << p;
    for (const double v : row.gradient) EXPECT_NEAR(v, 0, 1e-12);
    EXPECT_EQ(row.teacher_ids, row.forecast_ids);
    EXPECT_EQ(row.teacher_ids.size(), static_cast<size_t>(p / 64 + 1));
  }
}

TEST(ForecastReference, AFactorOrAConstantChangesNoList) {
  GoldenCase g = testing::GoldenCases().at(0);
  const auto before = RowOf(g, 1150, 1);
  for (double& v : g.forecast) v *= 37.5;
  EXPECT_EQ(RowOf(g, 1150, 1).forecast_ids, before.forecast_ids);
}

// What the model's own teacher chooses is what the forward selects.
TEST(ForecastReference, ModelTeacherIsTheForwardsSelection) {
  const auto cases = testing::GoldenCases();
  for (const size_t index : {size_t{1}, size_t{3}, size_t{6}}) {
    const GoldenCase& g = cases[index];
    const ForecastTask& t = g.task;
    const auto blocks = static_cast<int>((g.length + t.block_tokens - 1) / t.block_tokens);
    RefBackend backend;
    KvView kv;
    kv.dtype = DType::kF32;
    kv.block_tokens = t.block_tokens;
    kv.num_kv_heads = kv.block_heads = t.kv_heads;
    kv.head_dim = t.head_dim;
    kv.page_bytes = backend.KvPageBytes(kv);
    SummaryView summary;
    summary.kind = t.keys;
    summary.kernel = t.kernel;
    summary.stride = t.stride;
    summary.bits = t.bits;
    summary.page_bytes = backend.SummaryPageBytes(kv, summary);
    summary.head_bytes = summary.page_bytes * static_cast<size_t>(blocks);
    std::vector<std::byte> pages(kv.page_bytes * static_cast<size_t>(t.kv_heads * blocks));
    std::vector<std::byte> summaries(summary.page_bytes * static_cast<size_t>(t.kv_heads * blocks));
    kv.pages = pages.data();
    summary.pages = summaries.data();
    std::vector<int32_t> positions, table, row_seq(static_cast<size_t>(g.length), 0);
    for (int i = 0; i < g.length; ++i) positions.push_back(i);
    for (int b = 0; b < blocks; ++b) table.push_back(b);
    RowBatch rows{static_cast<int>(g.length), 1, blocks, nullptr, positions.data(), row_seq.data(), table.data()};
    const auto k = Floats(g.k);
    const auto q = Floats(g.q);
    backend.AppendKv({rows, k.data(), k.data(), t.kv_heads * t.head_dim, kv});
    backend.Summarise({rows, kv, summary});
    SelectParams p;
    p.rows = rows;
    p.q = q.data();
    p.q_stride = t.heads * t.head_dim;
    p.num_heads = t.heads;
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(t.head_dim)));
    p.kv = kv;
    p.summary = summary;
    for (const int row : {700, 901, 1199}) {
      for (int h = 0; h < t.kv_heads; ++h) {
        const auto scores = backend.BlockScores(p, row, h);
        EXPECT_EQ(RowOf(g, row, h).teacher_ids, RefBackend::PickBlocks(scores, t.top_k, t.init_blocks, t.local_blocks))
            << index << " " << row << " " << h;
      }
    }
  }
}

TEST(ForecastTask, ImpossibleConstantsAreNamed) {
  ForecastTask t = testing::GoldenCases().at(0).task;
  EXPECT_TRUE(Validate(t).ok());
  t.top_k = 6;  // one initial and five newest blocks fill it
  EXPECT_THAT(Validate(t).message(), ::testing::HasSubstr("nothing to forecast"));
  t.top_k = 14;
  t.stride = 24;
  EXPECT_FALSE(Validate(t).ok());
  t.stride = 16;
  t.heads = 7;
  EXPECT_FALSE(Validate(t).ok());
  t.heads = 8;
  t.queries = 2;  // neither one nor one a query head
  EXPECT_FALSE(Validate(t).ok());
  t.queries = 4;
  EXPECT_TRUE(Validate(t).ok());
  t.keys = SummaryKind::kNone;
  EXPECT_FALSE(Validate(t).ok());
  EXPECT_FALSE(ParseForecastTeacher("both").ok());
  EXPECT_EQ(*ParseForecastTeacher(ForecastTeacherName(ForecastTeacher::kModel)), ForecastTeacher::kModel);
}

}  // namespace
}  // namespace farsight
