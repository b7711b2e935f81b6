#include "io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Json Parsed(std::string_view text, const JsonLimits& limits = {}) {
  auto r = ParseJson(text, limits);
  EXPECT_TRUE(r.ok()) << r.status().message();
  return r.ok() ? *r : Json();
}

Status Refused(std::string_view text, const JsonLimits& limits = {}) {
  const auto r = ParseJson(text, limits);
  EXPECT_FALSE(r.ok()) << text.substr(0, 80);
  return r.status();
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const Json j = Parsed(R"( {"n":null, "t":true, "f":false, "i":-7, "u":18446744073709551615, "x":1.5e3,
                            "s":"a\"b\\\u00e9\ud83d\ude00", "a":[1,[2,[]],{}], "o":{"k":{"k":1}}} )");
  EXPECT_TRUE(j["n"].is_null());
  EXPECT_EQ(j["t"], true);
  EXPECT_EQ(j["f"], false);
  EXPECT_EQ(j["i"].get<int64_t>(), -7);
  EXPECT_EQ(j["u"].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(j["x"].get<double>(), 1500.0);
  EXPECT_EQ(j["s"].get<std::string>(), "a\"b\\\u00e9\U0001F600");
  EXPECT_EQ(j["a"].dump(), "[1,[2,[]],{}]");
  EXPECT_EQ(j["o"]["k"]["k"], 1);
  EXPECT_EQ(Parsed("3"), 3);
  EXPECT_EQ(Parsed("\"]}[{\""), "]}[{");
}

TEST(ParseJson, KeepsTheOrderOfKeys) { EXPECT_EQ(Parsed(R"({"z":1,"a":2,"m":3})").dump(), R"({"z":1,"a":2,"m":3})"); }

TEST(ParseJson, SameAsTheLibraryOnNestedText) {
  const char* text = R"([{"b":[{"c":{},"d":[null,-1,2.25]},[],"x"],"a":{"q":[[[1],[2]],{"r":"s"}]}},[{}],""])";
  EXPECT_EQ(Parsed(text), Json::parse(text));
}

TEST(ParseJson, LimitsDepthBeforeParsing) {
  JsonLimits limits;
  limits.max_depth = 3;
  EXPECT_EQ(Parsed("[[[1]]]", limits).dump(), "[[[1]]]");
  const Status s = Refused("\n[[{\"a\":[1]}]]", limits);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(s.message(), HasSubstr("deeper than 3 levels at line 2"));
  EXPECT_EQ(Refused(std::string(5'000'000, '[')).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Parsed(R"(["[[[[[[[[", "\"[[[[[", "\\"])", limits).size(), 3u);  // brackets inside strings do not count
}

TEST(ParseJson, LimitsBytesAndValues) {
  JsonLimits limits;
  limits.max_bytes = 5;
  EXPECT_EQ(Parsed("[1,2]", limits).size(), 2u);
  EXPECT_EQ(Refused("[1,2] ", limits).code(), StatusCode::kResourceExhausted);
  limits = {};
  limits.max_values = 100;
  std::string many = "[0";
  for (int i = 0; i < 98; ++i) many += ",0";
  EXPECT_EQ(Parsed(many + "]", limits).size(), 99u);
  EXPECT_EQ(Refused(many + ",0,0]", limits).code(), StatusCode::kResourceExhausted);
}

TEST(ParseJson, DuplicateKeys) {
  const Status s = Refused(R"({"x":{"a":1,"b":2,"a":3}})");
  EXPECT_EQ(s.code(), StatusCode::kDataLoss);
  EXPECT_THAT(s.message(), HasSubstr("\"a\" twice"));
  EXPECT_EQ(Parsed(R"({"a":{"k":1},"b":{"k":2}})").size(), 2u);  // the same key of two objects is fine
  JsonLimits lenient;
  lenient.unique_keys = false;
  EXPECT_EQ(Parsed(R"({"a":1,"b":2,"a":3})", lenient).dump(), R"({"b":2,"a":3})");
  EXPECT_THAT(Refused("{\"\":1,\"\":2}").message(), HasSubstr("twice"));
}

TEST(ParseJson, SaysWhereTextIsBroken) {
  for (const char* text :
       {"",      " ",     "{",  "[1,",   "[1,]",     "{\"a\"}",  "{\"a\":}",     "{a:1}",       "nul",
        "\"abc", "[1] 2", "01", "1e999", "\"\x01\"", "\"\xff\"", "\"\xc0\xaf\"", "\"\\ud800\"", "]",
        "}{",    "[}",    "{]"}) {
    const Status s = Refused(text);
    EXPECT_EQ(s.code(), StatusCode::kDataLoss) << text << ": " << s.message();
  }
  const Status s = Refused("{\n  \"a\": 1,\n  \"b\": x\n}");
  EXPECT_THAT(s.message(), HasSubstr("line 3, column 8"));
  EXPECT_THAT(s.message(), Not(HasSubstr("json.exception")));
}

TEST(ParseJson, MessagesStayShortAndPlain) {
  const Status s = Refused("{\"" + std::string(100'000, '\xff') + "\":1}");
  EXPECT_LT(s.message().size(), 400u);
  for (const char c : s.message()) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
}

TEST(ParseJson, IsLinearInTheNumberOfKeys) {
  // With a quadratic builder this takes many minutes and the test times out.
  std::string text = "{";
  constexpr int kKeys = 300'000;
  for (int i = 0; i < kKeys; ++i)
    text += (i > 0 ? ",\"key number " : "\"key number ") + std::to_string(i) + "\":" + std::to_string(i);
  const Json j = Parsed(text + "}");
  ASSERT_EQ(j.size(), static_cast<size_t>(kKeys));
  EXPECT_EQ(j.items().begin().key(), "key number 0");
  EXPECT_EQ(j.back(), kKeys - 1);
}

TEST(ReadJsonFile, NamesTheFile) {
  const testing::TempDir dir;
  const auto good = ReadJsonFile(dir.Write("good.json", "{\"a\":[1]}"));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ((*good)["a"][0], 1);
  const auto bad = ReadJsonFile(dir.Write("bad.json", "{\"a\":"));
  EXPECT_THAT(bad.status().message(), HasSubstr("bad.json"));
  EXPECT_EQ(ReadJsonFile(dir.Path("none.json")).status().code(), StatusCode::kNotFound);
}

TEST(DumpJson, NeverThrows) {
  EXPECT_EQ(DumpJson(Json{{"a", "x\xffy"}}), "{\"a\":\"x\xEF\xBF\xBDy\"}");
  EXPECT_EQ(DumpJson(Json{{"k\xc3", std::numeric_limits<double>::quiet_NaN()}}), "{\"k\xEF\xBF\xBD\":null}");
  EXPECT_EQ(DumpJson(Json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

}  // namespace
}  // namespace farsight
