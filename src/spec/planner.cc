#include "spec/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace farsight {
namespace {

constexpr int kEvaluateEvery = 8;        // steps
constexpr size_t kRightShadow = 8;       // tokens of a free guess that, all right, open a new loan
constexpr int kShadowLife = 32;          // steps for which a free outcome spares an exploration
constexpr int kPlainSteps = 2;           // that measure plain decoding where no profile does
constexpr double kPromising = 0.9;       // of the rate in use
constexpr double kOptimism = 0.25;       // of a drafter that is explored
constexpr double kExploringReserve = 4;  // plain steps that the budget of exploring may save up
constexpr double kRiskShare = 0.35;      // of a plain step, that a row may cost where it was never measured
// Rough proportions where nothing was measured: a row more costs a tenth of a step, a token of a draft model a third of
// one, a lookup nothing.
// Of a correction: what the profile counts, in steps; how many steps count; and what a step at half or twice the rows
// does.
constexpr double kProfileTrust = 0.2;
constexpr double kSurprise = 3;  // times the likely, beyond which a measurement is no measurement
constexpr double kStall = 1.5;   // times the likely, beyond which the time of a step is not drafting's doing
constexpr int kEnoughSteps = 10;
constexpr double kNeighbourShare = 0.1;
constexpr double kRowShare = 0.1, kModelShare = 0.3, kLookupShare = 0.002;

int RowBucket(double rows) {
  const auto n = static_cast<unsigned>(std::clamp(std::ceil(rows), 1.0, 1024.0));
  return static_cast<int>(std::bit_width(n - 1));
}

}  // namespace

void Planner::Correction::Add(double sample, int trust) {
  // One step that the machine stalled in must not outweigh all others.
  if (count > 0 || trust > 0) sample = std::clamp(sample, ratio / 2, ratio * 2);
  const double weight = std::max(0.1, 1.0 / (count + 1 + trust));
  ratio += weight * (sample - ratio);
  ++count;
}

StatusOr<Planner> Planner::Create(PlannerOptions options, Profile profile) {
  for (const Strategy& strategy : options.menu) FS_RETURN_IF_ERROR(Validate(strategy));
  return Planner(std::move(options), std::move(profile));
}

Planner::Planner(PlannerOptions options, Profile profile) : options_(std::move(options)), profile_(std::move(profile)) {
  menu_.emplace_back();
  for (const Strategy& strategy : options_.menu) {
    const bool allowed = Allows(options_.precision, strategy.mode) && QualityAllows(profile_, strategy.mode);
    if (strategy.drafts() && allowed) menu_.push_back(strategy);
  }
  for (const Strategy& strategy : menu_) {
    const auto at = std::find(modes_.begin(), modes_.end(), strategy.mode);
    mode_of_.push_back(static_cast<int>(at - modes_.begin()));
    if (at == modes_.end()) modes_.push_back(strategy.mode);
  }
  for (const VerifyMode& mode : modes_) verify_times_.push_back(VerifyTable(profile_, mode));
  fixed_times_ = FixedTable(profile_);
  verify_.resize(modes_.size());
  value_.resize(menu_.size());
  risk_.resize(menu_.size());
  summary_.steps_of.resize(menu_.size());
  for (int k = 0; k < kNumDrafterKinds; ++k) {
    const auto kind = static_cast<DrafterKind>(k);
    acceptance_.emplace_back(kind, NearestPrior(profile_, kind, 0, 0));
    draft_times_[static_cast<size_t>(k)] = DraftTable(profile_, kind);
    Schedule(&kinds_[static_cast<size_t>(k)], kFirstInterval);
  }
}

void Planner::Schedule(Kind* kind, int interval) {
  kind->interval = interval;
  const auto which = static_cast<uint32_t>(kind - kinds_.data());
  const double jitter = Uniform({options_.seed, static_cast<uint64_t>(step_), which});
  kind->due = step_ + interval + static_cast<int64_t>(jitter * interval / 4);
}

