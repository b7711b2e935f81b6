#include "text/jinja_text.h"

#include <utf8proc.h>

namespace farsight::jinja {
namespace {

Str CasedFrom(const Str& s, size_t begin, size_t end, Case to) {
  Str out;
  for (size_t i = begin; i < end;) {
    const Character c = CharacterAt(s.text, i);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    utf8proc_uint8_t bytes[4];
    const bool single = c.bytes == 1 && c.code >= 0x80;  // a stray byte
    const utf8proc_int32_t other = single ? code : to == Case::kUpper ? utf8proc_toupper(code) : utf8proc_tolower(code);
    if (other == code) {
      out.Append(s.Sub(i, c.bytes));
    } else {
      const auto n = utf8proc_encode_char(other, bytes);
      out.Append(std::string_view(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n)), s.user[i] != 0);
    }
    i += c.bytes;
  }
  return out;
}

bool IsLetter(uint32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

Character CharacterAt(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<unsigned char>(text[k])); };
  const uint32_t first = byte(i);
  const size_t n = first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 1;
  if (n == 1 || i + n > text.size()) return {first, 1};
  uint32_t code = first & (0xFFu >> (n + 1));
  for (size_t k = 1; k < n; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return {first, 1};
    code = code << 6 | (byte(i + k) & 0x3F);
  }
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && (code < 0x10000 || code > 0x10FFFF));
  if (overlong || (code >= 0xD800 && code <= 0xDFFF)) return {first, 1};
  return {code, n};
}

std::vector<size_t> CharacterStarts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += CharacterAt(text, i).bytes) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

bool IsPythonSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

Str Cased(const Str& s, Case to) { return CasedFrom(s, 0, s.size(), to); }

Str Capitalised(const Str& s) {
  if (s.size() == 0) return s;
  const size_t first = CharacterAt(s.text, 0).bytes;
  Str out = CasedFrom(s, 0, first, Case::kUpper);
  out.Append(CasedFrom(s, first, s.size(), Case::kLower));
  return out;
}

Str Titled(const Str& s) {
  Str out;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    const Character c = CharacterAt(s.text, i);
    out.Append(CasedFrom(s, i, i + c.bytes, inside ? Case::kLower : Case::kUpper));
    inside = IsLetter(c.code);
    i += c.bytes;
  }
  return out;
}

}  // namespace farsight::jinja
