#include "engine/error_meter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace farsight {
namespace {

double LogSum(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return top + std::log(sum);
}

double Mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

void ErrorMeter::Exact(const Batch& batch, const StepResult& result, const AttentionPlan& plan) {
  plan_ = plan;
  rows_ = batch.logit_rows.size();
  logits_.assign(result.logits.begin(), result.logits.end());
  layers_.clear();
  const auto rows = static_cast<size_t>(batch.num_rows());
  for (const auto& list : result.lists) {
    std::vector<Pair>& pairs = layers_.emplace_back();
    const size_t heads = list.counts.size() / rows;
    const size_t width = list.scores.size() / list.counts.size();
    for (size_t i = 0; i < list.counts.size(); ++i) {
      Pair& pair = pairs.emplace_back();
      pair.own_block = batch.positions[i / heads] / plan.options.block_size;
      if (list.counts[i] < 0 || pair.own_block < plan.top_k) continue;
      const auto ids = list.ids.subspan(i * static_cast<size_t>(plan.top_k), static_cast<size_t>(list.counts[i]));
      pair.ids.assign(ids.begin(), ids.end());
      const auto scores = list.scores.subspan(i * width, static_cast<size_t>(pair.own_block) + 1);
      pair.scores.assign(scores.begin(), scores.end());
    }
  }
}

double ErrorMeter::Mass(std::span<const int32_t> ids, const Pair& pair, const AttentionPlan& plan) {
  double mass = 0;
  for (const int32_t b : ids) {
    if (b < plan.init_blocks || b >= pair.own_block - plan.local_blocks) continue;
    mass += pair.scores[static_cast<size_t>(b)];
  }
  return mass;
}

void ErrorMeter::Approximate(const StepResult& result) {
  const size_t vocab = rows_ > 0 ? logits_.size() / rows_ : 0;
  for (size_t r = 0; r < rows_; ++r) {
    const auto exact = std::span(logits_).subspan(r * vocab, vocab);
    const auto other = result.logits.subspan(r * vocab, vocab);
    const auto best = [](std::span<const float> l) { return std::max_element(l.begin(), l.end()) - l.begin(); };
    flips_ += best(exact) != best(other) ? 1 : 0;
    const double le = LogSum(exact);
    const double lo = LogSum(other);
    double kl = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double p = exact[i] - le;
      kl += std::exp(p) * (p - (other[i] - lo));
    }
    kl_.push_back(std::max(kl, 0.0));
  }
  for (size_t l = 0; l < layers_.size() && l < result.lists.size(); ++l) {
    const auto& list = result.lists[l];
    for (size_t i = 0; i < layers_[l].size(); ++i) {
      const Pair& pair = layers_[l][i];
      if (pair.scores.empty() || list.counts[i] < 0) continue;
      const auto used = list.ids.subspan(i * static_cast<size_t>(plan_.top_k), static_cast<size_t>(list.counts[i]));
      std::vector<int32_t> common;
      std::set_intersection(pair.ids.begin(), pair.ids.end(), used.begin(), used.end(), std::back_inserter(common));
      const double most = std::max(Mass(pair.ids, pair, plan_), Mass(used, pair, plan_));
      substitution_.push_back(most > 0 ? 1 - Mass(common, pair, plan_) / most : 0);
    }
  }
}

double ErrorMeter::Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

ApproximationError ErrorMeter::error() const {
  ApproximationError e;
  e.rows = static_cast<int64_t>(kl_.size());
  e.flip_rate = kl_.empty() ? 0 : static_cast<double>(flips_) / static_cast<double>(kl_.size());
  e.kl_mean = Mean(kl_);
  e.substitution_mean = Mean(substitution_);
  e.substitution_p99 = Quantile(substitution_, 0.99);
  return e;
}

}  // namespace farsight
