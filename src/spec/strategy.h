// How a step speculates: every choice is a value here, and the forward and the engine read it.
#ifndef FARSIGHT_SPEC_STRATEGY_H_
#define FARSIGHT_SPEC_STRATEGY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "farsight/options.h"
#include "farsight/status.h"
#include "spec/draft.h"
#include "spec/drafter.h"

namespace farsight {

inline constexpr int kMaxGroup = 64;

// How the target's forward runs over the rows of a draft.
struct VerifyMode {
  NodeOrder order = NodeOrder::kBreadthFirst;
  int group = 1;                 // consecutive rows that load blocks together at most, 1 to kMaxGroup
  bool shared_list = false;      // the rows of a group read one row's list instead of each its own
  std::vector<uint8_t> refresh;  // [layers], 1: selects, 0: inherits; the first is 1. Empty: every layer selects

  bool reuses_lists() const;
  bool is_exact() const { return !shared_list && !reuses_lists(); }
  bool operator==(const VerifyMode&) const = default;
};
// "bfs group:4", "dfs group:8 shared reuse:1000"; the reuse names a bit a layer.
std::string VerifyModeName(const VerifyMode& mode);
Status Validate(const VerifyMode& mode);
bool Allows(PrecisionClass precision, const VerifyMode& mode);

struct Strategy {
  DrafterKind drafter = DrafterKind::kOff;
  TreeShape shape;  // of an off drafter: empty
  VerifyMode mode;

  bool drafts() const { return drafter != DrafterKind::kOff; }
  bool operator==(const Strategy&) const = default;
};
std::string StrategyName(const Strategy& strategy);  // "off", "suffix chain:7 bfs group:4"
Status Validate(const Strategy& strategy);

// Plain decoding first, then every drafter with chains and forks of at most `draft_max` nodes in every mode.
std::vector<Strategy> BuildMenu(std::span<const DrafterKind> drafters, int draft_max,
                                std::span<const VerifyMode> modes);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_STRATEGY_H_
