// What was measured of one model on one machine: the planner's knowledge before the first step. A readable JSON file.
#ifndef FARSIGHT_SPEC_PROFILE_H_
#define FARSIGHT_SPEC_PROFILE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "farsight/status.h"
#include "spec/strategy.h"

namespace farsight {

// What a profile is of. The texts are the caller's: anything that changes when the times would.
struct Fingerprint {
  std::string model;    // architecture, sizes, weight and KV formats
  std::string machine;  // processor, instruction set, threads
  bool operator==(const Fingerprint&) const = default;
};

struct DraftTime {  // of proposing `nodes` tokens
  DrafterKind drafter = DrafterKind::kOff;
  int64_t context = 0;  // tokens
  int batch = 1;        // sequences
  int nodes = 0;        // drafted, a sequence
  double median_us = 0, p90_us = 0;
  bool operator==(const DraftTime&) const = default;
};

struct VerifyTime {  // of the target's forward over `rows` rows a sequence; plain decoding is one row
  VerifyMode mode;
  int64_t context = 0;
  int batch = 1;
  int rows = 1;
  double median_us = 0, p90_us = 0;
  double overlap = 0;  // share of selected blocks that neighbouring rows have in common, 0 to 1
  bool operator==(const VerifyTime&) const = default;
};

struct FixedTime {  // of everything else in a step: sampling, commit, bookkeeping
  int64_t context = 0;
  int batch = 1;
  double median_us = 0;
  bool operator==(const FixedTime&) const = default;
};

// How drafts fared on one kind of text. `context` and `self_match` say which: the nearest record is a request's prior.
struct AcceptancePrior {
  DrafterKind drafter = DrafterKind::kOff;
  int64_t context = 0;
  double self_match = 0;       // SelfMatchRate() of the prompts
  double available_first = 1;  // share of steps with a draft at all
  double available_later = 1;  // share of accepted nodes that had a child drafted
  // [depth][rank]: how often the child of that rank was right, where its parent was and it was drafted. Deeper nodes
  // are as the last depth.
  std::vector<std::vector<double>> rates;
  bool operator==(const AcceptancePrior&) const = default;
};

struct QualityRecord {  // an approximate mode against the exact one, on the same text
  VerifyMode mode;
  int64_t context = 0;
  int64_t tokens = 0;           // compared
  double flip_rate = 0;         // greedy choices that differ
  double kl_mean = 0;           // nats
  double kl_p99 = 0;            // nats
  double substitution_p99 = 0;  // total variation of the block weights, 0 to 1
  double task_drop = 0;         // of a long-context score, absolute, 0 to 1
  bool operator==(const QualityRecord&) const = default;
};
inline constexpr double kMaxFlipRate = 0.005;
inline constexpr double kMaxMeanKl = 1e-3;
inline constexpr double kMaxTaskDrop = 0.01;
bool Passes(const QualityRecord& record);

struct Profile {
  Fingerprint of;
  std::vector<DraftTime> draft;
  std::vector<VerifyTime> verify;
  std::vector<FixedTime> fixed;
  std::vector<AcceptancePrior> acceptance;
  std::vector<QualityRecord> quality;
  bool operator==(const Profile&) const = default;
};

// An exact mode always; another only where it was compared and every record of it passes.
bool QualityAllows(const Profile& profile, const VerifyMode& mode);

// Measured times of one kind of work, looked up by linear interpolation in context and count (rows or nodes) between
// those of the nearest batch size. Below the first and beyond the last context a time stays; beyond the last count its
// last slope goes on.
class TimeTable {
 public:
  // A time of a context, batch and count that is there already replaces it.
  void Add(int64_t context, int batch, double count, double us);
  bool empty() const { return points_.empty(); }
  // Microseconds; nullopt where the table is empty.
  std::optional<double> At(int64_t context, int batch, double count) const;

 private:
  struct Point {
    double batch, context, count, us;
  };
  static double Line(std::span<const Point> points, double count);
  std::vector<Point> points_;  // by batch, then context, then count
};
TimeTable VerifyTable(const Profile& profile, const VerifyMode& mode);
TimeTable DraftTable(const Profile& profile, DrafterKind drafter);
TimeTable FixedTable(const Profile& profile);

// The record of `drafter` nearest in context (by ratio) and self-match; nullptr: none.
const AcceptancePrior* NearestPrior(const Profile& profile, DrafterKind drafter, int64_t context, double self_match);

std::string ProfileToJson(const Profile& profile);
// kDataLoss with one sentence for anything that ProfileToJson() would not write: broken JSON, another format or
// version, a missing or unknown field, a value out of its range. `what` names the text, for example "the profile
// 'p.json'".
StatusOr<Profile> ProfileFromJson(std::string_view text, const std::string& what);

Status WriteProfile(const std::string& path, const Profile& profile);
// Also kInvalidArgument where the profile is of another model or machine.
StatusOr<Profile> ReadProfile(const std::string& path, const Fingerprint& of);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_PROFILE_H_