void Planner::StartRequest(int64_t context, double self_match) {
  for (int k = 1; k < kNumDrafterKinds; ++k) {
    const auto kind = static_cast<DrafterKind>(k);
    acceptance_[static_cast<size_t>(k)].Restart(NearestPrior(profile_, kind, context, self_match));
    Schedule(&kinds_[static_cast<size_t>(k)], kFirstInterval);
  }
  changed_ = true;
  evaluated_ = -1;
}

double Planner::BaseVerifyUs(int mode, int64_t context, int batch, double rows) const {
  if (const auto us = verify_times_[static_cast<size_t>(mode)].At(context, batch, rows)) return *us;
  return verify_times_[0].At(context, batch, 1).value_or(1) * (1 + kRowShare * (rows - 1));
}

double Planner::BaseDraftUs(DrafterKind drafter, int64_t context, int batch, double nodes) const {
  if (const auto us = draft_times_[static_cast<size_t>(drafter)].At(context, batch, nodes)) return *us;
  const double share = drafter == DrafterKind::kModel ? kModelShare : kLookupShare;
  return share * nodes * BaseVerifyUs(0, context, batch, 1);
}

// What was measured at these rows in this mode, with what was measured near them: a number of rows that was seen once
// or twice, or never, must not stay at what a wrong profile says of it while its neighbours are known.
double Planner::VerifyRatio(int mode, double rows) const {
  const auto& buckets = verify_[static_cast<size_t>(mode)];
  const int wanted = RowBucket(rows);
  double weight = verify_times_[static_cast<size_t>(mode)].empty() ? 0 : kProfileTrust;
  double sum = weight;
  for (int b = 0; b < kRowBuckets; ++b) {
    const Correction& c = buckets[static_cast<size_t>(b)];
    const double w = std::min(c.count, kEnoughSteps) * std::pow(kNeighbourShare, std::abs(b - wanted));
    weight += w;
    sum += w * c.ratio;
  }
  if (weight > 0) return all_.ratio * sum / weight;
  return mode == 0 ? all_.ratio : VerifyRatio(0, rows);  // nothing is known of this mode: as the plain one
}

double Planner::PlainUs(int64_t context, int batch) const {
  return BaseVerifyUs(0, context, batch, 1) * VerifyRatio(0, 1) + BaseFixedUs(context, batch) * fixed_.ratio;
}

double Planner::StepUs(int strategy, const DraftForecast& forecast, int64_t context, int batch) const {
  const Strategy& s = menu_[static_cast<size_t>(strategy)];
  if (!s.drafts()) return PlainUs(context, batch);
  const int mode = mode_of_[static_cast<size_t>(strategy)];
  const auto verify = [&](double rows) { return BaseVerifyUs(mode, context, batch, rows) * VerifyRatio(mode, rows); };
  const double draft = forecast.offered * BaseDraftUs(s.drafter, context, batch, forecast.nodes) * all_.ratio *
                       kinds_[static_cast<size_t>(s.drafter)].draft.ratio;
  const double fixed = BaseFixedUs(context, batch) * fixed_.ratio;
  const double plain = BaseVerifyUs(0, context, batch, 1) * VerifyRatio(0, 1);
  return draft + forecast.offered * verify(1 + forecast.nodes) + (1 - forecast.offered) * plain + fixed;
}

DraftForecast Planner::ForecastOf(int strategy) const {
  const Strategy& s = menu_[static_cast<size_t>(strategy)];
  return s.drafts() ? acceptance_[static_cast<size_t>(s.drafter)].Forecast(s.shape) : DraftForecast();
}

double Planner::ExpectedUs(int strategy, int64_t context, int batch) const {
  return StepUs(strategy, ForecastOf(strategy), context, batch);
}

double Planner::Risk(int strategy, double plain_us, int64_t context, int batch) const {
  const double nodes = menu_[static_cast<size_t>(strategy)].shape.max_nodes;
  const double likely = std::max(0.0, StepUs(strategy, {1, 1, nodes}, context, batch) / plain_us - 1);
  return AtRisk(mode_of_[static_cast<size_t>(strategy)], nodes, likely);
}

