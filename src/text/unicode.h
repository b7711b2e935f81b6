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
// A copy in which every byte outside a well-formed sequence became U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

bool IsLetter(uint32_t code);      // \p{L}
bool IsNumber(uint32_t code);      // \p{N}
bool IsWhitespace(uint32_t code);  // White_Space

// Canonical composition; malformed bytes stay as they are.
std::string NormaliseNfc(std::string_view text);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_UNICODE_H_
