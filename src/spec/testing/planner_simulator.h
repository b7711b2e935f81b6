// Steps of an engine whose acceptance and times are known: what a planner should find out.
#ifndef FARSIGHT_SPEC_TESTING_PLANNER_SIMULATOR_H_
#define FARSIGHT_SPEC_TESTING_PLANNER_SIMULATOR_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "spec/planner.h"

namespace farsight::testing {

struct DrafterTruth {
  double rate = 0;          // that the first child is right
  double depth_factor = 1;  // of the rate, each level deeper
  double second = 0;        // rate of the child of rank 1; each further rank half of that
  double available = 1;     // share of steps with a draft
  double node_us = 0;       // of drafting one node

  double Rate(int depth, int rank) const {
    const double factor = std::pow(depth_factor, depth);
    return factor * (rank == 0 ? rate : std::min(second, 1 - rate) * std::pow(0.5, rank - 1));
  }
};

struct Truth {
  std::array<DrafterTruth, kNumDrafterKinds> drafters = {};
  double plain_us = 1000;
  double row_share = 0.08;  // what a verified row more costs, of plain_us
  double steep_from = 1e9;  // rows from which it costs twice that
  double context_us = 0;    // more a token of context
  double noise = 0.05;      // of times, relative
  double stalls = 0;        // share of steps in which something else has the machine for 15 plain steps

  double VerifyUs(int64_t context, double rows) const {
    const double extra = rows - 1 + std::max(0.0, rows - steep_from);
    return (plain_us + context_us * static_cast<double>(context)) * (1 + row_share * extra);
  }
};

class PlannerSimulator {
 public:
  PlannerSimulator(std::vector<Strategy> menu, Truth truth, uint32_t seed)
      : menu_(std::move(menu)), truth_(truth), nodes_(menu_.size()), rng_(seed) {}

  // To change it: what was derived from it is forgotten.
  Truth& truth() {
    nodes_.assign(menu_.size(), {});
    return truth_;
  }
  int64_t context = 0;

  // Expected tokens and time of one step.
  double Tokens(int strategy) const {
    const Strategy& s = menu_[static_cast<size_t>(strategy)];
    double sum = 0;
    if (s.drafts()) {
      for (const ShapeNode& n : Nodes(s)) sum += n.value;
    }
    return 1 + sum * Of(s).available;
  }
  double Us(int strategy) const {
    const Strategy& s = menu_[static_cast<size_t>(strategy)];
    const double plain = truth_.VerifyUs(context, 1);
    if (!s.drafts()) return plain;
    const auto nodes = static_cast<double>(Nodes(s).size());
    const double drafting = truth_.VerifyUs(context, 1 + nodes) + Of(s).node_us * nodes;
    return Of(s).available * drafting + (1 - Of(s).available) * plain;
  }
  double Value(int strategy) const { return Tokens(strategy) / Us(strategy); }
  int BestStatic() const {
    int best = 0;
    for (int i = 1; i < static_cast<int>(menu_.size()); ++i) best = Value(i) > Value(best) ? i : best;
    return best;
  }

  StepReport Step(int strategy) {
    const Strategy& s = menu_[static_cast<size_t>(strategy)];
    StepReport r;
    r.strategy = strategy;
    r.context = context;
    if (s.drafts() && Uniform() < Of(s).available) {
      const auto& nodes = Nodes(s);
      r.drafted = static_cast<int>(nodes.size());
      r.rows = 1 + r.drafted;
      r.draft_us = Noisy(Of(s).node_us * r.drafted);
      r.outcomes.push_back(Walk(s, nodes));
      for (const LevelOutcome& level : r.outcomes[0]) r.tokens += level.hit >= 0 ? 1 : 0;
    } else if (s.drafts()) {
      r.outcomes.push_back({LevelOutcome{}});
    }
    r.verify_us = Noisy(truth_.VerifyUs(context, r.rows));
    if (truth_.stalls > 0 && Uniform() < truth_.stalls) r.verify_us += 15 * truth_.plain_us;
    return r;
  }

  // How a chain of `depth` would have fared in a step that did not draft.
  std::vector<LevelOutcome> Shadow(DrafterKind kind, int depth) {
    const DrafterTruth& d = truth_.drafters[static_cast<size_t>(kind)];
    if (Uniform() >= d.available) return {LevelOutcome{}};
    std::vector<LevelOutcome> levels;
    for (int i = 0; i < depth; ++i) {
      const bool hit = Uniform() < d.Rate(i, 0);
      levels.push_back({1, hit ? 0 : -1});
      if (!hit) break;
    }
    return levels;
  }

 private:
  const DrafterTruth& Of(const Strategy& s) const { return truth_.drafters[static_cast<size_t>(s.drafter)]; }
  const std::vector<ShapeNode>& Nodes(const Strategy& s) const {
    auto& nodes = nodes_[static_cast<size_t>(&s - menu_.data())];
    if (nodes.empty()) nodes = BestNodes(s.shape, [&](int depth, int rank) { return Of(s).Rate(depth, rank); });
    return nodes;
  }
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(rng_); }
  double Noisy(double us) { return us * std::exp(std::normal_distribution<double>(0, truth_.noise)(rng_)); }

  std::vector<LevelOutcome> Walk(const Strategy& s, const std::vector<ShapeNode>& nodes) {
    std::vector<LevelOutcome> levels;
    for (int at = -1;;) {
      std::vector<int> children;
      for (size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].parent == at) children.push_back(static_cast<int>(i));
      }
      if (children.empty()) return levels;  // the shape ends here
      const double u = Uniform();
      double sum = 0;
      int hit = -1;
      for (size_t c = 0; c < children.size() && hit < 0; ++c) {
        const ShapeNode& node = nodes[static_cast<size_t>(children[c])];
        sum += Of(s).Rate(node.depth, node.rank);
        if (u < sum) hit = static_cast<int>(c);
      }
      levels.push_back({static_cast<int>(children.size()), hit});
      if (hit < 0) return levels;
      at = children[static_cast<size_t>(hit)];
    }
  }

  std::vector<Strategy> menu_;
  Truth truth_;
  mutable std::vector<std::vector<ShapeNode>> nodes_;  // [menu], empty: not derived yet
  std::mt19937 rng_;
};

// The profile that measuring the truth would give, times of drafting steps off by `error` (relative), priors as given.
inline Profile ProfileOf(const Truth& truth, const std::vector<Strategy>& menu, double error,
                         std::vector<AcceptancePrior> priors) {
  Profile profile;
  profile.of = {"toy", "simulator"};
  profile.acceptance = std::move(priors);
  std::vector<VerifyMode> modes;
  for (const Strategy& s : menu) {
    if (std::find(modes.begin(), modes.end(), s.mode) == modes.end()) modes.push_back(s.mode);
  }
  for (const VerifyMode& mode : modes) {
    for (int64_t context : {int64_t{0}, int64_t{4096}, int64_t{16384}}) {
      for (int rows : {1, 2, 4, 8, 16, 32, 64}) {
        const double us = truth.VerifyUs(context, rows) * (rows > 1 ? 1 + error : 1);
        profile.verify.push_back({mode, context, 1, rows, us, us * 1.1, 0.5});
      }
    }
  }
  for (int k = 1; k < kNumDrafterKinds; ++k) {
    for (int nodes : {1, 8, 64}) {
      const double us = truth.drafters[static_cast<size_t>(k)].node_us * nodes * (1 + error);
      profile.draft.push_back({static_cast<DrafterKind>(k), 0, 1, nodes, us, us * 1.1});
    }
  }
  return profile;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_SPEC_TESTING_PLANNER_SIMULATOR_H_
