#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

namespace farsight {
namespace {

#include "text/unicode_tables.inc"

uint8_t ByteAt(std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); }

// Length announced by a first byte, 0 for one that starts nothing.
size_t SequenceLength(uint8_t b) {
  if (b < 0x80) return 1;
  if (b >= 0xc2 && b <= 0xdf) return 2;
  if (b >= 0xe0 && b <= 0xef) return 3;
  if (b >= 0xf0 && b <= 0xf4) return 4;
  return 0;
}

// Is b allowed as byte `i` (1..3) of a sequence that starts with `first`? Excludes overlong forms and surrogates.
bool Continues(uint8_t first, size_t i, uint8_t b) {
  if (b < 0x80 || b > 0xbf) return false;
  if (i != 1) return true;
  switch (first) {
    case 0xe0:
      return b >= 0xa0;
    case 0xed:
      return b <= 0x9f;
    case 0xf0:
      return b >= 0x90;
    case 0xf4:
      return b <= 0x8f;
    default:
      return true;
  }
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t at) {
  const uint8_t first = ByteAt(text, at);
  if (first < 0x80) return {first, 1, true};
  const size_t n = SequenceLength(first);
  if (n == 0 || n > text.size() - at) return {first, 1, false};
  uint32_t code = first & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    const uint8_t b = ByteAt(text, at + i);
    if (!Continues(first, i, b)) return {first, 1, false};
    code = code << 6 | (b & 0x3fu);
  }
  return {code, static_cast<uint8_t>(n), true};
}

void AppendUtf8(uint32_t c, std::string* out) {
  const auto put = [out](uint32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

size_t IncompleteTail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t start = text.size() - back;
    const uint8_t first = ByteAt(text, start);
    if (first >= 0x80 && first <= 0xbf) continue;  // a continuation byte: look further back
    if (SequenceLength(first) <= back) return 0;
    for (size_t i = 1; i < back; ++i) {
      if (!Continues(first, i, ByteAt(text, start + i))) return 0;
    }
    return back;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (c.valid) {
      out.append(text.substr(i, c.size));
      i += c.size;
      continue;
    }
    out.append("\xef\xbf\xbd");
    const uint8_t first = ByteAt(text, i);
    size_t n = 1;
    while (n < SequenceLength(first) && i + n < text.size() && Continues(first, n, ByteAt(text, i + n))) ++n;
    i += n;
  }
  return out;
}

CharClass ClassOf(uint32_t code) {
  if (code > 0x10ffff) return CharClass::kOther;
  const size_t page = kClassIndex[code >> 8];
  const uint32_t four = kClassPages[page * 64 + (code >> 2 & 63u)];
  return static_cast<CharClass>(four >> (2 * (code & 3u)) & 3u);
}

std::string NormaliseNfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; })) {
    return std::string(text);
  }
  std::string out;
  const auto compose = [&out](std::string_view part) {
    utf8proc_uint8_t* composed = nullptr;
    const auto n =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                     &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (n < 0) {
      out.append(part);
    } else {
      out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(n));
      std::free(composed);  // NOLINT: utf8proc allocates with malloc
    }
  };
  size_t start = 0;  // of the current well-formed part
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!c.valid) {
      if (i > start) compose(text.substr(start, i - start));
      out.push_back(text[i]);
      start = i + 1;
    }
    i += c.size;
  }
  if (start < text.size()) compose(text.substr(start));
  return out;
}

}  // namespace farsight