// What rows cost is unknown until as many have run or a profile says it.
double Planner::AtRisk(int mode, double nodes, double likely) const {
  const auto m = static_cast<size_t>(mode);
  const bool known = !verify_times_[m].empty() || verify_[m][static_cast<size_t>(RowBucket(1 + nodes))].count > 0;
  return known ? likely : std::max(likely, kRiskShare * nodes);
}

void Planner::Evaluate(int64_t context, int batch) {
  if (evaluated_ >= 0 && step_ < evaluated_ + kEvaluateEvery && !changed_) return;
  evaluated_ = step_;
  const double plain = PlainUs(context, batch);
  for (int i = 0; i < static_cast<int>(menu_.size()); ++i) {
    const DraftForecast forecast = ForecastOf(i);
    value_[static_cast<size_t>(i)] = forecast.tokens / StepUs(i, forecast, context, batch);
    risk_[static_cast<size_t>(i)] = i == 0 ? 0 : Risk(i, plain, context, batch);
  }
}

int Planner::Best(double most) const {
  int best = 0;
  for (size_t i = 1; i < menu_.size(); ++i) {
    if (risk_[i] <= most && value_[i] > value_[static_cast<size_t>(best)]) best = static_cast<int>(i);
  }
  return best;
}

void Planner::SwitchTo(int strategy) {
  if (strategy == current_) return;
  current_ = strategy;
  since_ = step_;
  ++summary_.switches;
}

// The strategy to try for one step, or -1.
int Planner::Exploration(int64_t context, int batch) {
  const double plain = PlainUs(context, batch);
  const DrafterKind used = menu_[static_cast<size_t>(current_)].drafter;
  const double rate = value_[static_cast<size_t>(current_)];
  for (int k = 0; k < kNumDrafterKinds; ++k) {
    Kind& kind = kinds_[static_cast<size_t>(k)];
    if (static_cast<DrafterKind>(k) == used || step_ < kind.due) continue;
    if (kind.shadow_step >= 0 && step_ - kind.shadow_step < kShadowLife) continue;
    int best = -1;
    double best_value = 0;
    for (int i = 0; i < static_cast<int>(menu_.size()); ++i) {
      const Strategy& s = menu_[static_cast<size_t>(i)];
      if (static_cast<int>(s.drafter) != k || risk_[static_cast<size_t>(i)] > account_) continue;
      const DraftForecast likely = ForecastOf(i);
      if (StepUs(i, likely, context, batch) - likely.tokens / rate > exploring_us_) continue;
      // Chosen by what it might be worth: a short draft costs least and shows least.
      const DraftForecast hope = s.drafts() ? acceptance_[static_cast<size_t>(k)].Forecast(s.shape, kOptimism) : likely;
      const double value = hope.tokens / StepUs(i, hope, context, batch);
      if (best < 0 || value > best_value) best = i, best_value = value;
    }
    if (best >= 0) return best;
  }
  exploring_us_ = std::min(exploring_us_, kExploringReserve * plain);
  return -1;
}

Decision Planner::Choose(int64_t context, int batch) {
  FS_CHECK(batch >= 1 && context >= 0, "a step has a sequence");
  const bool unknown = verify_times_[0].empty() && verify_[0][0].count < kPlainSteps;
  int chosen = 0;
  bool exploring = false;
  if (!unknown) {
    Evaluate(context, batch);
    const int best = Best(HUGE_VAL);
    const auto dwelt = static_cast<double>(step_ - since_);
    const double margin = changed_ ? 0 : kMargin * kDwell / std::max<double>(kDwell, dwelt);
    const bool may_switch = changed_ || dwelt >= (step_ < 4 * kDwell ? kDwell / 4 : kDwell);
    if (may_switch && value_[static_cast<size_t>(best)] > (1 + margin) * value_[static_cast<size_t>(current_)]) {
      SwitchTo(best);
    }
    changed_ = false;
    // Where the account does not cover the strategy in use, the best that it covers stands in.
    chosen = risk_[static_cast<size_t>(current_)] <= account_ ? current_ : Best(account_);
    if (const int other = Exploration(context, batch); other >= 0) {
      exploring = other != chosen;
      chosen = other;
    }
  }
  decision_ = {chosen, exploring, ForecastOf(chosen).tokens, ExpectedUs(chosen, context, batch)};
  return decision_;
}

