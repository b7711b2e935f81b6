#include "spec/suffix_index.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace farsight {
namespace {
// Shorter contexts that a fork asks for more alternatives, beyond the longest that has any.
constexpr int kMaxBackoffs = 3;
}  // namespace

SuffixIndex::SuffixIndex(const SuffixOptions& options) : options_(options), automaton_(options.journal) {}

int64_t SuffixIndex::WindowStart(int64_t length) const {
  const int64_t half = options_.max_tokens / 2;
  const int64_t over = length - options_.max_tokens;
  return over <= 0 ? 0 : (over + half - 1) / half * half;
}

void SuffixIndex::Reindex() {
  start_ = WindowStart(size());
  automaton_ = SuffixAutomaton(options_.journal);
  for (auto at = text_.begin() + start_; at != text_.end(); ++at) automaton_.Append(*at);
}

void SuffixIndex::Append(std::span<const int32_t> tokens) {
  text_.reserve(text_.size() + tokens.size());
  for (int32_t token : tokens) {
    text_.push_back(token);
    if (WindowStart(size()) == start_) {
      automaton_.Append(token);
    } else {
      Reindex();
    }
  }
}

void SuffixIndex::Truncate(int64_t length) {
  FS_CHECK(length >= 0 && length <= size(), "a text is cut to a length it has");
  const bool step_back = WindowStart(length) == start_;
  while (step_back && size() > length && automaton_.CanUndo()) {
    automaton_.Undo();
    text_.pop_back();
  }
  if (size() == length) return;
  text_.resize(static_cast<size_t>(length));
  Reindex();
}

int SuffixIndex::match_length() const {
  const int32_t link = automaton_.link(automaton_.last());
  return link <= 0 ? 0 : automaton_.length(link);
}

// What a prediction by partial matching gives (escape method C): of N occurrences with k distinct next tokens each gets
// its count out of N + k, and the rest goes to the next shorter context.
double SuffixIndex::Blend(const Context& context, double mass, Branches* out) const {
  struct Seen {
    int32_t token, state, count, end;
  };
  std::vector<Seen> seen;
  automaton_.ForEachNext(context.state, [&](int32_t token, int32_t state) {
    seen.push_back({token, state, automaton_.count(state), automaton_.latest_end(state)});
  });
  const bool recent = options_.continuation == Continuation::kMostRecent;
  std::sort(seen.begin(), seen.end(), [&](const Seen& a, const Seen& b) {
    return !recent && a.count != b.count ? a.count > b.count : a.end > b.end;
  });
  double total = static_cast<double>(seen.size());
  for (const Seen& s : seen) total += s.count;
  const double escape = mass * static_cast<double>(seen.size()) / total;
  double left = mass - escape;  // by recency each gets half of what those after it leave
  for (const Seen& s : seen) {
    const double share = recent ? left / 2 : mass * s.count / total;
    if (recent) left /= 2;
    auto at = std::find_if(out->begin(), out->end(), [&](const Branch<Context>& b) { return b.token == s.token; });
    if (at == out->end()) at = out->insert(at, {s.token, 0, {s.state, context.length + 1}});
    at->share += share;
  }
  return escape;
}

void SuffixIndex::Expand(const Context& from, int width, Branches* out) const {
  double mass = 1;
  Context context = from;
  for (int backoffs = 0; context.state > 0 && context.length >= options_.min_match;) {
    if (automaton_.HasNext(context.state)) {
      mass = Blend(context, mass, out);
      // A chain follows the longest context alone; its share is that of the occurrences, with none kept for a surprise.
      if (width == 1 || ++backoffs > kMaxBackoffs) break;
    }
    context.state = automaton_.link(context.state);
    context.length = context.state < 0 ? 0 : automaton_.length(context.state);
  }
  if (width == 1 && !out->empty() && mass < 1) {
    for (Branch<Context>& b : *out) b.share = std::min(1.0, b.share / (1 - mass));
  }
  std::stable_sort(out->begin(), out->end(),
                   [](const Branch<Context>& a, const Branch<Context>& b) { return a.share > b.share; });
  if (out->size() > static_cast<size_t>(width)) out->resize(static_cast<size_t>(width));
}

TokenTree SuffixIndex::Propose(const TreeShape& shape, int max_nodes) const {
  FS_CHECK(!text_.empty(), "a draft needs a root");
  const int match = match_length();
  if (match < options_.min_match) max_nodes = 0;
  TreeShape cut = shape;
  const double depth = options_.depth_per_match * match + options_.depth_offset;
  if (depth < static_cast<double>(cut.widths.size())) cut.widths.resize(static_cast<size_t>(std::max(depth, 0.0)));
  const Context longest{automaton_.link(automaton_.last()), match};
  return GrowTree(text_.back(), longest, cut, max_nodes, options_.min_probability,
                  [this](const Context& from, int width, Branches* out) { Expand(from, width, out); });
}

}  // namespace farsight
