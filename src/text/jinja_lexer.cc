#include "text/jinja_lexer.h"

#include <charconv>
#include <utility>

namespace farsight::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

void AppendUtf8(uint32_t c, std::string* out) {
  const auto put = [&](uint32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }
}

// Line ends as one \n each, without one at the very end.
std::string Normalise(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : s_(Normalise(source)) {}

  StatusOr<std::vector<Token>> Run() {
    while (pos_ < s_.size()) FS_RETURN_IF_ERROR(Next());
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // Text up to the next tag, and that tag.
  Status Next() {
    const size_t begin = pos_;
    size_t open = s_.find('{', begin);
    while (open != std::string::npos && !IsTag(open)) open = s_.find('{', open + 1);
    if (open == std::string::npos) {
      AddText(begin, s_.size());
      return OkStatus();
    }
    const char type = s_[open + 1];
    const char sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    AddText(begin, TextEnd(begin, open, type, sign));
    MoveTo(open);
    const Position at = at_;
    MoveTo(open + 2 + (has_sign ? 1 : 0));
    if (type == '#') return Comment(at);
    const bool output = type == '{';
    tokens_.push_back({.kind = output ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, .at = at});
    return Inside(output, at);
  }

  bool IsTag(size_t open) const {
    return open + 1 < s_.size() && (s_[open + 1] == '{' || s_[open + 1] == '%' || s_[open + 1] == '#');
  }

  // Where the text before a tag ends once whitespace control has had its say.
  size_t TextEnd(size_t begin, size_t open, char type, char sign) const {
    size_t end = open;
    if (sign == '-') {
      while (end > begin && IsSpace(s_[end - 1])) --end;
    } else if (sign != '+' && type != '{') {
      while (end > begin && IsSpace(s_[end - 1]) && s_[end - 1] != '\n') --end;
      if (end > begin ? s_[end - 1] != '\n' : !line_start_) end = open;
    }
    return end;
  }

  // After a tag's closing mark, which ends at `end`: drops what whitespace control drops.
  void CloseTag(size_t end, bool minus, bool plus, bool output) {
    size_t next = end;
    if (minus) {
      while (next < s_.size() && IsSpace(s_[next])) ++next;
    } else if (!plus && !output && next < s_.size() && s_[next] == '\n') {
      ++next;
    }
    line_start_ = s_[next - 1] == '\n';
    MoveTo(next);
  }

  Status Comment(Position at) {
    const size_t close = s_.find("#}", pos_);
    if (close == std::string::npos) return ErrorAt(at, StatusCode::kDataLoss, "a comment '{#' is never closed");
    const char before = close > pos_ ? s_[close - 1] : '\0';
    CloseTag(close + 2, before == '-', before == '+', false);
    return OkStatus();
  }

  // The tokens of one tag, and its end.
  Status Inside(bool output, Position begin) {
    const std::string_view close = output ? "}}" : "%}";
    int braces = 0;
    while (true) {
      while (pos_ < s_.size() && IsSpace(s_[pos_])) MoveTo(pos_ + 1);
      if (pos_ >= s_.size()) {
        return ErrorAt(begin, StatusCode::kDataLoss,
                       std::string("a tag '") + (output ? "{{" : "{%") + "' is never closed");
      }
      const char c = s_[pos_];
      const bool sign = (c == '-' || (c == '+' && !output)) && s_.compare(pos_ + 1, 2, close) == 0;
      if (sign || (braces == 0 && s_.compare(pos_, 2, close) == 0)) {
        Add(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
        CloseTag(pos_ + 2 + (sign ? 1 : 0), sign && c == '-', sign && c == '+', output);
        return OkStatus();
      }
      if (c == '{') ++braces;
      if (c == '}') braces -= braces > 0;
      FS_RETURN_IF_ERROR(One(c));
    }
  }

  Status One(char c) {
    if (IsNameStart(c)) {
      size_t end = pos_;
      while (end < s_.size() && (IsNameStart(s_[end]) || IsDigit(s_[end]))) ++end;
      Add(Token::Kind::kName, s_.substr(pos_, end - pos_));
      MoveTo(end);
      return OkStatus();
    }
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return String(c);
    for (std::string_view op : {"**", "//", "==", "!=", "<=", ">="}) {
      if (s_.compare(pos_, 2, op) == 0) return Operator(2);
    }
    if (std::string_view("+-*/%~()[]{}.,:|=<>").find(c) != std::string_view::npos) return Operator(1);
    return ErrorAt(at_, StatusCode::kDataLoss, "unexpected byte " + std::to_string(static_cast<unsigned char>(c)));
  }

  Status Operator(size_t n) {
    Add(Token::Kind::kOperator, s_.substr(pos_, n));
    MoveTo(pos_ + n);
    return OkStatus();
  }

  Status Number() {
    size_t end = pos_;
    std::string digits;
    const auto take = [&] {
      while (end < s_.size() && (IsDigit(s_[end]) || s_[end] == '_')) {
        if (s_[end] != '_') digits += s_[end];
        ++end;
      }
    };
    const auto digit_at = [&](size_t i) { return i < s_.size() && IsDigit(s_[i]); };
    take();
    bool real = false;
    if (end < s_.size() && s_[end] == '.' && digit_at(end + 1)) {
      real = true;
      digits += s_[end++];
      take();
    }
    if (end < s_.size() && (s_[end] == 'e' || s_[end] == 'E')) {
      const size_t sign = end + 1 < s_.size() && (s_[end + 1] == '+' || s_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        real = true;
        digits += 'e';
        if (s_[end + sign] == '-') digits += '-';
        end += 1 + sign;
        take();
      }
    }
    Token t{.kind = real ? Token::Kind::kReal : Token::Kind::kInteger, .at = at_};
    const char* last = digits.data() + digits.size();
    const auto r =
        real ? std::from_chars(digits.data(), last, t.real) : std::from_chars(digits.data(), last, t.integer);
    if (r.ec != std::errc()) return ErrorAt(at_, StatusCode::kDataLoss, "the number " + digits + " is out of range");
    tokens_.push_back(std::move(t));
    MoveTo(end);
    return OkStatus();
  }

  Status String(char quote) {
    const Position begin = at_;
    std::string text;
    size_t i = pos_ + 1;
    while (i < s_.size() && s_[i] != quote) {
      if (s_[i] == '\\' && i + 1 < s_.size()) {
        i = Escape(i + 1, &text);
      } else {
        text += s_[i++];
      }
    }
    if (i >= s_.size()) return ErrorAt(begin, StatusCode::kDataLoss, "a string is never closed");
    Add(Token::Kind::kString, std::move(text));
    MoveTo(i + 1);
    return OkStatus();
  }

  // The escape whose letter is at i; returns where the text goes on. What Python does not know stays as written.
  size_t Escape(size_t i, std::string* out) const {
    const char c = s_[i];
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n";
    constexpr std::string_view kBytes = "\\'\"\a\b\f\n\r\t\v";
    const size_t k = kLetters.find(c);
    if (k != std::string_view::npos) {
      if (k < kBytes.size()) *out += kBytes[k];
      return i + 1;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (digits > 0 && i + digits < s_.size()) {
      const char* first = s_.data() + i + 1;
      const auto r = std::from_chars(first, first + digits, code, 16);
      if (r.ec == std::errc() && r.ptr == first + digits && code < 0x110000 && (code < 0xD800 || code > 0xDFFF)) {
        AppendUtf8(code, out);
        return i + 1 + digits;
      }
    }
    *out += '\\';
    *out += c;
    return i + 1;
  }

  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({.kind = kind, .at = at_, .text = std::move(text)});
  }
  void AddText(size_t begin, size_t end) {
    MoveTo(begin);
    if (end > begin) Add(Token::Kind::kText, s_.substr(begin, end - begin));
    MoveTo(end);
  }
  void MoveTo(size_t to) {
    for (; pos_ < to; ++pos_) {
      if (s_[pos_] == '\n') {
        ++at_.line;
        at_.column = 1;
      } else {
        ++at_.column;
      }
    }
  }

  const std::string s_;
  size_t pos_ = 0;
  Position at_;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

StatusOr<std::vector<Token>> Lex(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return ResourceExhausted("a chat template may have " + std::to_string(kMaxTemplateBytes) +
                             " bytes, but this one has " + std::to_string(source.size()));
  }
  return Lexer(source).Run();
}

Status ErrorAt(Position at, StatusCode code, const std::string& what) {
  return {code,
          "the chat template, line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " + what};
}

}  // namespace farsight::jinja
