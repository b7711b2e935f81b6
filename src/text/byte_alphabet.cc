#include "text/byte_alphabet.h"

#include "text/unicode.h"

namespace farsight {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  size_t next = 0x100;
  for (size_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    byte_of_[printable ? b : next++] = static_cast<int16_t>(b);
  }
}

std::string ByteAlphabet::ToBytes(std::string_view token) const {
  std::string out;
  out.reserve(token.size());
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = DecodeUtf8(token, i);
    if (c.valid && c.code < byte_of_.size() && byte_of_[c.code] >= 0) {
      out.push_back(static_cast<char>(byte_of_[c.code]));
    } else {
      out.append(token.substr(i, c.size));
    }
    i += c.size;
  }
  return out;
}

}  // namespace farsight
