#include "spec/acceptance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>

namespace farsight {
namespace {

constexpr double kProfileWeight = 2;            // trials that the profile's rate is worth
constexpr double kPriorWeight = 6;              // trials that the rate over all depths is worth to one depth
constexpr double kDecay = 0.98922801319397549;  // 2^(-1/64) a step
constexpr double kKeptAfterChange = 0.02;       // of the old counts
constexpr double kKeptAfterRestart = 0.1;
constexpr double kAlarm = 8;     // of the detectors
constexpr double kWorse = 0.55;  // of the rate: what the detector of a fall looks for
constexpr double kBetter = 0.5;  // of what is missing to 1: what that of a rise looks for
constexpr double kLeastRate = 0.02;
constexpr double kMaxRate = 0.995;
constexpr double kMatchDecay = 0.9;  // of the counts of a length, each time that one is seen
constexpr double kMatchWeight = 2;   // trials that the rate of lengths about it is worth to one length

int Clamp(int value, int size) { return std::clamp(value, 0, size - 1); }

double Posterior(double hits, double trials, double prior, double weight) {
  return (weight * prior + hits) / (weight + trials);
}

// What one outcome says for the rate `changed` against `rate`.
double LogRatio(bool hit, double rate, double changed) {
  return hit ? std::log(changed / rate) : std::log((1 - changed) / (1 - rate));
}

constexpr int32_t kNone = -1;  // no child was right
constexpr int32_t kStop = -2;  // nothing is known

// Down the tree: child_after(i, children) is the child of the i-th node of the walk that was right.
template <typename ChildAfter>
std::vector<LevelOutcome> Walk(const TokenTree& tree, const TreeShape& shape, int max_tokens,
                               ChildAfter&& child_after) {
  const TreeChildren children = ChildrenOf(tree);
  const bool full = tree.num_drafted() >= std::min(shape.max_nodes, max_tokens);
  std::vector<LevelOutcome> levels;
  for (int node = 0, i = 0; i < shape.max_depth(); ++i) {
    const auto next = children.Of(node);
    const int32_t right = child_after(i, next);
    if (right == kStop || (next.empty() && full)) break;
    const auto hit = std::find(next.begin(), next.end(), right);
    levels.push_back({static_cast<int>(next.size()), hit == next.end() ? -1 : static_cast<int>(hit - next.begin())});
    if (hit == next.end()) break;
    node = *hit;
  }
  return levels;
}

}  // namespace

std::vector<LevelOutcome> OutcomeOf(const TokenTree& tree, const Accepted& accepted, const TreeShape& shape,
                                    int max_tokens) {
  // By path, not by token: a rule may reject a child and then emit its token after all.
  return Walk(tree, shape, max_tokens, [&](int i, std::span<const int32_t>) -> int32_t {
    const auto next = static_cast<size_t>(i) + 1;
    if (next < accepted.path.size()) return accepted.path[next];
    return next == accepted.path.size() ? kNone : kStop;
  });
}

std::vector<LevelOutcome> ShadowOutcomeOf(const TokenTree& tree, std::span<const int32_t> emitted,
                                          const TreeShape& shape, int max_tokens) {
  return Walk(tree, shape, max_tokens, [&](int i, std::span<const int32_t> children) -> int32_t {
    if (static_cast<size_t>(i) >= emitted.size()) return kStop;
    for (int32_t c : children) {
      if (tree.tokens[static_cast<size_t>(c)] == emitted[static_cast<size_t>(i)]) return c;
    }
    return kNone;
  });
}

std::vector<ShapeNode> BestNodes(const TreeShape& shape, const std::function<double(int, int)>& rate) {
  std::vector<ShapeNode> nodes;
  const auto worse = [](const std::pair<int64_t, ShapeNode>& a, const std::pair<int64_t, ShapeNode>& b) {
    return a.second.value != b.second.value ? a.second.value < b.second.value : a.first > b.first;
  };
  std::priority_queue<std::pair<int64_t, ShapeNode>, std::vector<std::pair<int64_t, ShapeNode>>, decltype(worse)> heap(
      worse);
  int64_t serial = 0;
  const auto push = [&](int depth, int parent, double value) {
    if (depth >= shape.max_depth()) return;
    for (int rank = 0; rank < shape.widths[static_cast<size_t>(depth)]; ++rank) {
      heap.push({serial++, {depth, rank, parent, value * rate(depth, rank)}});
    }
  };
  push(0, -1, 1);
  while (static_cast<int>(nodes.size()) < shape.max_nodes && !heap.empty()) {
    const ShapeNode node = heap.top().second;
    heap.pop();
    nodes.push_back(node);
    push(node.depth + 1, static_cast<int>(nodes.size()) - 1, node.value);
  }
  return nodes;
}

void AcceptanceModel::Counts::Scale(double by) {
  for (auto& depth : rates) {
    for (Ratio& r : depth) r.Scale(by);
  }
  for (Ratio& r : pooled) r.Scale(by);
  first.Scale(by);
  later.Scale(by);
}

void AcceptanceModel::Counts::Plus(const Counts& other) {
  for (size_t d = 0; d < rates.size(); ++d) {
    for (size_t r = 0; r < rates[d].size(); ++r) rates[d][r].Plus(other.rates[d][r]);
  }
  for (size_t r = 0; r < pooled.size(); ++r) pooled[r].Plus(other.pooled[r]);
  first.Plus(other.first);
  later.Plus(other.later);
}

AcceptanceModel::AcceptanceModel(DrafterKind kind, const AcceptancePrior* prior) {
  prior_.drafter = kind;
  // Without a record a lookup finds something every other step, a model always does.
  const bool lookup = kind != DrafterKind::kModel;
  prior_.available_first = lookup ? 0.5 : 1;
  prior_.available_later = lookup ? 0.9 : 1;
  if (prior != nullptr) prior_ = *prior;
}

void AcceptanceModel::Restart(const AcceptancePrior* prior) {
  counts_.Scale(kKeptAfterRestart);
  better_ = worse_ = {};
  if (prior != nullptr) prior_ = *prior;
}

double AcceptanceModel::PriorRate(int depth, int rank) const {
  if (prior_.rates.empty()) return 0.55 * std::pow(0.25, rank);
  const auto& ranks = prior_.rates[std::min(static_cast<size_t>(depth), prior_.rates.size() - 1)];
  if (static_cast<size_t>(rank) < ranks.size()) return ranks[static_cast<size_t>(rank)];
  return ranks.empty() ? 0.55 * std::pow(0.25, rank)
                       : ranks.back() * std::pow(0.5, rank + 1 - static_cast<int>(ranks.size()));
}

// Three layers of evidence: the profile, then this drafter's rate over all depths, then the depth's own. A few steps
// thus tell something of depths that were never reached.
double AcceptanceModel::Rate(int depth, int rank) const {
  const auto r = static_cast<size_t>(Clamp(rank, kRanks));
  const Ratio& pooled = counts_.pooled[r];
  const Ratio& own = counts_.rates[static_cast<size_t>(Clamp(depth, kDepths))][r];
  const double prior = Posterior(pooled.hits, pooled.trials, PriorRate(depth, rank), kProfileWeight);
  return std::min(Posterior(own.hits, own.trials, prior, kPriorWeight), kMaxRate);
}

double AcceptanceModel::AvailableFirst() const {
  return Posterior(counts_.first.hits, counts_.first.trials, prior_.available_first, kProfileWeight);
}

double AcceptanceModel::AvailableLater() const {
  return Posterior(counts_.later.hits, counts_.later.trials, prior_.available_later, kProfileWeight);
}

void AcceptanceModel::Count(const std::vector<LevelOutcome>& levels, Counts* counts) const {
  for (size_t i = 0; i < levels.size(); ++i) {
    const LevelOutcome& level = levels[i];
    (i == 0 ? counts->first : counts->later).Add(level.children > 0);
    const auto depth = static_cast<size_t>(Clamp(static_cast<int>(i), kDepths));
    for (int rank = 0; rank < std::min(level.children, kRanks); ++rank) {
      const bool hit = level.hit == rank || (rank == kRanks - 1 && level.hit >= kRanks);
      counts->rates[depth][static_cast<size_t>(rank)].Add(hit);
      counts->pooled[static_cast<size_t>(rank)].Add(hit);
    }
  }
}

bool AcceptanceModel::Observe(const std::vector<LevelOutcome>& levels) {
  if (levels.empty()) return false;
  bool changed = false;
  for (size_t i = 0; i < levels.size() && levels[i].children > 0; ++i) {
    double expected = 0;
    for (int rank = 0; rank < levels[i].children; ++rank) expected += Rate(static_cast<int>(i), rank);
    expected = std::clamp(expected, kLeastRate, kMaxRate);
    const bool hit = levels[i].hit >= 0;
    better_.sum = std::max(0.0, better_.sum + LogRatio(hit, expected, 1 - (1 - expected) * kBetter));
    worse_.sum = std::max(0.0, worse_.sum + LogRatio(hit, expected, expected * kWorse));
  }
  for (Detector* detector : {&better_, &worse_}) {
    if (detector->sum <= 0) {
      detector->since = {};
      continue;
    }
    Count(levels, &detector->since);
    if (detector->sum <= kAlarm || changed) continue;
    changed = true;
    counts_.Scale(kKeptAfterChange);
    counts_.Plus(detector->since);
  }
  if (changed) {
    better_ = worse_ = {};
    return true;
  }
  counts_.Scale(kDecay);
  Count(levels, &counts_);
  return false;
}

DraftForecast AcceptanceModel::Forecast(const TreeShape& shape, double optimism) const {
  DraftForecast forecast;
  const double later = AvailableLater();
  forecast.offered = AvailableFirst();
  const auto rate = [&](int depth, int rank) {
    const double base = Rate(depth, rank) + (rank == 0 ? optimism : 0);
    return std::min(base, kMaxRate) * (depth == 0 ? 1 : later);
  };
  double sum = 0;
  if (shape.is_chain()) {
    double value = 1, exists = 1;
    for (int d = 0; d < std::min(shape.max_nodes, shape.max_depth()); ++d) {
      sum += value *= rate(d, 0);
      forecast.nodes += exists;
      exists *= later;
    }
  } else {
    for (const ShapeNode& node : BestNodes(shape, rate)) {
      sum += node.value;
      forecast.nodes += std::pow(later, node.depth);
    }
  }
  forecast.tokens = 1 + forecast.offered * sum;
  return forecast;
}

void MatchModel::Add(int match, bool hit) {
  const int at = std::clamp(match, 0, kLongest);
  for (Ratio* r : {&own_[static_cast<size_t>(at)], &near_[std::bit_width(static_cast<unsigned>(at))]}) {
    r->hits = r->hits * kMatchDecay + (hit ? 1 : 0);
    r->trials = r->trials * kMatchDecay + 1;
  }
}

void MatchModel::Observe(int match, const std::vector<LevelOutcome>& levels) {
  for (const LevelOutcome& level : levels) {
    if (level.children > 0) Add(match++, level.hit >= 0);
  }
}

double MatchModel::Rate(int match, double prior) const {
  const int at = std::clamp(match, 0, kLongest);
  const Ratio& own = own_[static_cast<size_t>(at)];
  const Ratio& near = near_[std::bit_width(static_cast<unsigned>(at))];
  const double about = Posterior(near.hits, near.trials, prior, kProfileWeight);
  return std::min(Posterior(own.hits, own.trials, about, kMatchWeight), kMaxRate);
}

}  // namespace farsight
