#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

#include "text/unicode.h"

namespace farsight {
namespace {

// Few tokens: look for the best pair again after every merge.
void MergeShort(const MergeMap& merges, std::vector<int32_t>* tokens) {
  auto& t = *tokens;
  while (t.size() > 1) {
    size_t best = t.size();
    Merge chosen;
    for (size_t i = 0; i + 1 < t.size(); ++i) {
      const Merge* m = merges.Find(t[i], t[i + 1]);
      if (m != nullptr && (best == t.size() || m->rank < chosen.rank)) {
        best = i;
        chosen = *m;
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
    if (const Merge* m = merges.Find(a, b)) heap.push({m->rank, left, a, b, m->token});
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

void MergeMap::Reserve(size_t n) {
  const size_t size = std::bit_ceil(std::max<size_t>(n, 2) * 2);
  slots_.assign(size, {});
  shift_ = 64 - std::countr_zero(size);
}

void MergeMap::Insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t at = Start(key);
  while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].key == kFree) slots_[at] = {key, merge};
}

const Merge* MergeMap::Find(int32_t left, int32_t right) const {
  if (slots_.empty()) return nullptr;
  const uint64_t key = Key(left, right);
  size_t at = Start(key);
  while (slots_[at].key != kFree) {
    if (slots_[at].key == key) return &slots_[at].merge;
    at = (at + 1) & (slots_.size() - 1);
  }
  return nullptr;
}

void ApplyMerges(const MergeMap& merges, std::vector<int32_t>* tokens) {
  if (tokens->size() < 2) return;
  if (tokens->size() <= 24) {
    MergeShort(merges, tokens);
  } else {
    MergeLong(merges, tokens);
  }
}

void MergeByScore(std::string_view text, const TokenMap& tokens, std::span<const float> scores,
                  std::vector<std::string_view>* parts) {
  struct Symbol {
    size_t start, size;
    int64_t prev, next;
  };
  struct Candidate {
    float score;
    int64_t left;
    size_t size;  // of the pair when it was met: another size now means that one of the two has changed
    bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < text.size();) {
    const size_t size = DecodeUtf8(text, i).size;
    const auto at = static_cast<int64_t>(symbols.size());
    symbols.push_back({i, size, at - 1, at + 1});
    i += size;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  std::priority_queue<Candidate> heap;
  const auto consider = [&](int64_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const size_t size = a.size + symbols[static_cast<size_t>(a.next)].size;
    const auto it = tokens.find(text.substr(a.start, size));
    if (it != tokens.end()) heap.push({scores[static_cast<size_t>(it->second)], left, size});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int64_t>(i));
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = symbols[static_cast<size_t>(c.left)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (left.size + right.size != c.size) continue;
    left.size = c.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = c.left;
    consider(left.prev);
    consider(c.left);
  }
  for (int64_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    parts->push_back(text.substr(symbols[static_cast<size_t>(i)].start, symbols[static_cast<size_t>(i)].size));
  }
}

}  // namespace farsight
