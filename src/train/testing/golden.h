// The cases of tests/data/forecast/golden.json: losses and gradients by PyTorch's automatic differentiation.
#ifndef FARSIGHT_TRAIN_TESTING_GOLDEN_H_
#define FARSIGHT_TRAIN_TESTING_GOLDEN_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/json.h"
#include "train/forecast_task.h"
#include "train/testing/hashed.h"

namespace farsight::testing {

inline constexpr int kGoldenHeads = 8, kGoldenKvHeads = 2, kGoldenDim = 8;

struct GoldenRow {
  int64_t position = 0;
  int head = 0;
  double loss = 0;
  std::vector<int32_t> ids;
  std::vector<double> gradient;
};

struct GoldenCase {
  ForecastTask task;
  int64_t length = 0;
  std::vector<double> k, q, forecast;  // [L, heads * D]
  std::vector<GoldenRow> rows;
};

inline Json GoldenFile() {
  auto json = ReadJsonFile(std::string(FARSIGHT_SOURCE_DIR) + "/tests/data/forecast/golden.json");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json();
}

inline GoldenCase ParseGolden(const Json& c) {
  GoldenCase g;
  ForecastTask& t = g.task;
  t.keys = c["keys"] == "pooled" ? SummaryKind::kPooledKeys : SummaryKind::kSketch;
  t.teacher = c["teacher"] == "fine" ? ForecastTeacher::kFine : ForecastTeacher::kModel;
  t.heads = kGoldenHeads;
  t.kv_heads = kGoldenKvHeads;
  t.head_dim = kGoldenDim;
  t.block_tokens = c["block"];
  t.top_k = c["top_k"];
  t.init_blocks = c["init"];
  t.local_blocks = c["local"];
  t.kernel = c["kernel"];
  t.stride = c["stride"];
  t.bits = c["bits"];
  g.length = c["length"];
  const double scale = c["scale"];
  g.k = Hashed(g.length * kGoldenKvHeads * kGoldenDim, 1, scale);
  g.q = Hashed(g.length * kGoldenHeads * kGoldenDim, 3, scale);
  g.forecast = Hashed(g.length * kGoldenKvHeads * kGoldenDim, 4, scale);
  if (c.contains("rows")) {
    for (const Json& r : c["rows"]) {
      g.rows.push_back({r["position"], r["head"], r["loss"], r["ids"].get<std::vector<int32_t>>(),
                        r["gradient"].get<std::vector<double>>()});
    }
  }
  return g;
}

inline std::vector<GoldenCase> GoldenCases() {
  std::vector<GoldenCase> out;
  const Json file = GoldenFile();
  if (!file.contains("cases")) return out;  // the caller's count fails
  for (const Json& c : file["cases"]) out.push_back(ParseGolden(c));
  return out;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_TRAIN_TESTING_GOLDEN_H_
