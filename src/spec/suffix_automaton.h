// Every substring of a text, found in one step a token, while the text grows (Blumer et al., "The smallest automaton
// recognizing the subwords of a text", 1985). Beyond the textbook: occurrence counts and latest ends, and taking the
// last tokens back.
#ifndef FARSIGHT_SPEC_SUFFIX_AUTOMATON_H_
#define FARSIGHT_SPEC_SUFFIX_AUTOMATON_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace farsight {

// A state is a set of substrings with the same end positions; the longest has length(state) tokens. State 0 is the
// empty string. link(state) is the state of the longest suffix of those that occurs in more places.
//
// Memory: a text of n tokens has less than 2n states (20 bytes each) and 3n edges (16 bytes, and 8 to 16 bytes of hash
// table), plus the slack of growing vectors: at most 224 bytes a token. Time: constant a token on average, plus the
// count's walk of at most kCountedContexts links.
class SuffixAutomaton {
 public:
  // An occurrence is counted for this many of the contexts that end there, the longest first. Ordinary text has about
  // ten; only in text that repeats with a period are there more, and its shortest contexts are then counted too low.
  static constexpr int kCountedContexts = 64;

  // The last `journal` tokens can be taken back.
  explicit SuffixAutomaton(int journal);

  int32_t size() const { return size_; }
  void Append(int32_t token);
  bool CanUndo() const { return !records_.empty(); }
  // Takes the last token back: the automaton is as it was before it. CanUndo() must hold.
  void Undo();

  int32_t last() const { return last_; }  // the state of the whole text
  int32_t length(int32_t state) const { return At(state).length; }
  int32_t link(int32_t state) const { return At(state).link; }  // -1 for state 0
  // Places where the strings of `state` end; not kept for state 0.
  int32_t count(int32_t state) const { return At(state).count; }
  int32_t latest_end(int32_t state) const { return At(state).latest_end; }
  // -1: no string of `state` is followed by `token`.
  int32_t Next(int32_t state, int32_t token) const;
  bool HasNext(int32_t state) const { return At(state).first_edge >= 0; }
  // fn(token, next state) for each token that followed, the one first seen last.
  template <typename Fn>
  void ForEachNext(int32_t state, Fn&& fn) const {
    for (int32_t e = At(state).first_edge; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
      fn(edges_[static_cast<size_t>(e)].token, edges_[static_cast<size_t>(e)].target);
    }
  }

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_edges() const { return static_cast<int32_t>(edges_.size()); }
  size_t bytes() const;

 private:
  struct State {
    int32_t length = 0;
    int32_t link = -1;
    int32_t first_edge = -1;
    int32_t count = 0;
    int32_t latest_end = -1;
  };
  struct Edge {
    int32_t state, token, target, next;
  };
  // What one Append changed besides adding states and edges at the ends of their vectors.
  struct Record {
    int32_t last, num_states, num_edges;
    int32_t split;       // the state that lost its shorter strings to a copy, or -1
    int32_t redirected;  // edges in undo_ that pointed to `split`
    int32_t counted;     // latest ends in undo_, of the states on the link path of the new one
  };

  const State& At(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  State& At(int32_t state) { return states_[static_cast<size_t>(state)]; }
  Edge& EdgeAt(int32_t edge) { return edges_[static_cast<size_t>(edge)]; }
  size_t Slot(int32_t state, int32_t token) const;  // of the edge, or the empty one where it would be
  int32_t Find(int32_t state, int32_t token) const { return slots_[Slot(state, token)]; }
  void AddEdge(int32_t state, int32_t token, int32_t target);
  void PopEdge();
  void GrowSlots();
  // Where the transition from `p` already exists: the state that the new one links to, split off if need be.
  int32_t Split(int32_t p, int32_t token, Record* record);
  void CountPath(int32_t state, Record* record);
  void DropOldRecord();

  int journal_;
  int32_t size_ = 0;
  int32_t last_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> slots_;  // open addressing by (state, token): edge or -1; at most half full
  std::deque<Record> records_;
  std::deque<int32_t> undo_;
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_SUFFIX_AUTOMATON_H_
