// A token tree with what the verifier must know about how its tokens were chosen.
#ifndef FARSIGHT_SPEC_DRAFT_H_
#define FARSIGHT_SPEC_DRAFT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "farsight/status.h"
#include "sample/sampler.h"
#include "spec/token_tree.h"

namespace farsight {

// How the children of a node were chosen.
enum class Drawing : uint8_t {
  kDeterministic,       // by any rule without chance of its own: the best k, a lookup, the plain draw of a position
  kIndependent,         // each from the same law; two siblings may be the same token and both stay
  kWithoutReplacement,  // each from the law without its earlier siblings; siblings stand in the order of their draws
};

struct Draft {
  TokenTree tree;
  Drawing drawing = Drawing::kDeterministic;
  // Of a drawn draft, [nodes]: laws[u] is what the first child of node u was drawn from, after all sampler settings;
  // leaves may have an empty one. A deterministic draft has none.
  std::vector<Distribution> laws;
  int match = 0;  // of a lookup: tokens before the draft that its place in the text has in common with the end
};

// The tree that a drafter may fill: node values decide which of the allowed nodes it keeps.
struct TreeShape {
  std::vector<int> widths;  // [depths]: the most children of a node at depth d; a draft is at most this deep
  int max_nodes = 0;        // drafted nodes, the root not counted; 0: no draft

  int max_depth() const { return static_cast<int>(widths.size()); }
  bool is_chain() const;
  bool operator==(const TreeShape&) const = default;
};
TreeShape ChainShape(int tokens);
// "off", "chain:7", "fork:4,2,1:15" (widths, then drafted nodes).
std::string ShapeName(const TreeShape& shape);
StatusOr<TreeShape> ParseShape(const std::string& name);
// Widths 1 to 64, as many nodes as kMaxTreeNodes allows.
Status Validate(const TreeShape& shape);

// kInvalidArgument or kInternal with one sentence where the tree is broken, a token is not below `vocab`, siblings of a
// deterministic or without-replacement draft repeat a token, or a law is missing or gives a drafted token no chance.
Status Validate(const Draft& draft, int64_t vocab);
// The same draft with its nodes in another order.
Draft Reorder(Draft draft, NodeOrder order);

// Trials of DrawKey for the draws of a step beyond the plain one. The position of these keys is that of the step's
// root, which grows with every step: no draw of a step is ever seen by another, whatever was accepted. (Keys by the
// position of the drafted token would repeat: block verification looks at draws beyond the token that it rejects.)
// Trial 0 at a token's own position stays the plain draw of that token.
inline constexpr uint32_t kDraftTrial = 1u << 24;     // + node: the draw that chose a drafted node
inline constexpr uint32_t kAcceptTrial = 2u << 24;    // + node: whether the node is accepted
inline constexpr uint32_t kResidualTrial = 3u << 24;  // the token after a rejection

// The child that `node` will be: a draw from `law` for a step whose root stands at `root_position`.
int32_t DrawChild(const Distribution& law, uint64_t seed, uint64_t root_position, int node);

// Takes `token` out of `law` and scales the rest to a sum of 1. Leaves an empty law where nothing else had a chance.
void RemoveToken(int32_t token, Distribution* law);

// Draws up to `count` children of `parent`, appends them to draft->tree and stores the law, for drawn drafts. Fewer
// come where kWithoutReplacement runs out of tokens. draft->drawing must not be kDeterministic.
void DrawChildren(const Distribution& law, int parent, int count, uint64_t seed, uint64_t root_position, Draft* draft);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_DRAFT_H_
