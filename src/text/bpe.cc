#include "text/bpe.h"

#include <queue>
#include <tuple>

namespace farsight {
namespace {

// Few tokens: look for the best pair again after every merge.
void MergeShort(const MergeMap& merges, std::vector<int32_t>* tokens) {
  auto& t = *tokens;
  while (t.size() > 1) {
    size_t best = t.size();
    Merge chosen;
    for (size_t i = 0; i + 1 < t.size(); ++i) {
      const auto it = merges.find(PairKey(t[i], t[i + 1]));
      if (it != merges.end() && (best == t.size() || it->second.rank < chosen.rank)) {
        best = i;
        chosen = it->second;
      }
    }
    if (best == t.size()) return;
    t[best] = chosen.token;
    t.erase(t.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Many tokens: a linked list and a heap of candidate pairs; a candidate whose pair has changed is dropped when met.
void MergeLong(const MergeMap& merges, std::vector<int32_t>* tokens) {
  struct Node {
    int32_t token;
    int64_t prev, next;
  };
  struct Candidate {
    int64_t rank;
    int64_t left;
    int32_t left_token, right_token, merged;
    bool operator>(const Candidate& o) const { return std::tie(rank, left) > std::tie(o.rank, o.left); }
  };
  const auto n = static_cast<int64_t>(tokens->size());
  std::vector<Node> nodes(tokens->size());
  for (int64_t i = 0; i < n; ++i) {
    nodes[static_cast<size_t>(i)] = {(*tokens)[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](int64_t left) {
    if (left < 0) return;
    const int64_t right = nodes[static_cast<size_t>(left)].next;
    if (right < 0) return;
    const int32_t a = nodes[static_cast<size_t>(left)].token;
    const int32_t b = nodes[static_cast<size_t>(right)].token;
    const auto it = merges.find(PairKey(a, b));
    if (it != merges.end()) heap.push({it->second.rank, left, a, b, it->second.token});
  };
  for (int64_t i = 0; i + 1 < n; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Node& left = nodes[static_cast<size_t>(c.left)];
    if (left.token != c.left_token || left.next < 0) continue;
    Node& right = nodes[static_cast<size_t>(left.next)];
    if (right.token != c.right_token) continue;
    left.token = c.merged;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) nodes[static_cast<size_t>(left.next)].prev = c.left;
    consider(left.prev);
    consider(c.left);
  }
  tokens->clear();
  for (int64_t i = 0; i >= 0; i = nodes[static_cast<size_t>(i)].next)
    tokens->push_back(nodes[static_cast<size_t>(i)].token);
}

}  // namespace

void ApplyMerges(const MergeMap& merges, std::vector<int32_t>* tokens) {
  if (tokens->size() < 2) return;
  if (tokens->size() <= 24) {
    MergeShort(merges, tokens);
  } else {
    MergeLong(merges, tokens);
  }
}

}  // namespace farsight
