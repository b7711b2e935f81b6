// The little Unicode that tokenisers need: decoding, three character classes, NFC.
#ifndef FARSIGHT_TEXT_UNICODE_H_
#define FARSIGHT_TEXT_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace farsight {

// One decoded character. A byte that starts no well-formed sequence is a character of its own: valid is false, size 1.
struct Utf8Char {
  uint32_t code = 0;
  uint8_t size = 1;
  bool valid = true;
};
Utf8Char DecodeUtf8(std::string_view text, size_t at);  // at < text.size()
void AppendUtf8(uint32_t code, std::string* out);

// Bytes at the end of `text` that could still become a character with more bytes: 0 to 3.
size_t IncompleteTail(std::string_view text);
// A copy in which what is not well-formed became U+FFFD: one for each longest beginning of a character that breaks off,
// one for each other byte, as the Unicode Standard recommends.
std::string ReplaceInvalidUtf8(std::string_view text);

// By the data of Unicode 16.0, the version that the reference tokenisers use.
enum class CharClass : uint8_t {
  kOther,
  kLetter,  // \p{L}
  kNumber,  // \p{N}
  kSpace,   // White_Space
};
CharClass ClassOf(uint32_t code);  // kOther above U+10FFFF

// Canonical composition; malformed bytes stay as they are.
std::string NormaliseNfc(std::string_view text);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_UNICODE_H_
