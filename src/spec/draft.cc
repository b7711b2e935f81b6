#include "spec/draft.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace farsight {
namespace {

constexpr int kMaxWidth = 64;

StatusOr<int> ParseCount(std::string_view text, const std::string& whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("unknown draft shape '" + whole + "': expected off, chain:N or fork:W,W,...:N");
  }
  return value;
}

// The probability of `token`, 0 where the law does not name it.
double ProbabilityOf(const Distribution& law, int32_t token) {
  const auto at = std::lower_bound(law.ids.begin(), law.ids.end(), token);
  return at != law.ids.end() && *at == token ? law.probs[static_cast<size_t>(at - law.ids.begin())] : 0;
}

Status CheckLaws(const Draft& draft, const TreeChildren& children) {
  if (draft.laws.size() != draft.tree.tokens.size()) {
    return InvalidArgument("a drawn draft of " + std::to_string(draft.tree.size()) + " nodes comes with " +
                           std::to_string(draft.laws.size()) + " laws");
  }
  for (int u = 0; u < draft.tree.size(); ++u) {
    const Distribution& law = draft.laws[static_cast<size_t>(u)];
    if (law.ids.size() != law.probs.size()) {
      return InvalidArgument("the draft's law after node " + std::to_string(u) + " has " +
                             std::to_string(law.ids.size()) + " tokens but " + std::to_string(law.probs.size()) +
                             " probabilities");
    }
    for (int32_t child : children.Of(u)) {
      const int32_t token = draft.tree.tokens[static_cast<size_t>(child)];
      if (!(ProbabilityOf(law, token) > 0)) {
        return Internal("token " + std::to_string(token) + " was drafted after node " + std::to_string(u) +
                        ", but the draft's law gives it no chance");
      }
    }
  }
  return OkStatus();
}

}  // namespace

bool TreeShape::is_chain() const {
  return std::all_of(widths.begin(), widths.end(), [](int w) { return w == 1; });
}

TreeShape ChainShape(int tokens) {
  const int n = std::max(tokens, 0);
  return {std::vector<int>(static_cast<size_t>(n), 1), n};
}

std::string ShapeName(const TreeShape& shape) {
  if (shape.max_nodes == 0 || shape.widths.empty()) return "off";
  if (shape.is_chain() && shape.max_nodes == shape.max_depth()) return "chain:" + std::to_string(shape.max_nodes);
  std::string name = "fork:";
  for (int width : shape.widths) name.append(std::to_string(width)).push_back(',');
  name.back() = ':';
  return name.append(std::to_string(shape.max_nodes));
}

StatusOr<TreeShape> ParseShape(const std::string& name) {
  if (name == "off") return TreeShape();
  const std::string_view text(name);
  TreeShape shape;
  if (text.substr(0, 6) == "chain:") {
    FS_ASSIGN_OR_RETURN(const int n, ParseCount(text.substr(6), name));
    if (n < 1 || n >= kMaxTreeNodes) {
      return InvalidArgument("a draft chain has 1 to " + std::to_string(kMaxTreeNodes - 1) + " tokens, not " +
                             std::to_string(n));
    }
    return ChainShape(n);
  }
  const size_t colon = text.rfind(':');
  if (text.substr(0, 5) != "fork:" || colon < 5) return ParseCount("", name).status();
  std::string_view rest = text.substr(5, colon - 5);
  while (true) {
    const size_t comma = rest.find(',');
    FS_ASSIGN_OR_RETURN(const int width, ParseCount(rest.substr(0, comma), name));
    shape.widths.push_back(width);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  FS_ASSIGN_OR_RETURN(shape.max_nodes, ParseCount(text.substr(colon + 1), name));
  FS_RETURN_IF_ERROR(Validate(shape));
  return shape;
}

Status Validate(const TreeShape& shape) {
  if (shape.max_nodes < 0 || shape.max_nodes >= kMaxTreeNodes || shape.widths.size() >= size_t{kMaxTreeNodes}) {
    return InvalidArgument("a draft has 0 to " + std::to_string(kMaxTreeNodes - 1) + " nodes and depths, not " +
                           std::to_string(shape.max_nodes) + " nodes and " + std::to_string(shape.widths.size()) +
                           " depths");
  }
  for (int width : shape.widths) {
    if (width < 1 || width > kMaxWidth) {
      return InvalidArgument("a draft node has 1 to " + std::to_string(kMaxWidth) + " children, not " +
                             std::to_string(width));
    }
  }
  return OkStatus();
}

Status Validate(const Draft& draft, int64_t vocab) {
  FS_RETURN_IF_ERROR(Validate(draft.tree));
  for (int32_t token : draft.tree.tokens) {
    if (token >= vocab) {
      return InvalidArgument("the draft holds token " + std::to_string(token) + ", but the vocabulary has " +
                             std::to_string(vocab) + " tokens");
    }
  }
  const TreeChildren children = ChildrenOf(draft.tree);
  if (draft.drawing != Drawing::kIndependent) {
    std::vector<int32_t> tokens;
    for (int u = 0; u < draft.tree.size(); ++u) {
      tokens.clear();
      for (int32_t child : children.Of(u)) tokens.push_back(draft.tree.tokens[static_cast<size_t>(child)]);
      std::sort(tokens.begin(), tokens.end());
      if (const auto twice = std::adjacent_find(tokens.begin(), tokens.end()); twice != tokens.end()) {
        return InvalidArgument("token " + std::to_string(*twice) + " was drafted twice after node " +
                               std::to_string(u));
      }
    }
  }
  return draft.drawing == Drawing::kDeterministic ? OkStatus() : CheckLaws(draft, children);
}

Draft Reorder(Draft draft, NodeOrder order) {
  const std::vector<int32_t> places = OrderNodes(draft.tree, order);
  Draft out;
  out.drawing = draft.drawing;
  out.match = draft.match;
  out.tree = Reorder(draft.tree, places);
  if (draft.laws.empty()) return out;
  out.laws.reserve(places.size());
  for (int32_t u : places) out.laws.push_back(std::move(draft.laws[static_cast<size_t>(u)]));
  return out;
}

int32_t DrawChild(const Distribution& law, uint64_t seed, uint64_t root_position, int node) {
  return Pick(law, Uniform({seed, root_position, kDraftTrial + static_cast<uint32_t>(node)}));
}

void RemoveToken(int32_t token, Distribution* law) {
  const auto at = std::lower_bound(law->ids.begin(), law->ids.end(), token);
  if (at == law->ids.end() || *at != token) return;
  law->probs.erase(law->probs.begin() + (at - law->ids.begin()));
  law->ids.erase(at);
  // Summed afresh: 1 minus a probability near 1 would keep nothing but rounding.
  double total = 0;
  for (double p : law->probs) total += p;
  if (!(total > 0)) {
    law->ids.clear();
    law->probs.clear();
  }
  for (double& p : law->probs) p /= total;
}

void DrawChildren(const Distribution& law, int parent, int count, uint64_t seed, uint64_t root_position, Draft* draft) {
  FS_CHECK(draft->drawing != Drawing::kDeterministic, "a deterministic draft draws nothing");
  Distribution left = law;
  for (int i = 0; i < count && !left.ids.empty(); ++i) {
    const int32_t token = DrawChild(left, seed, root_position, draft->tree.size());
    draft->tree.Add(parent, token);
    if (draft->drawing == Drawing::kWithoutReplacement) RemoveToken(token, &left);
  }
  draft->laws.resize(draft->tree.tokens.size());
  draft->laws[static_cast<size_t>(parent)] = law;
}

}  // namespace farsight
