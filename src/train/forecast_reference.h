// The definition of the Forecast's teacher, loss and gradient: naive loops in double, one row and KV head at a time.
//
// Scores, teacher and loss are those of arXiv 2606.04511 for pooled windows; for token sketches the same loss runs over
// the attention mass of blocks. docs/train-forecast.md writes the formulas out.
#ifndef FARSIGHT_TRAIN_FORECAST_REFERENCE_H_
#define FARSIGHT_TRAIN_FORECAST_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "train/forecast_task.h"

namespace farsight {

// One sequence of a target layer. Queries and keys are in the space its selection scores in: turned by RoPE, or not
// where the model selects without it.
struct ForecastReferenceInput {
  int64_t length = 0;         // L
  std::span<const double> q;  // [L, Hq * D]
  std::span<const double> k;  // [L, Hkv * D]
};

struct ForecastReferenceRow {
  std::vector<double> teacher;        // mass before normalising: [units] for pooled windows, [blocks] for sketches
  std::vector<double> student;        // the Forecast's probabilities [units], of several queries their mean
  std::vector<double> scores;         // the Forecast's score of every block up to the row's own
  std::vector<int32_t> teacher_ids;   // ascending, at most top_k, forced ones included
  std::vector<int32_t> forecast_ids;  // likewise, by the Forecast
  double loss = 0;                    // of this row and head, in nats
  std::vector<double> gradient;       // [queries * D] of the loss with respect to the Forecast
};

// What the Forecast scores: pooled keys, or keys as their sketches give them. [units, D] of one KV head.
std::vector<double> ForecastKeys(const ForecastTask& task, const ForecastReferenceInput& in, int kv_head);

// `forecast` [queries * D] is the Forecast of KV head `kv_head` for the row at `position`.
ForecastReferenceRow ForecastReference(const ForecastTask& task, const ForecastReferenceInput& in, int64_t position,
                                       int kv_head, std::span<const double> forecast);

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_REFERENCE_H_
