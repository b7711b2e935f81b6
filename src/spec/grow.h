// Best-first growth of a draft tree, shared by the lookups: the nodes of highest value under a shape. A node's value is
// the product of the shares on its path, so a child never exceeds its parent and what is kept is closed under parents.
#ifndef FARSIGHT_SPEC_GROW_H_
#define FARSIGHT_SPEC_GROW_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/draft.h"

namespace farsight {

template <typename State>
struct Branch {
  int32_t token = 0;
  double share = 0;  // estimated probability given the parent, at most 1
  State state;
};

// expand(state, width, &branches) appends at most `width` branches with distinct tokens, best first. Equal values are
// taken in the order they were found, so the tree is a function of its inputs.
template <typename State, typename Expand>
TokenTree GrowTree(int32_t root, State state, const TreeShape& shape, int max_nodes, double min_value,
                   Expand&& expand) {
  struct Item {
    double value;
    int64_t serial;
    int parent;
    int32_t token;
    State state;
  };
  const auto worse = [](const Item& a, const Item& b) {
    return a.value != b.value ? a.value < b.value : a.serial > b.serial;
  };
  TokenTree tree;
  tree.Add(-1, root);
  std::vector<Item> heap;
  std::vector<Branch<State>> branches;
  int64_t serial = 0;
  const auto push_children = [&](const State& from, int node, double value) {
    const auto depth = static_cast<size_t>(tree.depths[static_cast<size_t>(node)]);
    if (depth >= shape.widths.size()) return;
    branches.clear();
    expand(from, shape.widths[depth], &branches);
    for (Branch<State>& b : branches) {
      const double share = value * b.share;
      if (share < min_value) continue;
      heap.push_back({share, serial++, node, b.token, std::move(b.state)});
      std::push_heap(heap.begin(), heap.end(), worse);
    }
  };
  const int limit = std::min({max_nodes, shape.max_nodes, kMaxTreeNodes - 1});
  if (limit > 0) push_children(state, 0, 1);
  while (tree.num_drafted() < limit && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), worse);
    const Item item = std::move(heap.back());
    heap.pop_back();
    const int node = tree.Add(item.parent, item.token);
    if (tree.num_drafted() < limit) push_children(item.state, node, item.value);
  }
  return tree;
}

}  // namespace farsight

#endif  // FARSIGHT_SPEC_GROW_H_
