// The fast loss against the definition, over its shapes, rows, instruction sets and threads.
#include "train/forecast_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/forecast_reference.h"
#include "train/testing/golden.h"

namespace farsight {
namespace {

using testing::Floats;
using testing::GoldenCase;

struct Fast {
  ForecastTotals totals;
  std::vector<float> gradient;
};

Fast RunFast(const GoldenCase& g, const std::vector<int32_t>& positions, int threads = 1,
             const ForecastKernels& kernels = BestForecastKernels()) {
  ThreadPool pool(threads);
  ForecastLoss loss(g.task, &pool, kernels);
  const auto q = Floats(g.q);
  const auto k = Floats(g.k);
  const auto f = Floats(g.forecast);
  const int64_t width = g.task.forecast_width();
  const int64_t q_width = static_cast<int64_t>(g.task.heads) * g.task.head_dim;
  loss.SetKeys(k.data(), static_cast<int64_t>(g.task.kv_heads) * g.task.head_dim, g.length);
  std::vector<float> rows, queries;
  for (const int32_t p : positions) {
    rows.insert(rows.end(), f.begin() + p * width, f.begin() + (p + 1) * width);
    queries.insert(queries.end(), q.begin() + p * q_width, q.begin() + (p + 1) * q_width);
  }
  Fast out;
  out.gradient.assign(rows.size(), -1.0f);
  out.totals = loss.Run(positions, queries.data(), rows.data(), out.gradient.data());
  return out;
}

void ExpectAsDefined(const GoldenCase& g, const std::vector<int32_t>& positions, const ForecastKernels& kernels) {
  const Fast fast = RunFast(g, positions, 1, kernels);
  const ForecastTask& t = g.task;
  ForecastTotals want;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (int h = 0; h < t.kv_heads; ++h) {
      const int64_t p = positions[i];
      const int64_t of_head = int64_t{t.queries} * t.head_dim;
      const std::span<const double> f(g.forecast.data() + (p * t.kv_heads + h) * of_head, static_cast<size_t>(of_head));
      const auto row = ForecastReference(t, {g.length, g.q, g.k}, p, h, f);
      want.loss += row.loss;
      ++want.pairs;
      if (FreeEnd(t, p) - FreeBegin(t) > FreePicks(t)) {
        for (const int32_t b : row.teacher_ids) {
          if (b < FreeBegin(t) || b >= FreeEnd(t, p)) continue;
          ++want.wanted;
          want.found += std::count(row.forecast_ids.begin(), row.forecast_ids.end(), b);
        }
      }
      double size = 0;
      for (const double v : row.gradient) size = std::max(size, std::fabs(v));
      for (int64_t d = 0; d < of_head; ++d) {
        const auto at = static_cast<size_t>((static_cast<int64_t>(i) * t.kv_heads + h) * of_head + d);
        EXPECT_NEAR(fast.gradient[at], row.gradient[static_cast<size_t>(d)], 1e-7 + 1e-4 * size) << p << " " << h;
      }
    }
  }
  EXPECT_NEAR(fast.totals.loss, want.loss, 1e-7 * static_cast<double>(want.pairs) + 2e-5 * want.loss);
  EXPECT_EQ(fast.totals.pairs, want.pairs);
  EXPECT_EQ(fast.totals.wanted, want.wanted);
  EXPECT_EQ(fast.totals.found, want.found);
}

std::vector<int32_t> EdgeRows(int64_t length) {
  std::vector<int32_t> out;
  for (const int32_t p : {0, 30, 31, 63, 64, 65, 127, 383, 384, 447, 448, 511, 640, 703, 704, 705, 831, 895, 896}) {
    out.push_back(p);
  }
  for (int64_t p = length - 5; p < length; ++p) out.push_back(static_cast<int32_t>(p));
  return out;
}

TEST(ForecastLoss, EqualsTheDefinition) {
  for (const GoldenCase& g : testing::GoldenCases()) ExpectAsDefined(g, EdgeRows(g.length), BestForecastKernels());
}

TEST(ForecastLoss, EqualsTheDefinitionWithAForecastForEachQueryHead) {
  for (GoldenCase g : testing::GoldenCases()) {
    g.task.queries = g.task.group();
    g.forecast = testing::Hashed(g.length * g.task.forecast_width(), 5, 2);
    ExpectAsDefined(g, EdgeRows(g.length), BestForecastKernels());
  }
}

TEST(ForecastLoss, EqualsTheDefinitionWithPortableKernels) {
  const auto cases = testing::GoldenCases();
  for (const size_t i : {size_t{0}, size_t{2}, size_t{5}}) {
    ExpectAsDefined(cases[i], EdgeRows(cases[i].length), PortableForecastKernels());
  }
}

TEST(ForecastLoss, GradientAsAutomaticDifferentiation) {
  for (const GoldenCase& g : testing::GoldenCases()) {
    for (const auto& row : g.rows) {
      const Fast fast = RunFast(g, {static_cast<int32_t>(row.position)});
      double size = 0;
      for (const double v : row.gradient) size = std::max(size, std::fabs(v));
      for (size_t d = 0; d < 8; ++d) {
        EXPECT_NEAR(fast.gradient[static_cast<size_t>(row.head) * 8 + d], row.gradient[d], 1e-7 + 1e-4 * size);
      }
    }
  }
}

TEST(ForecastLoss, ARowDoesNotDependOnItsNeighboursOrOnTheThreads) {
  for (const GoldenCase& g : testing::GoldenCases()) {
    std::vector<int32_t> rows;
    for (int32_t p = 37; p < g.length; p += 29) rows.push_back(p);
    const Fast all = RunFast(g, rows);
    const Fast threaded = RunFast(g, rows, 3);
    EXPECT_EQ(all.gradient, threaded.gradient);
    EXPECT_EQ(all.totals.loss, threaded.totals.loss);
    EXPECT_EQ(all.totals.found, threaded.totals.found);
    for (size_t i = 0; i < rows.size(); i += 7) {
      const Fast alone = RunFast(g, {rows[i]});
      const std::vector<float> part(all.gradient.begin() + static_cast<std::ptrdiff_t>(i * 16),
                                    all.gradient.begin() + static_cast<std::ptrdiff_t>(i * 16 + 16));
      EXPECT_EQ(alone.gradient, part) << rows[i];
    }
  }
}

TEST(ForecastLoss, ShortSequencesHaveNothingToLearn) {
  for (GoldenCase g : testing::GoldenCases()) {
    for (const int64_t length : {1, 2, 16, 31, 32, 63, 64, 65}) {
      g.length = length;
      if (FreeEnd(g.task, length - 1) > FreeBegin(g.task)) continue;
      const Fast fast = RunFast(g, {static_cast<int32_t>(length - 1)});
      EXPECT_EQ(fast.totals.loss, 0);
      EXPECT_EQ(fast.totals.Recall(), 1);
      EXPECT_THAT(fast.gradient, ::testing::Each(0.0f));
    }
  }
}

TEST(ForecastKernels, ProductAndSoftmaxOfEverySize) {
  for (const ForecastKernels* kernels : {&PortableForecastKernels(), &BestForecastKernels()}) {
    for (const int64_t m : {1, 3, 4, 5, 17}) {
      for (const int64_t n : {1, 15, 16, 17, 40}) {
        for (const int64_t k : {1, 7, 64}) {
          const auto a = Floats(testing::Hashed(m * (k + 2), 21, 2));
          const auto b = Floats(testing::Hashed(k * n, 22, 2));
          Panels by_columns;
          by_columns.PackColumns(b.data(), n, k, n);
          std::vector<float> turned(b.size());
          for (int64_t i = 0; i < k; ++i) {
            for (int64_t j = 0; j < n; ++j) turned[static_cast<size_t>(j * k + i)] = b[static_cast<size_t>(i * n + j)];
          }
          Panels by_rows;
          by_rows.PackRows(turned.data(), k, k, n);
          EXPECT_EQ(by_rows.data, by_columns.data);
          std::vector<float> c(static_cast<size_t>(m * (n + 1)), -7.0f);
          kernels->product(a.data(), k + 2, m, by_columns, k, n, c.data(), n + 1);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double want = 0;
              for (int64_t l = 0; l < k; ++l) {
                want +=
                    static_cast<double>(a[static_cast<size_t>(i * (k + 2) + l)]) * b[static_cast<size_t>(l * n + j)];
              }
              EXPECT_NEAR(c[static_cast<size_t>(i * (n + 1) + j)], want, 1e-5);
            }
            EXPECT_EQ(c[static_cast<size_t>(i * (n + 1) + n)], -7.0f);  // nothing beyond the columns is touched
          }
        }
      }
    }
    for (const int64_t n : {1, 7, 8, 9, 100}) {
      for (const double scale : {1.0, 60.0, 400.0}) {
        auto z = Floats(testing::Hashed(n, 23, scale));
        std::vector<double> want(z.begin(), z.end());
        const double top = *std::max_element(want.begin(), want.end());
        double sum = 0;
        for (double& v : want) sum += v = std::exp(v - top);
        kernels->softmax(z.data(), n);
        for (size_t i = 0; i < z.size(); ++i) {
          EXPECT_NEAR(z[i], want[i] / sum, 2e-6 * want[i] / sum + 1e-36) << kernels->name << " " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace farsight
