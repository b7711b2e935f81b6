// A draft as rows of a forward pass, and what a verifier made of it: plain structs that a test can print and compare.
//
// Words: L is the committed length, the tokens whose keys and values are in the caches. The root is the last emitted
// token; its keys and values are not computed yet and it stands at position L. A node of depth d stands at L + d. After
// a step that accepted a draft nodes, a + 1 tokens were emitted, L grows by a + 1 and the last of them is the new root.
#ifndef FARSIGHT_SPEC_TOKEN_TREE_H_
#define FARSIGHT_SPEC_TOKEN_TREE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "farsight/status.h"

namespace farsight {

inline constexpr int kMaxTreeNodes = 1024;  // root included

// Node 0 is the root. A parent comes before its children; siblings keep the order they were drafted in. Both hold in
// every order of the nodes, so the row of a node is its index.
struct TokenTree {
  std::vector<int32_t> tokens;   // [nodes]
  std::vector<int32_t> parents;  // [nodes], -1 for the root
  std::vector<int32_t> depths;   // [nodes], 0 for the root

  int size() const { return static_cast<int>(tokens.size()); }
  int num_drafted() const { return size() > 0 ? size() - 1 : 0; }
  // Returns the new node. parent -1 makes the root, which must come first.
  int Add(int parent, int32_t token);
  bool operator==(const TokenTree&) const = default;
};

// What the verifier emits. tokens[i] was chosen after node path[i], so both have one length, a + 1.
struct Accepted {
  std::vector<int32_t> path;    // accepted nodes from the root down: path[0] is 0; their keys and values stay
  std::vector<int32_t> tokens;  // the accepted nodes' tokens, then the one that the target chose itself
  bool operator==(const Accepted&) const = default;
};

// Keeps the first `tokens` emitted tokens, at least one: for a stop, an end of text or a limit inside an accepted run.
// The last token kept is the new root, so nothing after it was committed.
void TruncateAccepted(int64_t tokens, Accepted* accepted);

TokenTree MakeChain(int32_t root, std::span<const int32_t> draft);
// Every node but the last has exactly one child, the next node.
bool IsChain(const TokenTree& tree);
int MaxDepth(const TokenTree& tree);
// Nodes from the root down to `node`.
std::vector<int32_t> PathTo(const TokenTree& tree, int node);

// kInvalidArgument with one sentence unless the three vectors make a tree as described above.
Status Validate(const TokenTree& tree);

// Children of every node in their order: those of u are nodes[first[u]] up to nodes[first[u + 1]].
struct TreeChildren {
  std::vector<int32_t> first;  // [nodes + 1]
  std::vector<int32_t> nodes;  // [nodes - 1]
  std::span<const int32_t> Of(int node) const;
};
TreeChildren ChildrenOf(const TokenTree& tree);

// Order of rows. Breadth first puts siblings side by side, which share a position; depth first parent and child, which
// share ancestors. A chain is the same in both.
enum class NodeOrder : uint8_t { kBreadthFirst, kDepthFirst };
const char* NodeOrderName(NodeOrder order);  // "bfs", "dfs"
StatusOr<NodeOrder> ParseNodeOrder(const std::string& name);

// order[i] is the node of `tree` that comes at place i. Siblings keep their order.
std::vector<int32_t> OrderNodes(const TokenTree& tree, NodeOrder order);
// `order` must put parents before children.
TokenTree Reorder(const TokenTree& tree, std::span<const int32_t> order);

// Which nodes a node attends to among the draft: itself and its ancestors.
struct AncestorMasks {
  int words = 0;               // of a node: nodes / 64, rounded up
  std::vector<uint64_t> bits;  // [nodes, words]; bit v % 64 of word v / 64 of node u: v is u or an ancestor of u
  bool Has(int node, int ancestor) const;
};
AncestorMasks AncestorMasksOf(const TokenTree& tree);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_TOKEN_TREE_H_
