#include "spec/strategy.h"

#include <algorithm>

namespace farsight {
namespace {

constexpr size_t kMaxLayers = 1024;

}  // namespace

bool VerifyMode::reuses_lists() const { return std::find(refresh.begin(), refresh.end(), uint8_t{0}) != refresh.end(); }

std::string VerifyModeName(const VerifyMode& mode) {
  std::string name = NodeOrderName(mode.order);
  name.append(" group:").append(std::to_string(mode.group));
  if (mode.shared_list) name.append(" shared");
  if (mode.reuses_lists()) {
    name.append(" reuse:");
    for (uint8_t bit : mode.refresh) name.push_back(bit != 0 ? '1' : '0');
  }
  return name;
}

Status Validate(const VerifyMode& mode) {
  if (mode.group < 1 || mode.group > kMaxGroup) {
    return InvalidArgument("a group has 1 to " + std::to_string(kMaxGroup) + " rows, not " +
                           std::to_string(mode.group));
  }
  if (mode.refresh.size() > kMaxLayers || (!mode.refresh.empty() && mode.refresh[0] != 1)) {
    return InvalidArgument("a refresh schedule has at most " + std::to_string(kMaxLayers) +
                           " layers, and the first must select for itself");
  }
  if (std::any_of(mode.refresh.begin(), mode.refresh.end(), [](uint8_t bit) { return bit > 1; })) {
    return InvalidArgument("a refresh schedule holds 0 and 1 only");
  }
  return OkStatus();
}

bool Allows(PrecisionClass precision, const VerifyMode& mode) {
  const bool reuse = precision == PrecisionClass::kReuse || precision == PrecisionClass::kSharedReuse;
  const bool shared = precision == PrecisionClass::kShared || precision == PrecisionClass::kSharedReuse;
  return (reuse || !mode.reuses_lists()) && (shared || !mode.shared_list);
}

std::string StrategyName(const Strategy& strategy) {
  if (!strategy.drafts()) return DrafterKindName(strategy.drafter);
  std::string name = DrafterKindName(strategy.drafter);
  return name.append(" ").append(ShapeName(strategy.shape)).append(" ").append(VerifyModeName(strategy.mode));
}

Status Validate(const Strategy& strategy) {
  FS_RETURN_IF_ERROR(Validate(strategy.shape));
  FS_RETURN_IF_ERROR(Validate(strategy.mode));
  const bool nodes = strategy.shape.max_nodes > 0 && !strategy.shape.widths.empty();
  if (strategy.drafts() == nodes) return OkStatus();
  return InvalidArgument(std::string("the drafter ") + DrafterKindName(strategy.drafter) +
                         " does not go with the shape " + ShapeName(strategy.shape));
}

std::vector<Strategy> BuildMenu(std::span<const DrafterKind> drafters, int draft_max,
                                std::span<const VerifyMode> modes) {
  std::vector<TreeShape> shapes;
  for (int n : {1, 2, 3, 4, 5, 7, 11, 15, 23, 31, 63}) {
    if (n <= draft_max) shapes.push_back(ChainShape(n));
  }
  // Wide at the root, where the first guess decides whether anything follows, and narrow below.
  const std::vector<TreeShape> forks = {
      {{2, 2, 1, 1}, 7}, {{3, 2, 2, 1, 1}, 15}, {{4, 3, 2, 2, 1, 1, 1}, 31}, {{4, 4, 3, 2, 2, 1, 1, 1}, 63}};
  for (const TreeShape& fork : forks) {
    if (fork.max_nodes <= draft_max) shapes.push_back(fork);
  }
  std::vector<Strategy> menu(1);
  for (DrafterKind drafter : drafters) {
    if (drafter == DrafterKind::kOff) continue;
    for (const VerifyMode& mode : modes) {
      for (const TreeShape& shape : shapes) {
        // The order of a chain is one.
        if (shape.is_chain() && mode.order != NodeOrder::kBreadthFirst) continue;
        menu.push_back({drafter, shape, mode});
      }
    }
  }
  return menu;
}

}  // namespace farsight
