#include "text/special_matcher.h"

#include <algorithm>
#include <string>

namespace farsight {

SpecialMatcher::SpecialMatcher() : nodes_(1) { std::fill(std::begin(starts_), std::end(starts_), -1); }

int32_t SpecialMatcher::Child(int32_t node, uint8_t byte) const {
  if (node == 0) return starts_[byte];
  int32_t at = nodes_[static_cast<size_t>(node)].child;
  while (at >= 0 && nodes_[static_cast<size_t>(at)].byte != byte) at = nodes_[static_cast<size_t>(at)].sibling;
  return at;
}

Status SpecialMatcher::Add(std::string_view pattern, int32_t id, bool control) {
  if (pattern.empty() || pattern.size() > kMaxLength) {
    return DataLoss("the special token " + std::to_string(id) + " has " + std::to_string(pattern.size()) +
                    " bytes; 1 to " + std::to_string(kMaxLength) + " were expected");
  }
  int32_t node = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = Child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      Node fresh;
      fresh.byte = byte;
      if (node == 0) {
        starts_[byte] = next;
      } else {
        fresh.sibling = nodes_[static_cast<size_t>(node)].child;
        nodes_[static_cast<size_t>(node)].child = next;
      }
      nodes_.push_back(fresh);
    }
    node = next;
  }
  nodes_[static_cast<size_t>(node)].id = id;
  nodes_[static_cast<size_t>(node)].control = control;
  return OkStatus();
}

SpecialMatcher::Match SpecialMatcher::At(std::string_view text, size_t at, bool allow_control) const {
  Match best;
  int32_t node = starts_[static_cast<uint8_t>(text[at])];
  for (size_t end = at + 1; node >= 0; ++end) {
    const Node& n = nodes_[static_cast<size_t>(node)];
    if (n.id >= 0 && (allow_control || !n.control)) best = {n.id, end - at};
    if (end == text.size()) break;
    node = Child(node, static_cast<uint8_t>(text[end]));
  }
  return best;
}

}  // namespace farsight
