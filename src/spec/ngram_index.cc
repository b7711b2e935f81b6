#include "spec/ngram_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "spec/grow.h"

namespace farsight {
namespace {

constexpr size_t kFirstBuckets = 64;

// One place in the text that a node of the draft follows. A text that repeats itself with a period runs on beyond its
// end, so the place wraps.
struct Follower {
  int32_t start = 0;   // position of the first token that followed the match
  int32_t offset = 0;  // tokens drafted since
  double weight = 0;
};
using Followers = std::vector<Follower>;

// Groups by the next token. Within a group and among groups of one weight the earlier follower comes first.
void Expand(std::span<const int32_t> text, const Followers& from, int width, std::vector<Branch<Followers>>* out) {
  double total = 0;
  for (const Follower& f : from) {
    const auto period = static_cast<int32_t>(text.size()) - f.start;
    const int32_t token = text[static_cast<size_t>(f.start + f.offset % period)];
    auto at = std::find_if(out->begin(), out->end(), [&](const Branch<Followers>& b) { return b.token == token; });
    if (at == out->end()) at = out->insert(at, Branch<Followers>{token, 0, {}});
    at->share += f.weight;
    at->state.push_back({f.start, f.offset + 1, f.weight});
    total += f.weight;
  }
  for (Branch<Followers>& b : *out) b.share /= total;
  std::stable_sort(out->begin(), out->end(),
                   [](const Branch<Followers>& a, const Branch<Followers>& b) { return a.share > b.share; });
  if (out->size() > static_cast<size_t>(width)) out->resize(static_cast<size_t>(width));
}

}  // namespace

NgramIndex::NgramIndex(const NgramOptions& options)
    : options_(options), tables_(static_cast<size_t>(options.max_match - options.min_match + 1)) {
  for (Table& table : tables_) table.heads.assign(kFirstBuckets, -1);
}

size_t NgramIndex::Bucket(int m, int32_t end, const Table& table) const {
  uint64_t h = static_cast<uint64_t>(m);
  for (int i = 0; i < m; ++i) {
    h = (h ^ static_cast<uint32_t>(text_[static_cast<size_t>(end - i)])) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
  }
  return static_cast<size_t>(h ^ h >> 32) & (table.heads.size() - 1);
}

void NgramIndex::Link(int m, int32_t end, Table* table) {
  int32_t previous = -1;
  if (end + 1 >= m) previous = std::exchange(table->heads[Bucket(m, end, *table)], end);
  table->previous.push_back(previous);
}

void NgramIndex::Rehash(int m, Table* table) {
  const auto count = static_cast<int32_t>(table->previous.size());
  table->heads.assign(table->heads.size() * 2, -1);
  table->previous.clear();
  for (int32_t end = 0; end < count; ++end) Link(m, end, table);
}

void NgramIndex::Insert(int32_t end) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const int m = options_.min_match + static_cast<int>(i);
    if (tables_[i].previous.size() >= tables_[i].heads.size()) Rehash(m, &tables_[i]);
    Link(m, end, &tables_[i]);
  }
}

void NgramIndex::Append(std::span<const int32_t> tokens) {
  for (int32_t token : tokens) {
    // The context that ended at the old last token has a continuation only now.
    text_.push_back(token);
    if (text_.size() >= 2) Insert(static_cast<int32_t>(text_.size()) - 2);
  }
}

void NgramIndex::Truncate(int64_t length) {
  FS_CHECK(length >= 0 && length <= size(), "a text is cut to a length it has");
  while (size() > length) {
    if (text_.size() >= 2) {
      const auto end = static_cast<int32_t>(text_.size()) - 2;
      for (size_t i = 0; i < tables_.size(); ++i) {
        const int m = options_.min_match + static_cast<int>(i);
        if (end + 1 >= m) tables_[i].heads[Bucket(m, end, tables_[i])] = tables_[i].previous.back();
        tables_[i].previous.pop_back();
      }
    }
    text_.pop_back();
  }
}

std::vector<NgramIndex::Match> NgramIndex::Find(bool shorter) const {
  std::vector<Match> found;
  const auto limit = static_cast<size_t>(options_.max_matches);
  const auto last = static_cast<int32_t>(text_.size()) - 1;
  for (int m = options_.max_match; m >= options_.min_match && found.size() < limit; --m) {
    if (last + 1 < m) continue;
    const Table& table = tables_[static_cast<size_t>(m - options_.min_match)];
    // A text made to fill one bucket must not make every lookup walk all of it.
    int probes = options_.max_matches * 8 + 64;
    for (int32_t end = table.heads[Bucket(m, last, table)]; end >= 0 && found.size() < limit && probes-- > 0;
         end = table.previous[static_cast<size_t>(end)]) {
      const auto tail = text_.end() - m;
      if (!std::equal(tail, text_.end(), text_.begin() + (end + 1 - m))) continue;
      const bool known = std::any_of(found.begin(), found.end(), [&](const Match& x) { return x.next == end + 1; });
      if (!known) found.push_back({end + 1, m});
    }
    if (!found.empty() && !shorter) break;
  }
  return found;
}

int NgramIndex::match_length() const {
  const std::vector<Match> found = Find(false);
  if (found.empty()) return 0;
  auto at = text_.begin() + found[0].next;
  auto end = text_.end();
  int length = 0;
  while (length < kLongestMatch && at != text_.begin() && *--at == *--end) ++length;
  return length;
}

TokenTree NgramIndex::Propose(const TreeShape& shape, int max_nodes) const {
  FS_CHECK(!text_.empty(), "a draft needs a root");
  Followers followers;
  double weight = 1;
  // Halving weights: the latest place outweighs all others together. A vote counts the places of one length alike, and
  // those of a shorter context half as much for each token that it is shorter.
  for (const Match& m : Find(!shape.is_chain())) {
    const bool vote = options_.continuation == Continuation::kMostFrequent;
    if (vote) weight = 1.0 / static_cast<double>(uint64_t{1} << (options_.max_match - m.length));
    followers.push_back({m.next, 0, weight});
    if (!vote) weight /= 2;
  }
  if (followers.empty()) max_nodes = 0;
  return GrowTree(text_.back(), std::move(followers), shape, max_nodes, 0,
                  [this](const Followers& from, int width, std::vector<Branch<Followers>>* out) {
                    Expand(text_, from, width, out);
                  });
}

}  // namespace farsight