void Planner::LearnTimes(const StepReport& r) {
  const DrafterKind drafter = menu_[static_cast<size_t>(r.strategy)].drafter;
  const double rows = std::max(r.rows, 1);
  const int mode = rows > 1 ? mode_of_[static_cast<size_t>(r.strategy)] : 0;  // one row is plain in every mode
  if (r.verify_us > 0) {
    double sample = r.verify_us / BaseVerifyUs(mode, r.context, r.batch, rows);
    // A first step of its kind that the machine stalled in must not be the word on it: it might never be tried again.
    const double likely = VerifyRatio(mode, rows);
    if (mode != 0) sample = std::clamp(sample, likely / kSurprise, likely * kSurprise);
    Correction& own = verify_[static_cast<size_t>(mode)][static_cast<size_t>(RowBucket(rows))];
    // What all work shares is learnt from how far this step was from what its own correction says.
    if (own.count >= 4) all_.Add(sample / own.ratio, 8);
    own.Add(sample / all_.ratio, 0);
  }
  if (r.draft_us > 0 && r.drafted > 0 && drafter != DrafterKind::kOff) {
    const double nodes = static_cast<double>(r.drafted) / r.batch;
    const double base = BaseDraftUs(drafter, r.context, r.batch, nodes) * all_.ratio;
    const bool known = !draft_times_[static_cast<size_t>(drafter)].empty();
    if (base > 0) kinds_[static_cast<size_t>(drafter)].draft.Add(r.draft_us / base, known ? 2 : 0);
  }
  const double fixed = BaseFixedUs(r.context, r.batch);
  if (r.fixed_us > 0 && fixed > 0) fixed_.Add(r.fixed_us / fixed, 2);
}

void Planner::LearnAccount(const StepReport& r) {
  const double plain = PlainUs(r.context, r.batch);
  if (summary_.steps == 0) exploring_us_ = kLoan * plain;
  // What a step took beyond reason is the machine's doing, not drafting's.
  const DraftForecast full{1, 1, std::max(r.rows, 1) - 1.0};
  const double us =
      std::min(r.draft_us + r.verify_us + r.fixed_us, kStall * StepUs(r.strategy, full, r.context, r.batch));
  const double tokens = static_cast<double>(r.tokens) / r.batch;
  const double gain = menu_[static_cast<size_t>(r.strategy)].drafts() ? tokens - us / plain : 0;
  account_ = std::min(kMaxAccount, account_ + gain + kAllowance * tokens);
  exploring_us_ += kExploring * us;
  const double rate = value_[static_cast<size_t>(current_)];
  if (!decision_.exploring || r.strategy != decision_.strategy || !(rate > 0)) return;
  exploring_us_ -= us - tokens / rate;
  Kind& kind = kinds_[static_cast<size_t>(menu_[static_cast<size_t>(r.strategy)].drafter)];
  // A try that came out better than what is in use is followed by another at once. A drafter that may still be as good
  // is tried again soon, any other after a longer pause.
  double hope = 0;
  for (int i = 0; i < static_cast<int>(menu_.size()); ++i) {
    if (menu_[static_cast<size_t>(i)].drafter != menu_[static_cast<size_t>(r.strategy)].drafter) continue;
    hope = std::max(hope, ForecastOf(i).tokens / ExpectedUs(i, r.context, r.batch));
  }
  if (tokens / us >= rate && hope >= kPromising * rate) {
    kind.interval = kFirstInterval;
    kind.due = step_ + 1;
  } else if (hope >= kPromising * rate && menu_[static_cast<size_t>(r.strategy)].drafts()) {
    Schedule(&kind, kFirstInterval);
  } else {
    Schedule(&kind, std::min(kind.interval * 2, current_ == 0 ? kOffInterval : kMaxInterval));
  }
}

