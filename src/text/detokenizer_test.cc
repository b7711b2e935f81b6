#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace farsight {
namespace {

using Spec = Tokenizer::Spec;

// A byte-level vocabulary of all 256 bytes and `more`.
std::unique_ptr<Tokenizer> Bytes(const std::vector<std::string>& more) {
  Spec spec;
  for (int b = 0; b < 256; ++b) spec.tokens.emplace_back(1, static_cast<char>(b));
  spec.tokens.insert(spec.tokens.end(), more.begin(), more.end());
  spec.types.assign(spec.tokens.size(), Spec::TokenType::kNormal);
  auto t = Tokenizer::Build(std::move(spec));
  EXPECT_TRUE(t.ok()) << t.status().message();
  return std::move(*t);
}

TEST(Detokenizer, HoldsHalfCharactersOnly) {
  const auto t = Bytes({"\xf0\x9f", "\x98\x8a", "\xe4", "\xbd\xa0", "x\xc3", "\xa9y"});
  Detokenizer d(*t);
  EXPECT_EQ(d.Push(256), "");
  EXPECT_EQ(d.Push(257), "\xf0\x9f\x98\x8a");
  EXPECT_EQ(d.Push(258), "");
  EXPECT_EQ(d.Push(259), "\xe4\xbd\xa0");
  EXPECT_EQ(d.Push(260), "x");  // a whole character and half of the next
  EXPECT_EQ(d.Push(261), "\xc3\xa9y");
  EXPECT_EQ(d.Flush(), "");
}

TEST(Detokenizer, ReplacesWhatCanNeverBecomeACharacter) {
  const auto t = Bytes({});
  const auto stream = [&](std::string_view bytes) {
    Detokenizer d(*t);
    std::string out;
    for (const char c : bytes) out += d.Push(static_cast<uint8_t>(c));
    return out + "|" + d.Flush();
  };
  EXPECT_EQ(stream("\xff"), "\ufffd|");
  EXPECT_EQ(stream("\xc0\x80"), "\ufffd\ufffd|");
  EXPECT_EQ(stream("\xed\xa0\x80"), "\ufffd\ufffd\ufffd|");  // a surrogate
  EXPECT_EQ(stream("a\x80z"), "a\ufffdz|");
  EXPECT_EQ(stream("\xf0\x9fz"), "\ufffdz|");
  EXPECT_EQ(stream("ab\xe4\xbd"), "ab|\ufffd");
  EXPECT_EQ(stream("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd|");
}

TEST(Detokenizer, StreamEqualsTheWhole) {
  const auto t = Bytes({"\xf0\x9f", "\x98", "\xe2\x82", "\xed\xa0", "\xc3\xa9"});
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    Detokenizer d(*t);
    std::vector<int32_t> ids;
    std::string out;
    for (int i = 0; i < 12; ++i) {
      const auto id = static_cast<int32_t>(rng() % 2 == 0 ? 256 + rng() % 5 : 0x70 + rng() % 0x90);
      ids.push_back(id);
      const std::string piece = d.Push(id);
      EXPECT_EQ(piece, ReplaceInvalidUtf8(piece));
      out += piece;
    }
    out += d.Flush();
    ASSERT_EQ(out, ReplaceInvalidUtf8(t->Decode(ids, true)));
  }
}

std::string RunStops(const std::vector<std::string>& stops, const std::vector<std::string>& parts, bool* matched) {
  StopMatcher m(stops);
  std::string out;
  for (const auto& p : parts) out += m.Push(p);
  *matched = m.matched();
  return out + m.Flush();
}

TEST(StopMatcher, MatchesOverTheEdgesOfTokens) {
  bool matched = false;
  EXPECT_EQ(RunStops({"O P Q"}, {"A", " B", " O", " P", " Q", " R"}, &matched), "A B ");
  EXPECT_TRUE(matched);
  EXPECT_EQ(RunStops({"lo wo"}, {"hel", "lo w", "orld"}, &matched), "hel");
  EXPECT_TRUE(matched);
  EXPECT_EQ(RunStops({"xyz", "\n\n"}, {"a\n", "b\n", "\nc"}, &matched), "a\nb");
  EXPECT_TRUE(matched);
  EXPECT_EQ(RunStops({"aab"}, {"a", "a", "a", "b"}, &matched), "a");  // overlaps itself
  EXPECT_TRUE(matched);
  EXPECT_EQ(RunStops({"stop", ""}, {"sto", "re"}, &matched), "store");
  EXPECT_FALSE(matched);
  EXPECT_EQ(RunStops({"never"}, {"nev"}, &matched), "nev");  // given out at the end
  EXPECT_FALSE(matched);
}

TEST(StopMatcher, GivesOutWhatCannotMatchAtOnce) {
  StopMatcher m({"END"});
  EXPECT_EQ(m.Push("abc"), "abc");
  EXPECT_EQ(m.Push("xE"), "x");
  EXPECT_EQ(m.Push("N"), "");
  EXPECT_EQ(m.Push("E"), "EN");
  EXPECT_EQ(m.Push("ND!"), "");
  EXPECT_TRUE(m.matched());
  EXPECT_EQ(m.Push("more"), "");
  EXPECT_EQ(m.Flush(), "");
}

TEST(StopMatcher, NeverCutsACharacter) {
  bool matched = false;
  EXPECT_EQ(RunStops({"\xf0"}, {"a\xf0\x9f\x98\x8a"}, &matched), "a");
  EXPECT_TRUE(matched);
  EXPECT_EQ(RunStops({"\x98"}, {"a\xf0\x9f\x98\x8a"}, &matched), "a");  // from the middle of one
  EXPECT_TRUE(matched);
  StopMatcher m({"\x8a!"});
  EXPECT_EQ(m.Push("b\xf0\x9f\x98\x8a"), "b");
  EXPECT_EQ(m.Push("?"), "\xf0\x9f\x98\x8a?");
}

// Against the plain definition: the match that ends first, the longest of those; any cut of the text gives the same.
TEST(StopMatcher, EqualsASearchOfTheWholeForAnyCut) {
  std::mt19937 rng(11);
  const auto text = [&](size_t n) {
    std::string s;
    for (size_t i = 0; i < n; ++i) s.push_back("ab"[rng() % 2]);
    return s;
  };
  int matches = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = rng() % 3 + 1; i > 0; --i) stops.push_back(text(rng() % 6 + 1));
    const std::string whole = text(rng() % 20);
    std::string want = whole;
    bool found = false;
    for (size_t end = 1; end <= whole.size() && !found; ++end) {
      for (const auto& s : stops) {
        if (!std::string_view(whole).substr(0, end).ends_with(s)) continue;
        if (!found || end - s.size() < want.size()) want = whole.substr(0, end - s.size());
        found = true;
      }
    }
    std::vector<std::string> parts;
    for (size_t i = 0; i < whole.size();) {
      const size_t n = rng() % 4 + 1;
      parts.push_back(whole.substr(i, n));
      i += n;
    }
    bool matched = false;
    ASSERT_EQ(RunStops(stops, parts, &matched), want) << whole;
    ASSERT_EQ(matched, found);
    matches += found;
  }
  EXPECT_GT(matches, 1000);
}

}  // namespace
}  // namespace farsight
