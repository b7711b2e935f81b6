// Earlier places of the last few tokens of a text that grows and shrinks at its end.
#ifndef FARSIGHT_SPEC_NGRAM_INDEX_H_
#define FARSIGHT_SPEC_NGRAM_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "spec/drafter.h"

namespace farsight {

// For every length m from min_match to max_match a table of buckets, each the head of a list through the positions
// whose last m tokens hash there, latest first. Positions enter in order and leave in the reverse order, so taking one
// back restores the table exactly. A hash that lies costs a comparison, never a wrong match.
class NgramIndex {
 public:
  explicit NgramIndex(const NgramOptions& options);

  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  int32_t back() const { return text_.back(); }
  void Append(std::span<const int32_t> tokens);
  void Truncate(int64_t length);

  // An earlier place: text[next] followed it.
  struct Match {
    int32_t next = 0;
    int length = 0;  // tokens looked up, not those that would agree beyond max_match
  };
  // Up to options.max_matches places, longest first, then latest first. Only those of the greatest length that has any,
  // unless `shorter`, which fills up with places that only a shorter context shares.
  std::vector<Match> Find(bool shorter) const;

  // Tokens that the latest such place has in common with the end of the text, at most kLongestMatch; 0: there is none.
  static constexpr int kLongestMatch = 64;
  int match_length() const;

  // A tree whose root is the last token. The text must not be empty.
  TokenTree Propose(const TreeShape& shape, int max_nodes) const;

 private:
  struct Table {
    std::vector<int32_t> heads;     // [power of two], -1: empty
    std::vector<int32_t> previous;  // [positions]: the one before in the same bucket, or -1
  };
  size_t Bucket(int m, int32_t end, const Table& table) const;
  void Link(int m, int32_t end, Table* table);
  void Insert(int32_t end);
  void Rehash(int m, Table* table);

  NgramOptions options_;
  std::vector<int32_t> text_;
  std::vector<Table> tables_;  // [max_match - min_match + 1]
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_NGRAM_INDEX_H_