void Planner::Observe(const StepReport& r) {
  FS_CHECK(r.strategy >= 0 && r.strategy < static_cast<int>(menu_.size()) && r.batch >= 1, "a step of the menu");
  const Strategy& s = menu_[static_cast<size_t>(r.strategy)];
  LearnTimes(r);
  for (const auto& levels : r.outcomes) {
    if (acceptance_[static_cast<size_t>(s.drafter)].Observe(levels)) changed_ = true;
    for (const LevelOutcome& level : levels) summary_.accepted += level.hit >= 0 ? 1 : 0;
  }
  LearnAccount(r);
  ++step_;
  ++summary_.steps;
  ++summary_.steps_of[static_cast<size_t>(r.strategy)];
  summary_.drafting_steps += s.drafts() ? 1 : 0;
  summary_.exploring_steps += decision_.exploring ? 1 : 0;
  summary_.tokens += r.tokens;
  summary_.drafted += r.drafted;
}

void Planner::ObserveShadow(DrafterKind drafter, const std::vector<LevelOutcome>& levels) {
  if (levels.empty()) return;
  const auto k = static_cast<size_t>(drafter);
  // A guess that would have been right to its end is worth a new loan: losses of long ago must not bar what pays now.
  const bool right = std::all_of(levels.begin(), levels.end(), [](const LevelOutcome& l) { return l.hit >= 0; });
  const bool inviting = right && levels.size() >= kRightShadow;
  if (inviting) account_ = std::max(account_, kLoan);
  // Nor must one step that the machine stalled in be the word on what drafts cost: such a guess spares no exploration.
  kinds_[k].shadow_step = inviting ? -1 : step_;
  if (acceptance_[k].Observe(levels)) changed_ = true;
}

void Planner::ObserveMatch(DrafterKind drafter, int match, const std::vector<LevelOutcome>& levels) {
  matches_[static_cast<size_t>(drafter)].Observe(match, levels);
}

const TreeShape& Planner::ShapeToPropose(int strategy) const {
  const Strategy& s = menu_[static_cast<size_t>(strategy)];
  const TreeShape* longest = &s.shape;
  if (decision_.exploring || s.drafter == DrafterKind::kModel || !s.shape.is_chain()) return *longest;
  for (const Strategy& other : menu_) {
    const bool alike = other.drafter == s.drafter && other.mode == s.mode && other.shape.is_chain();
    if (alike && other.shape.max_nodes > longest->max_nodes) longest = &other.shape;
  }
  return *longest;
}

int Planner::Cut(int strategy, int match, int nodes, int64_t context, int batch) const {
  if (decision_.exploring) return nodes;
  const auto kind = static_cast<size_t>(menu_[static_cast<size_t>(strategy)].drafter);
  const int mode = mode_of_[static_cast<size_t>(strategy)];
  const double rate = std::max(value_[static_cast<size_t>(strategy)], value_[static_cast<size_t>(current_)]);
  const double plain = PlainUs(context, batch);
  const double one = BaseVerifyUs(0, context, batch, 1) * VerifyRatio(0, 1);
  double tokens = 0, chance = 1, best = 0;
  int kept = 0;
  for (int n = 1; n <= nodes; ++n) {
    const double us = BaseVerifyUs(mode, context, batch, 1 + n) * VerifyRatio(mode, 1 + n) - one;
    if (AtRisk(mode, n, us / plain) > account_) break;
    chance *= matches_[kind].Rate(match + n - 1, acceptance_[kind].Rate(n - 1, 0));
    tokens += chance;
    if (tokens - rate * us > best) best = tokens - rate * us, kept = n;
  }
  return kept;
}

}  // namespace farsight
