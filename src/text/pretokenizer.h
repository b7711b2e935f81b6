// Splits text into the pieces that byte-pair merges never cross. Each rule is the hand-written form of a regular
// expression that models name in their tokenizer; a model with an unknown rule is refused, never guessed.
#ifndef FARSIGHT_TEXT_PRETOKENIZER_H_
#define FARSIGHT_TEXT_PRETOKENIZER_H_

#include <optional>
#include <string_view>
#include <vector>

namespace farsight {

enum class PreTokenizer {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // every \p{N} on its own, then kGpt2 between them
  kSmolLm,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  // kLlama3 with \p{N} for \p{N}{1,3}
  kQwen2,
};

// From a GGUF `tokenizer.ggml.pre` name.
std::optional<PreTokenizer> PreTokenizerByName(std::string_view name);
// From the regular expression of a tokenizer.json Split.
std::optional<PreTokenizer> PreTokenizerByPattern(std::string_view pattern);
const char* PreTokenizerName(PreTokenizer p);

// Appends the pieces of `text` in order; together they are all of it. Bytes that are not UTF-8 count as characters that
// are neither letter, number nor space.
void SplitText(PreTokenizer rule, std::string_view text, std::vector<std::string_view>* pieces);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_PRETOKENIZER_H_
