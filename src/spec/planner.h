// Chooses how each step speculates, by expected emitted tokens per unit of time, and watches what came of it.
//
// A pure class: no clock, no thread, no file; the same calls give the same choices. One planner serves the steps of one
// engine (or of one sequence); batch and context may change from step to step.
//
// How it decides:
// - Time of a strategy: the profile's (draft, verification by rows, the rest), corrected by what steps really took.
//   Without a profile it starts from rough proportions and corrects those.
// - Tokens of a strategy: AcceptanceModel of its drafter, shared by all its shapes.
// - Length of a lookup's chain: cut anew each step by the length of its match (MatchModel).
// - Hysteresis: another strategy takes over only after a dwell, and only by a margin that shrinks with the time spent;
// a
//   change that the acceptance model detects lifts both.
// - Exploring: a drafter that is not in use gets a single step now and then, at doubling intervals, within a budget of
//   time. Lookups may instead be watched for free (ObserveShadow).
// - Plain decoding is the yardstick: an account holds what drafting has gained over it, in plain steps, with a small
//   allowance. A step that could cost more than the account holds is not taken. So drafting turns itself off where it
//   loses, and the total never falls below about 1 / (1 + kAllowance) of plain decoding's speed, less the first loan.
#ifndef FARSIGHT_SPEC_PLANNER_H_
#define FARSIGHT_SPEC_PLANNER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "farsight/status.h"
#include "spec/acceptance.h"
#include "spec/profile.h"
#include "spec/strategy.h"

namespace farsight {

struct PlannerOptions {
  PrecisionClass precision = PrecisionClass::kStrict;
  // As of BuildMenu(). Strategies outside the class, and approximate ones that the profile's quality records do not
  // carry, are dropped; plain decoding is added where it is missing.
  std::vector<Strategy> menu;
  uint64_t seed = 0;  // shifts the times of exploring steps
};

struct Decision {
  int strategy = 0;  // index into menu(); 0 is plain decoding
  bool exploring = false;
  double expected_tokens = 1;  // a sequence
  double expected_us = 0;
};

// What one step came to.
struct StepReport {
  int strategy = 0;
  int64_t context = 0;  // tokens, of the longest sequence
  int batch = 1;        // sequences that wrote
  int rows = 1;         // verified, of the sequence with most
  int drafted = 0;      // nodes, of all sequences
  int tokens = 1;       // emitted, of all sequences
  double draft_us = 0, verify_us = 0, fixed_us = 0;
  std::vector<std::vector<LevelOutcome>> outcomes;  // of each sequence that drafted; OutcomeOf()
};

struct PlannerSummary {
  int64_t steps = 0, drafting_steps = 0, exploring_steps = 0, switches = 0;
  int64_t tokens = 0, drafted = 0, accepted = 0;
  std::vector<int64_t> steps_of;  // [menu]
};

class Planner {
 public:
  static constexpr double kAllowance = 0.012;  // of plain decoding's time, that drafting may lose for good
  static constexpr double kLoan = 1.5;         // plain steps that it may lose before it has gained any
  static constexpr double kMaxAccount = 16;    // plain steps of gains that are remembered
  static constexpr double kExploring = 0.02;   // of the time, for strategies that are not thought best
  static constexpr double kMargin = 0.05;      // by which another must be better, at the least dwell
  static constexpr int kDwell = 16;            // steps
  static constexpr int kFirstInterval = 8, kOffInterval = 48, kMaxInterval = 64;  // steps between explorations

  // kInvalidArgument where a strategy of the menu is broken.
  static StatusOr<Planner> Create(PlannerOptions options, Profile profile);

  const std::vector<Strategy>& menu() const { return menu_; }

  // A new text begins: how long it is and how much it quotes itself (SelfMatchRate) choose the priors.
  void StartRequest(int64_t context, double self_match);
  // What the next step is to do. Every decision is to be followed by the report of its step.
  Decision Choose(int64_t context, int batch);
  void Observe(const StepReport& report);
  // How an idle drafter would have fared: ShadowOutcomeOf().
  void ObserveShadow(DrafterKind drafter, const std::vector<LevelOutcome>& levels);

