// The hand-written matchers against a regular-expression engine over random text.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace farsight {
namespace {

class Regex {
 public:
  explicit Regex(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                          &offset, nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Regex() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Matches and what lies between them, in order.
  std::vector<std::string_view> Split(std::string_view text) const {
    std::vector<std::string_view> out;
    size_t start = 0;
    while (start < text.size()) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                                    PCRE2_NO_UTF_CHECK, match_, nullptr);
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer(match_);
      if (found < 0 || at[1] == at[0]) {
        out.push_back(text.substr(start));
        return out;
      }
      if (at[0] > start) out.push_back(text.substr(start, at[0] - start));
      out.push_back(text.substr(at[0], at[1] - at[0]));
      start = at[1];
    }
    return out;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Half of the characters are those that the rules treat in a special way, half any that both sides give one class: the
// engine's Unicode data may be older than ours.
class RandomText {
 public:
  RandomText() {
    const Regex letter("\\p{L}"), number("\\p{N}"), space("\\s");
    for (uint32_t c = 1; c < 0x30000; ++c) {
      if (c >= 0xd800 && c <= 0xdfff) continue;
      std::string s;
      AppendUtf8(c, &s);
      const auto is = [&](const Regex& r) { return Matches(r, s); };
      const CharClass theirs = is(letter)   ? CharClass::kLetter
                               : is(number) ? CharClass::kNumber
                               : is(space)  ? CharClass::kSpace
                                            : CharClass::kOther;
      // U+180E counts as a space only in the engine's \s.
      if (theirs == ClassOf(c)) {
        common_.push_back(c);
      } else {
        ++different_;
      }
    }
  }
  size_t different() const { return different_; }
  size_t common() const { return common_.size(); }
  std::string Next(std::mt19937* rng) const {
    static constexpr std::string_view kPieces[] = {
        "a",      "Z",      "s",      "'",      "'s",     "'LL",    "'\u017f", "r",      "re", " ",
        "  ",     "\n",     "\r",     "\t",     "1",      "23",     "\u0663",  "\u00bd", "!",  "-",
        "\u00e9", "\u4e2d", "\u2029", "\u00a0", "\u3000", "\u0085", "\u0301",  "\u200d"};
    std::string out;
    for (size_t n = (*rng)() % 40 + 1; n > 0; --n) {
      if ((*rng)() % 2 == 0) {
        out += kPieces[(*rng)() % std::size(kPieces)];
      } else {
        AppendUtf8(common_[(*rng)() % common_.size()], &out);
      }
    }
    return out;
  }

 private:
  static bool Matches(const Regex& r, const std::string& s) {
    // A match gives the whole character as one piece in either case, so search after a letter that is outside it.
    const std::string probe = s + "\x01" + s;
    return r.Split(probe).size() == 3;
  }
  std::vector<uint32_t> common_;
  size_t different_ = 0;
};

TEST(PreTokenizer, EqualsTheRegularExpressions) {
  const RandomText random;
  EXPECT_GT(random.common(), 180000u);
  EXPECT_LT(random.different(), 12000u);
  const Regex gpt2(kGpt2), llama3(kLlama3), qwen2(kQwen2), digit("\\p{N}");
  const struct {
    PreTokenizer rule;
    const Regex* regex;
  } rules[] = {{PreTokenizer::kGpt2, &gpt2},
               {PreTokenizer::kLlama3, &llama3},
               {PreTokenizer::kQwen2, &qwen2},
               {PreTokenizer::kSmolLm, nullptr}};
  std::mt19937 rng(7);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random.Next(&rng);
    for (const auto& [rule, regex] : rules) {
      std::vector<std::string_view> got;
      SplitText(rule, text, &got);
      std::vector<std::string_view> want;
      if (regex != nullptr) {
        want = regex->Split(text);
      } else {
        for (const std::string_view part : digit.Split(text)) {
          for (const std::string_view piece : gpt2.Split(part)) want.push_back(piece);
        }
      }
      ASSERT_EQ(got, want) << PreTokenizerName(rule) << ": " << text;
    }
  }
}

}  // namespace
}  // namespace farsight
