#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode.h"

namespace farsight {
namespace {

// The class at a place, or the end of the text.
enum Class : uint8_t { kOther, kLetter, kNumber, kSpace, kEnd };
static_assert(kLetter == static_cast<uint8_t>(CharClass::kLetter) && kSpace == static_cast<uint8_t>(CharClass::kSpace));

struct AsciiClasses {
  Class of[128] = {};
  constexpr AsciiClasses() {
    for (int c = 'a'; c <= 'z'; ++c) of[c] = of[c - 32] = kLetter;
    for (int c = '0'; c <= '9'; ++c) of[c] = kNumber;
    for (int c = 9; c <= 13; ++c) of[c] = kSpace;
    of[static_cast<int>(' ')] = kSpace;
  }
};
constexpr AsciiClasses kAscii;

struct Cursor {
  std::string_view text;

  Class At(size_t i, size_t* size = nullptr) const {
    if (i >= text.size()) return kEnd;
    if (const auto byte = static_cast<uint8_t>(text[i]); byte < 128) {
      if (size != nullptr) *size = 1;
      return kAscii.of[byte];
    }
    const Utf8Char c = DecodeUtf8(text, i);
    if (size != nullptr) *size = c.size;
    return c.valid ? static_cast<Class>(ClassOf(c.code)) : kOther;
  }
  // End of the run of class `wanted` that starts at i, of at most `limit` characters.
  size_t RunEnd(size_t i, Class wanted, int limit = -1) const {
    size_t size = 1;
    while (limit != 0 && At(i, &size) == wanted) {
      i += size;
      if (limit > 0) --limit;
    }
    return i;
  }
  bool NewlineAt(size_t i) const { return i < text.size() && (text[i] == '\n' || text[i] == '\r'); }
};

// Length of an English contraction at i ("'s", "'re", ...), or 0.
size_t Contraction(std::string_view t, size_t i, bool ignore_case) {
  if (t[i] != '\'') return 0;
  const auto letter = [&](size_t at) -> char {
    if (at >= t.size()) return 0;
    const char c = t[at];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = letter(i + 1);
  const char b = letter(i + 2);
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  // Without regard to case the long s (U+017F) is an s.
  if (ignore_case && t.substr(i + 1, 2) == "\xc5\xbf") return 3;
  return 0;
}

// \s+(?!\S)|\s+ : a run of spaces before something else leaves its last character to what follows.
size_t SpacesEnd(const Cursor& c, size_t i) {
  const size_t end = c.RunEnd(i, kSpace);
  if (end == c.text.size()) return end;
  size_t last = i;
  for (size_t at = i; at < end;) {
    last = at;
    at += DecodeUtf8(c.text, at).size;
  }
  return last > i ? last : end;
}

size_t NextGpt2(const Cursor& c, size_t i) {
  if (const size_t n = Contraction(c.text, i, false); n > 0) return i + n;
  const size_t start = c.text[i] == ' ' ? i + 1 : i;
  const Class cls = c.At(start);
  if (cls == kLetter || cls == kNumber || cls == kOther) return c.RunEnd(start, cls);
  return SpacesEnd(c, i);
}

size_t NextLlama3(const Cursor& c, size_t i, int digits) {
  if (const size_t n = Contraction(c.text, i, true); n > 0) return i + n;
  size_t size = 1;
  const Class cls = c.At(i, &size);
  if (cls == kLetter) return c.RunEnd(i, kLetter);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (cls != kNumber && !c.NewlineAt(i) && c.At(i + size) == kLetter) return c.RunEnd(i + size, kLetter);
  if (cls == kNumber) return c.RunEnd(i, kNumber, digits);
  // " ?[^\s\p{L}\p{N}]+[\r\n]*"
  const size_t start = c.text[i] == ' ' ? i + 1 : i;
  if (c.At(start) == kOther) {
    size_t end = c.RunEnd(start, kOther);
    while (c.NewlineAt(end)) ++end;
    return end;
  }
  // \s*[\r\n]+ : up to the last newline of the run of spaces
  const size_t end = c.RunEnd(i, kSpace);
  for (size_t at = end; at > i; --at) {
    if (c.NewlineAt(at - 1)) return at;
  }
  return SpacesEnd(c, i);
}

void SplitWith(PreTokenizer rule, std::string_view text, std::vector<std::string_view>* pieces) {
  const Cursor c{text};
  for (size_t i = 0; i < text.size();) {
    const size_t end = rule == PreTokenizer::kGpt2     ? NextGpt2(c, i)
                       : rule == PreTokenizer::kLlama3 ? NextLlama3(c, i, 3)
                                                       : NextLlama3(c, i, 1);
    pieces->push_back(text.substr(i, end - i));
    i = end;
  }
}

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::optional<PreTokenizer> PreTokenizerByName(std::string_view name) {
  if (name == "gpt-2" || name == "gpt2") return PreTokenizer::kGpt2;
  if (name == "smollm") return PreTokenizer::kSmolLm;
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") return PreTokenizer::kLlama3;
  if (name == "qwen2" || name == "deepseek-r1-qwen") return PreTokenizer::kQwen2;
  return std::nullopt;
}

std::optional<PreTokenizer> PreTokenizerByPattern(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return PreTokenizer::kGpt2;
  if (pattern == kLlama3Pattern) return PreTokenizer::kLlama3;
  if (pattern == kQwen2Pattern) return PreTokenizer::kQwen2;
  return std::nullopt;
}

const char* PreTokenizerName(PreTokenizer p) {
  switch (p) {
    case PreTokenizer::kGpt2:
      return "gpt-2";
    case PreTokenizer::kSmolLm:
      return "smollm";
    case PreTokenizer::kLlama3:
      return "llama-bpe";
    case PreTokenizer::kQwen2:
      return "qwen2";
  }
  return "?";
}

void SplitText(PreTokenizer rule, std::string_view text, std::vector<std::string_view>* pieces) {
  if (rule != PreTokenizer::kSmolLm) {
    SplitWith(rule, text, pieces);
    return;
  }
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (c.valid && ClassOf(c.code) == CharClass::kNumber) {
      SplitWith(PreTokenizer::kGpt2, text.substr(start, i - start), pieces);
      pieces->push_back(text.substr(i, c.size));
      start = i + c.size;
    }
    i += c.size;
  }
  SplitWith(PreTokenizer::kGpt2, text.substr(start), pieces);
}

}  // namespace farsight