  // What to ask the drafter of the strategy for: of a lookup's chains, which cost nothing to propose, the longest.
  const TreeShape& ShapeToPropose(int strategy) const;
  // How many tokens of a lookup's chain of `nodes`, which goes on a match of `match`, the step is to verify: as many as
  // are likely to be worth their time at the rate of the strategy in use, and as the account covers.
  int Cut(int strategy, int match, int nodes, int64_t context, int batch) const;
  // What became of such a chain before it was cut, as far as its tokens came or did not.
  void ObserveMatch(DrafterKind drafter, int match, const std::vector<LevelOutcome>& levels);

  const PlannerSummary& summary() const { return summary_; }
  // Microseconds and tokens a sequence that the planner expects of a step now.
  DraftForecast ForecastOf(int strategy) const;
  double ExpectedUs(int strategy, int64_t context, int batch) const;
  double account() const { return account_; }

 private:
  static constexpr int kRowBuckets = 11;  // of rows: 1, 2, 3-4, 5-8, ... up to 1024

  // Measured over predicted time, of one kind of work.
  struct Correction {
    double ratio = 1;
    int count = 0;
    void Add(double sample, int trust);
  };
  struct Kind {       // of drafter
    int64_t due = 0;  // step of the next exploration
    int interval = kFirstInterval;
    int64_t shadow_step = -1;  // of the last outcome seen for free
    Correction draft;
  };

  Planner(PlannerOptions options, Profile profile);

  // Before correction: as the profile has it, or by rough proportions. `mode` is an index into modes_.
  double BaseVerifyUs(int mode, int64_t context, int batch, double rows) const;
  double BaseDraftUs(DrafterKind drafter, int64_t context, int batch, double nodes) const;
  double BaseFixedUs(int64_t context, int batch) const { return fixed_times_.At(context, batch, 1).value_or(0); }
  double VerifyRatio(int mode, double rows) const;
  double StepUs(int strategy, const DraftForecast& forecast, int64_t context, int batch) const;
  double PlainUs(int64_t context, int batch) const;
  // The most a step of the strategy can lose against plain decoding, in plain steps.
  double Risk(int strategy, double plain_us, int64_t context, int batch) const;
  double AtRisk(int mode, double nodes, double likely) const;
  void Evaluate(int64_t context, int batch);
  // Of the highest value, among those whose risk is at most `most`.
  int Best(double most) const;
  void SwitchTo(int strategy);
  int Exploration(int64_t context, int batch);
  void Schedule(Kind* kind, int interval);
  void LearnTimes(const StepReport& report);
  void LearnAccount(const StepReport& report);

  PlannerOptions options_;
  Profile profile_;
  std::vector<Strategy> menu_;
  std::vector<VerifyMode> modes_;            // distinct ones of the menu
  std::vector<int> mode_of_;                 // [menu]
  std::vector<AcceptanceModel> acceptance_;  // [kNumDrafterKinds]
  std::array<MatchModel, kNumDrafterKinds> matches_;
  std::array<Kind, kNumDrafterKinds> kinds_;
  std::vector<std::array<Correction, kRowBuckets>> verify_;  // [modes]
  std::vector<TimeTable> verify_times_;                      // [modes]
  std::array<TimeTable, kNumDrafterKinds> draft_times_;
  TimeTable fixed_times_;
  Correction all_;  // the machine's, common to all work
  Correction fixed_;

  std::vector<double> value_;  // [menu], tokens a microsecond
  std::vector<double> risk_;   // [menu]
  int64_t step_ = 0;
  int64_t evaluated_ = -1;
  int current_ = 0;
  int64_t since_ = 0;    // step of the last switch
  bool changed_ = true;  // a change was detected; also at the start
  double account_ = kLoan;
  double exploring_us_ = 0;  // budget left
  Decision decision_;
  PlannerSummary summary_;
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_PLANNER_H_
