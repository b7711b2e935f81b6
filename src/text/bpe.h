// Byte-pair merges over one piece of text: by the rank of a pair (byte-level vocabularies, tokenizer.json), or by the
// score of the token that a pair forms (SentencePiece models).
#ifndef FARSIGHT_TEXT_BPE_H_
#define FARSIGHT_TEXT_BPE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace farsight {

// Text to id, without a copy at lookup.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using TokenMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// A merge of two neighbouring tokens: lower `rank` first, the leftmost first among equals.
struct Merge {
  int64_t rank = 0;
  int32_t token = -1;
};

// The merges by their pair of tokens: open addressing, at most half full.
class MergeMap {
 public:
  void Reserve(size_t n);                                 // once, before any Insert; n is the most that will come
  void Insert(int32_t left, int32_t right, Merge merge);  // the first of equal pairs stays
  const Merge* Find(int32_t left, int32_t right) const;   // nullptr when the pair does not merge

 private:
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};  // no pair of ids, which are not negative
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t Start(uint64_t key) const { return static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> shift_); }

  std::vector<Slot> slots_;
  int shift_ = 63;
};

// Merges `tokens` in place until no neighbouring pair is in the map. n log n in the number of tokens.
void ApplyMerges(const MergeMap& merges, std::vector<int32_t>* tokens);

// Merges the characters of `text` into tokens of the map, the pair with the highest score first, the leftmost first
// among equals. Gives the parts in order, together all of `text`; a part that is no token is one character.
void MergeByScore(std::string_view text, const TokenMap& tokens, std::span<const float> scores,
                  std::vector<std::string_view>* parts);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_BPE_H_
