#include "spec/profile.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace farsight {
bool Passes(const QualityRecord& r) {
  return r.tokens > 0 && r.flip_rate <= kMaxFlipRate && r.kl_mean <= kMaxMeanKl && r.task_drop <= kMaxTaskDrop;
}

bool QualityAllows(const Profile& profile, const VerifyMode& mode) {
  if (mode.is_exact()) return true;
  // Order and groups of rows change what a shared list is; what a reuse schedule does to quality they do not.
  const auto same = [&](const VerifyMode& m) {
    return m.refresh == mode.refresh && m.shared_list == mode.shared_list &&
           (!m.shared_list || (m.order == mode.order && m.group == mode.group));
  };
  bool seen = false;
  for (const QualityRecord& record : profile.quality) {
    if (!same(record.mode)) continue;
    if (!Passes(record)) return false;
    seen = true;
  }
  return seen;
}

void TimeTable::Add(int64_t context, int batch, double count, double us) {
  const Point point{static_cast<double>(batch), static_cast<double>(context), count, us};
  const auto key = [](const Point& p) { return std::tie(p.batch, p.context, p.count); };
  const auto at = std::lower_bound(points_.begin(), points_.end(), point,
                                   [&](const Point& a, const Point& b) { return key(a) < key(b); });
  if (at != points_.end() && key(*at) == key(point)) {
    at->us = us;
  } else {
    points_.insert(at, point);
  }
}

// Times never fall below half of the lesser neighbour, whatever a noisy slope says.
double TimeTable::Line(std::span<const Point> points, double count) {
  if (points.size() == 1 || count <= points.front().count) return points.front().us;
  size_t i = 1;
  while (i + 1 < points.size() && points[i].count < count) ++i;
  const Point& a = points[i - 1];
  const Point& b = points[i];
  return std::max(a.us + (b.us - a.us) * (count - a.count) / (b.count - a.count), 0.5 * std::min(a.us, b.us));
}

std::optional<double> TimeTable::At(int64_t context, int batch, double count) const {
  if (points_.empty()) return std::nullopt;
  double chosen = points_.front().batch;
  const auto distance = [&](double b) { return std::abs(std::log(b / batch)); };
  for (const Point& p : points_) chosen = distance(p.batch) < distance(chosen) ? p.batch : chosen;
  const auto first = std::find_if(points_.begin(), points_.end(), [&](const Point& p) { return p.batch == chosen; });
  const auto wanted = static_cast<double>(context);
  double before = 0, before_us = 0;
  for (auto begin = first; begin != points_.end() && begin->batch == chosen;) {
    const double here = begin->context;
    auto end = begin;
    while (end != points_.end() && end->batch == chosen && end->context == here) ++end;
    const double us = Line(std::span(begin, end), count);
    if (here >= wanted) {
      return begin == first ? us : before_us + (us - before_us) * (wanted - before) / (here - before);
    }
    before = here;
    before_us = us;
    begin = end;
  }
  return before_us;
}

TimeTable VerifyTable(const Profile& profile, const VerifyMode& mode) {
  TimeTable table;
  for (const VerifyTime& t : profile.verify) {
    if (t.mode == mode) table.Add(t.context, t.batch, t.rows, t.median_us);
  }
  return table;
}

TimeTable DraftTable(const Profile& profile, DrafterKind drafter) {
  TimeTable table;
  for (const DraftTime& t : profile.draft) {
    if (t.drafter == drafter) table.Add(t.context, t.batch, t.nodes, t.median_us);
  }
  return table;
}

TimeTable FixedTable(const Profile& profile) {
  TimeTable table;
  for (const FixedTime& t : profile.fixed) table.Add(t.context, t.batch, 1, t.median_us);
  return table;
}

const AcceptancePrior* NearestPrior(const Profile& profile, DrafterKind drafter, int64_t context, double self_match) {
  const AcceptancePrior* best = nullptr;
  double least = 0;
  for (const AcceptancePrior& prior : profile.acceptance) {
    if (prior.drafter != drafter) continue;
    // A text twice as long is as far as one that quotes itself a tenth more.
    const double ratio = (static_cast<double>(prior.context) + 1) / (static_cast<double>(context) + 1);
    const double distance = std::abs(std::log2(ratio)) + 10 * std::abs(prior.self_match - self_match);
    if (best == nullptr || distance < least) best = &prior, least = distance;
  }
  return best;
}

}  // namespace farsight
