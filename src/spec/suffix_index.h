// The text of one sequence with a suffix automaton over its recent part, and the drafts it gives.
#ifndef FARSIGHT_SPEC_SUFFIX_INDEX_H_
#define FARSIGHT_SPEC_SUFFIX_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "spec/drafter.h"
#include "spec/grow.h"
#include "spec/suffix_automaton.h"

namespace farsight {

class SuffixIndex {
 public:
  explicit SuffixIndex(const SuffixOptions& options);

  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  int32_t back() const { return text_.back(); }
  void Append(std::span<const int32_t> tokens);
  void Truncate(int64_t length);
  // Tokens of the longest suffix of the indexed text that occurred in it before.
  int match_length() const;
  const SuffixAutomaton& automaton() const { return automaton_; }

  // A tree whose root is the last token. The text must not be empty.
  TokenTree Propose(const TreeShape& shape, int max_nodes) const;

 private:
  // The last `length` tokens of the text and the draft, a string of `state`.
  struct Context {
    int32_t state = 0;
    int32_t length = 0;
  };
  using Branches = std::vector<Branch<Context>>;

  // Where the index of a text of `length` tokens begins: a function of the length alone, so that a text that was cut
  // back drafts as one that never was longer.
  int64_t WindowStart(int64_t length) const;
  void Reindex();
  void Expand(const Context& from, int width, Branches* out) const;
  // Adds what followed `context` with `mass` of the probability shared by weight; returns what a new token would get.
  double Blend(const Context& context, double mass, Branches* out) const;

  SuffixOptions options_;
  std::vector<int32_t> text_;
  int64_t start_ = 0;  // text_[start_] is the first indexed token
  SuffixAutomaton automaton_;
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_SUFFIX_INDEX_H_
