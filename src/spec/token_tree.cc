#include "spec/token_tree.h"

#include <algorithm>

#include "base/check.h"

namespace farsight {

int TokenTree::Add(int parent, int32_t token) {
  FS_CHECK(parent >= -1 && parent < size() && (parent == -1) == tokens.empty(), "a node's parent comes before it");
  tokens.push_back(token);
  parents.push_back(parent);
  depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
  return size() - 1;
}

void TruncateAccepted(int64_t tokens, Accepted* accepted) {
  FS_CHECK(tokens >= 1 && accepted->path.size() == accepted->tokens.size(), "a step emits at least one token");
  if (static_cast<uint64_t>(tokens) >= accepted->tokens.size()) return;
  accepted->tokens.resize(static_cast<size_t>(tokens));
  accepted->path.resize(static_cast<size_t>(tokens));
}

TokenTree MakeChain(int32_t root, std::span<const int32_t> draft) {
  TokenTree tree;
  int last = tree.Add(-1, root);
  for (int32_t token : draft) last = tree.Add(last, token);
  return tree;
}

bool IsChain(const TokenTree& tree) {
  for (int u = 0; u < tree.size(); ++u) {
    if (tree.parents[static_cast<size_t>(u)] != u - 1) return false;
  }
  return tree.size() > 0;
}

int MaxDepth(const TokenTree& tree) {
  return tree.depths.empty() ? 0 : *std::max_element(tree.depths.begin(), tree.depths.end());
}

std::vector<int32_t> PathTo(const TokenTree& tree, int node) {
  std::vector<int32_t> path;
  for (int u = node; u >= 0; u = tree.parents[static_cast<size_t>(u)]) path.push_back(u);
  std::reverse(path.begin(), path.end());
  return path;
}

Status Validate(const TokenTree& tree) {
  const size_t n = tree.tokens.size();
  if (n == 0) return InvalidArgument("a token tree needs a root, but has no node");
  if (n > static_cast<size_t>(kMaxTreeNodes)) {
    return InvalidArgument("a token tree has at most " + std::to_string(kMaxTreeNodes) + " nodes, not " +
                           std::to_string(n));
  }
  if (tree.parents.size() != n || tree.depths.size() != n) {
    return InvalidArgument("a token tree of " + std::to_string(n) + " tokens has " +
                           std::to_string(tree.parents.size()) + " parents and " + std::to_string(tree.depths.size()) +
                           " depths");
  }
  for (size_t u = 0; u < n; ++u) {
    const int32_t parent = tree.parents[u];
    const std::string node = "node " + std::to_string(u) + " of a token tree has ";
    if (tree.tokens[u] < 0) return InvalidArgument(node + "the token " + std::to_string(tree.tokens[u]));
    if (u == 0 ? parent != -1 : parent < 0 || static_cast<size_t>(parent) >= u) {
      return InvalidArgument(node + "the parent " + std::to_string(parent) + ", which does not come before it");
    }
    const int32_t depth = u == 0 ? 0 : tree.depths[static_cast<size_t>(parent)] + 1;
    if (tree.depths[u] != depth) {
      return InvalidArgument(node + "the depth " + std::to_string(tree.depths[u]) + ", but its parent asks for " +
                             std::to_string(depth));
    }
  }
  return OkStatus();
}

std::span<const int32_t> TreeChildren::Of(int node) const {
  const auto u = static_cast<size_t>(node);
  const auto begin = static_cast<size_t>(first[u]);
  return std::span(nodes).subspan(begin, static_cast<size_t>(first[u + 1]) - begin);
}

TreeChildren ChildrenOf(const TokenTree& tree) {
  const size_t n = tree.tokens.size();
  TreeChildren children;
  children.first.assign(n + 1, 0);
  children.nodes.resize(n > 0 ? n - 1 : 0);
  for (size_t u = 1; u < n; ++u) ++children.first[static_cast<size_t>(tree.parents[u]) + 1];
  for (size_t u = 0; u < n; ++u) children.first[u + 1] += children.first[u];
  std::vector<int32_t> next(children.first.begin(), children.first.end());
  for (size_t u = 1; u < n; ++u) {
    children.nodes[static_cast<size_t>(next[static_cast<size_t>(tree.parents[u])]++)] = static_cast<int32_t>(u);
  }
  return children;
}

const char* NodeOrderName(NodeOrder order) { return order == NodeOrder::kBreadthFirst ? "bfs" : "dfs"; }

StatusOr<NodeOrder> ParseNodeOrder(const std::string& name) {
  for (NodeOrder order : {NodeOrder::kBreadthFirst, NodeOrder::kDepthFirst}) {
    if (name == NodeOrderName(order)) return order;
  }
  return InvalidArgument("unknown order of draft nodes '" + name + "': expected bfs or dfs");
}

std::vector<int32_t> OrderNodes(const TokenTree& tree, NodeOrder order) {
  std::vector<int32_t> out;
  if (tree.size() == 0) return out;
  out.reserve(tree.tokens.size());
  const TreeChildren children = ChildrenOf(tree);
  if (order == NodeOrder::kBreadthFirst) {
    out.push_back(0);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto next = children.Of(out[i]);
      out.insert(out.end(), next.begin(), next.end());
    }
    return out;
  }
  std::vector<int32_t> stack = {0};
  while (!stack.empty()) {
    const int32_t node = stack.back();
    stack.pop_back();
    out.push_back(node);
    const auto next = children.Of(node);
    stack.insert(stack.end(), next.rbegin(), next.rend());
  }
  return out;
}

TokenTree Reorder(const TokenTree& tree, std::span<const int32_t> order) {
  FS_CHECK(order.size() == tree.tokens.size(), "an order names every node once");
  std::vector<int32_t> place(order.size(), -1);
  TokenTree out;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto u = static_cast<size_t>(order[i]);
    const int32_t parent = tree.parents[u];
    out.Add(parent < 0 ? -1 : place[static_cast<size_t>(parent)], tree.tokens[u]);
    place[u] = static_cast<int32_t>(i);
  }
  return out;
}

bool AncestorMasks::Has(int node, int ancestor) const {
  const size_t word = static_cast<size_t>(node) * static_cast<size_t>(words) + static_cast<size_t>(ancestor) / 64;
  return (bits[word] >> (ancestor % 64) & 1) != 0;
}

AncestorMasks AncestorMasksOf(const TokenTree& tree) {
  AncestorMasks masks;
  masks.words = (tree.size() + 63) / 64;
  const auto words = static_cast<size_t>(masks.words);
  masks.bits.assign(tree.tokens.size() * words, 0);
  for (size_t u = 0; u < tree.tokens.size(); ++u) {
    if (tree.parents[u] >= 0) {
      const auto from = masks.bits.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(tree.parents[u]) * words);
      std::copy_n(from, words, masks.bits.begin() + static_cast<std::ptrdiff_t>(u * words));
    }
    masks.bits[u * words + u / 64] |= uint64_t{1} << (u % 64);
  }
  return masks;
}

}  // namespace farsight
