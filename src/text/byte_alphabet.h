// Byte-level vocabularies write each byte as one printable character.
#ifndef FARSIGHT_TEXT_BYTE_ALPHABET_H_
#define FARSIGHT_TEXT_BYTE_ALPHABET_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace farsight {

// The printable Latin-1 characters stand for themselves, the other bytes are U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet();
  // Raw bytes of a token; characters outside the alphabet stay as they are (control tokens are written plainly).
  std::string ToBytes(std::string_view token) const;

 private:
  std::array<int16_t, 512> byte_of_;  // by code point; -1: not in the alphabet
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_BYTE_ALPHABET_H_
