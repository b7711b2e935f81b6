// How often drafts of one drafter are right, by depth and rank, learnt while they run.
#ifndef FARSIGHT_SPEC_ACCEPTANCE_H_
#define FARSIGHT_SPEC_ACCEPTANCE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "spec/drafter.h"
#include "spec/profile.h"
#include "spec/token_tree.h"

namespace farsight {

// What the verifier saw of one accepted node's children: how many were drafted, in their order, and which was right.
struct LevelOutcome {
  int children = 0;
  int hit = -1;  // -1: none
  bool operator==(const LevelOutcome&) const = default;
};

// One sequence's draft in one step, from the root down to where it stopped. A level that the shape or the room did not
// allow is left out: it says nothing of the drafter.
std::vector<LevelOutcome> OutcomeOf(const TokenTree& tree, const Accepted& accepted, const TreeShape& shape,
                                    int max_tokens);

// A draft that nobody verified, against the tokens that came anyway: how a lookup would have fared, for nothing but its
// own cost. `emitted` follows the tree's root.
std::vector<LevelOutcome> ShadowOutcomeOf(const TokenTree& tree, std::span<const int32_t> emitted,
                                          const TreeShape& shape, int max_tokens);

struct ShapeNode {
  int depth = 0;  // of the node's parent: 0 for children of the root
  int rank = 0;
  int parent = -1;  // index of the parent in the list, -1: the root
  double value = 0;
};
// The nodes that a shape's budget buys where rate(depth, rank) is the chance of a child: those of highest value, the
// product along the path. Expected accepted tokens are the sum of the values.
std::vector<ShapeNode> BestNodes(const TreeShape& shape, const std::function<double(int, int)>& rate);

struct DraftForecast {
  double tokens = 1;   // emitted in a step, the target's own included
  double offered = 1;  // share of steps with a draft
  double nodes = 0;    // drafted where there is a draft
};

// Beta counts with a half-life, a prior from the profile, and a change detector. Thread-compatible.
class AcceptanceModel {
 public:
  static constexpr int kDepths = 32;  // deeper levels are counted as the last
  static constexpr int kRanks = 4;

  AcceptanceModel(DrafterKind kind, const AcceptancePrior* prior);

  // Forgets most of what was seen: another text begins. prior nullptr keeps the one there was.
  void Restart(const AcceptancePrior* prior);
  // Returns true when the outcomes no longer look like the rates learnt so far; those are then dropped for the ones
  // since the change.
  bool Observe(const std::vector<LevelOutcome>& levels);

  double Rate(int depth, int rank) const;
  double AvailableFirst() const;
  double AvailableLater() const;
  // `optimism` is added to every rate: what a drafter might be worth that was not tried for a while.
  DraftForecast Forecast(const TreeShape& shape, double optimism = 0) const;

 private:
  struct Ratio {
    double hits = 0, trials = 0;
    void Add(bool hit) { hits += hit ? 1 : 0, trials += 1; }
    void Scale(double by) { hits *= by, trials *= by; }
    void Plus(const Ratio& other) { hits += other.hits, trials += other.trials; }
  };
  struct Counts {
    std::array<std::array<Ratio, kRanks>, kDepths> rates = {};
    std::array<Ratio, kRanks> pooled = {};  // over depths
    Ratio first, later;                     // availability
    void Scale(double by);
    void Plus(const Counts& other);
  };
  // A cumulative sum of log likelihood ratios of a changed rate to the learnt one (Page, 1954), with the counts since
  // it was last at zero. A false alarm comes on average after more than exp(threshold) outcomes, whatever the rate.
  struct Detector {
    double sum = 0;
    Counts since;
  };

  double PriorRate(int depth, int rank) const;
  void Count(const std::vector<LevelOutcome>& levels, Counts* counts) const;

  AcceptancePrior prior_;
  Counts counts_;
  Detector better_, worse_;
};

// How often a lookup is right by the length of the match that it goes on: a token that is d deep in a chain after a
// match of m goes on one of m + d. A text of lines that differ in a number is wrong after the same length each time, a
// copy hardly ever. Thread-compatible.
class MatchModel {
 public:
  static constexpr int kLongest = 64;  // longer matches are counted as this

  // A chain after a match of `match` tokens, and what is known of it.
  void Observe(int match, const std::vector<LevelOutcome>& levels);
  // `prior` is the rate where little was seen.
  double Rate(int match, double prior) const;

 private:
  struct Ratio {
    double hits = 0, trials = 0;
  };
  void Add(int match, bool hit);
  std::array<Ratio, kLongest + 1> own_ = {};
  std::array<Ratio, 8> near_ = {};  // of matches of about this length: 0, 1, 2-3, 4-7, ...
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_ACCEPTANCE_H_
