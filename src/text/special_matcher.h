// Finds tokens that are written out in a text: control tokens and those a model's maker added by hand.
#ifndef FARSIGHT_TEXT_SPECIAL_MATCHER_H_
#define FARSIGHT_TEXT_SPECIAL_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "farsight/status.h"

namespace farsight {

class SpecialMatcher {
 public:
  static constexpr size_t kMaxLength = 1024;  // bytes of one pattern: the cost of a text is at most its size times this

  struct Match {
    int32_t id = -1;  // -1: none
    size_t size = 0;
  };

  SpecialMatcher();
  // A later pattern of the same text replaces the earlier one. kDataLoss for an empty or over-long pattern.
  Status Add(std::string_view pattern, int32_t id, bool control);
  // The longest pattern that starts at text[at]; control tokens only where they are allowed.
  Match At(std::string_view text, size_t at, bool allow_control) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  // A trie; the children of a node are a list of siblings, except the root's, which are found by their byte.
  struct Node {
    int32_t id = -1;
    bool control = false;
    uint8_t byte = 0;
    int32_t child = -1, sibling = -1;
  };
  int32_t Child(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;
  int32_t starts_[256];  // node of each first byte, or -1
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_SPECIAL_MATCHER_H_
