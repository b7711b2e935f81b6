// The planner on texts that were really written, against lookups that always draft alike: what each would have drafted
// is recorded, and a table says what rows cost, so that the same run comes out each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "spec/planner.h"
#include "spec/testing/recorded_texts.h"

namespace farsight {
namespace {

constexpr int kLongest = 31, kShadow = 8;
constexpr double kPlainUs = 1600;
using Costs = std::vector<std::pair<double, double>>;  // rows, in plain steps

struct Place {
  int match = 0, drafted = 0, right = 0;
};

// A chain of at most `most` tokens at a place of the text.
Place At(std::string_view text, DrafterKind kind, int place, int most) {
  const auto at = static_cast<size_t>(6 * place + (kind == DrafterKind::kNgram ? 0 : 3));
  Place p{text[at] - '0', text[at + 1] - '0', text[at + 2] - '0'};
  p.drafted = std::min(p.drafted, most);
  p.right = std::min(p.right, p.drafted);
  return p;
}

// As the verifier sees it: a chain shorter than `most` ended for want of a guess.
std::vector<LevelOutcome> Levels(const Place& p, int most) {
  std::vector<LevelOutcome> levels(static_cast<size_t>(p.right), LevelOutcome{1, 0});
  if (p.right < most) levels.push_back({p.right < p.drafted ? 1 : 0, -1});
  return levels;
}

double Cost(const Costs& costs, double rows) {
  size_t i = 1;
  while (i + 1 < costs.size() && costs[i].first < rows) ++i;
  const auto [r0, c0] = costs[i - 1];
  const auto [r1, c1] = costs[i];
  return c0 + (c1 - c0) * (rows - r0) / (r1 - r0);
}

int Places(std::string_view text) { return static_cast<int>(text.size() / 6); }

double BestStatic(std::string_view text, const Costs& costs) {
  double best = Places(text);
  for (const DrafterKind kind : {DrafterKind::kNgram, DrafterKind::kSuffix}) {
    for (const int chain : {1, 2, 3, 4, 5, 7, 11, 15, 23, kLongest}) {
      double cost = 0;
      for (int at = 0; at < Places(text);) {
        const Place p = At(text, kind, at, std::min(chain, Places(text) - at - 1));
        cost += Cost(costs, 1 + p.drafted);
        at += p.right + 1;
      }
      best = std::min(best, cost);
    }
  }
  return best;
}

double Planned(std::string_view text, const Costs& costs) {
  const std::vector<DrafterKind> kinds = {DrafterKind::kNgram, DrafterKind::kSuffix};
  const std::vector<VerifyMode> modes(1);
  PlannerOptions options;
  for (Strategy& s : BuildMenu(kinds, kLongest, modes)) {
    if (s.shape.is_chain()) options.menu.push_back(std::move(s));
  }
  auto planner = Planner::Create(std::move(options), Profile());
  planner->StartRequest(16000, 0.5);
  std::array<int, kNumDrafterKinds> watched;  // since this place; -1: not
  watched.fill(-1);
  double cost = 0;
  for (int at = 0; at < Places(text);) {
    StepReport report;
    report.context = 16000 + at;
    report.strategy = planner->Choose(report.context, 1).strategy;
    const Strategy& s = planner->menu()[static_cast<size_t>(report.strategy)];
    for (const DrafterKind kind : kinds) {
      int& since = watched[static_cast<size_t>(kind)];
      since = kind == s.drafter ? -1 : since < 0 ? at : since;
    }
    Place p;
    if (s.drafts()) {
      const int most = std::min(planner->ShapeToPropose(report.strategy).max_nodes, Places(text) - at - 1);
      const Place whole = At(text, s.drafter, at, most);
      const int kept = planner->Cut(report.strategy, whole.match, whole.drafted, report.context, 1);
      p = At(text, s.drafter, at, std::min(most, kept));
      auto known = Levels(whole, most);
      known.resize(std::min(known.size(), static_cast<size_t>(p.right) + 1));
      planner->ObserveMatch(s.drafter, whole.match, known);
      report.outcomes.push_back(Levels(p, most));
      report.drafted = p.drafted;
      report.draft_us = 5;
    }
    report.rows = 1 + p.drafted;
    report.tokens = 1 + p.right;
    report.verify_us = Cost(costs, report.rows) * kPlainUs;
    cost += Cost(costs, report.rows);
    at += report.tokens;
    for (const DrafterKind kind : kinds) {
      int& since = watched[static_cast<size_t>(kind)];
      if (since < 0) continue;
      const Place shadow = At(text, kind, since, kShadow);
      const auto came = static_cast<size_t>(at - since);
      auto levels = Levels(shadow, kShadow);
      if (came < std::min(levels.size(), size_t{kShadow})) continue;
      planner->ObserveShadow(kind, levels);
      planner->ObserveMatch(kind, shadow.match, levels);
      since = -1;
    }
    planner->Observe(report);
  }
  return cost;
}

// Learning included.
TEST(PlannerReplay, LosesLittleToTheBestStaticLookupOnRealTexts) {
  const std::vector<Costs> machines = {
      {{1, 1}, {2, 1.29}, {4, 1.74}, {6, 2.34}, {8, 2.85}, {16, 5}, {17, 5.4}, {32, 8}, {33, 8.6}},  // two threads
      {{1, 1}, {2, 1.34}, {3, 1.67}, {33, 11.9}},                                                    // one
  };
  const std::vector<std::string_view> texts = {testing::kRecordedCode, testing::kRecordedQuotes,
                                               testing::kRecordedHeldOutCode, testing::kRecordedHeldOutProse};
  for (size_t m = 0; m < machines.size(); ++m) {
    for (size_t t = 0; t < texts.size(); ++t) {
      const double best = BestStatic(texts[t], machines[m]);
      const double planned = Planned(texts[t], machines[m]);
      EXPECT_LE(planned, best / 0.95) << "text " << t << ", machine " << m;
      EXPECT_LE(planned, Places(texts[t]) / 1.7) << "text " << t << ", machine " << m;
    }
  }
}

TEST(PlannerReplay, ComesOutTheSameEachTime) {
  const Costs costs = {{1, 1}, {33, 9}};
  EXPECT_EQ(Planned(testing::kRecordedCode, costs), Planned(testing::kRecordedCode, costs));
}

}  // namespace
}  // namespace farsight
