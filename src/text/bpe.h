// Byte-pair merges over one piece of text: byte-level BPE by merge rank, SentencePiece-type BPE by token score.
#ifndef FARSIGHT_TEXT_BPE_H_
#define FARSIGHT_TEXT_BPE_H_

#include <cstdint>
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
using MergeMap = std::unordered_map<uint64_t, Merge>;
inline uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Merges `tokens` in place until no neighbouring pair is in the map. n log n in the number of tokens.
void ApplyMerges(const MergeMap& merges, std::vector<int32_t>* tokens);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_BPE_H_
