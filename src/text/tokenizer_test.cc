#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "text/unicode.h"

namespace farsight {
namespace {

class MetadataFile : public ModelFile {
 public:
  MetadataFile() { path_ = "test.gguf"; }
  void Set(const std::string& key, MetaValue value) { metadata_["tokenizer.ggml." + key] = std::move(value); }
};

MetadataFile SmallGguf() {
  MetadataFile file;
  file.Set("model", "gpt2");
  file.Set("pre", "gpt-2");
  file.Set("tokens", std::vector<std::string>{"a", "b", "ab", "<|im_end|>"});
  file.Set("token_type", std::vector<int64_t>{1, 1, 1, 3});
  file.Set("merges", std::vector<std::string>{"a b"});
  return file;
}

// tokenizer.json with the given parts: a vocabulary of a, b, ab, Ġ and Ġa.
std::string SmallJson(const std::string& added = "[]",
                      const std::string& pre = R"({"type":"ByteLevel","add_prefix_space":false})",
                      const std::string& normalizer = "null", const std::string& post = "null",
                      const std::string& model_more = "",
                      const std::string& vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3,\"\u0120a\":4}",
                      const std::string& merges = "[[\"a\",\"b\"],\"\u0120 a\"]") {
  return R"({"added_tokens":)" + added + R"(,"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" + pre +
         R"(,"post_processor":)" + post + R"(,"model":{"type":"BPE")" + model_more + R"(,"vocab":)" + vocab +
         R"(,"merges":)" + merges + "}}";
}

std::string Error(const std::string& json, StatusCode code, const std::string& config = "") {
  const auto t = TokenizerFromJson(json, config, "t");
  if (t.ok()) return "no error";
  EXPECT_EQ(t.status().code(), code) << t.status().message();
  return t.status().message();
}

std::unique_ptr<Tokenizer> Load(const std::string& json, const std::string& config = "") {
  auto t = TokenizerFromJson(json, config, "t");
  EXPECT_TRUE(t.ok()) << t.status().message();
  return t.ok() ? std::move(t->tokenizer) : nullptr;
}

using Ids = std::vector<int32_t>;
using Pieces = std::vector<Tokenizer::TextPiece>;
constexpr char kAdded[] =
    R"([{"id":5,"content":"<|x|>","special":true,"normalized":false},{"id":6,"content":"<|x|>y","special":false,"normalized":false},
        {"id":7,"content":"<t>","special":false,"normalized":false,"lstrip":true,"rstrip":true}])";

TEST(Tokenizer, MergesByRankAndFindsTheLongestSpecial) {
  const auto t = Load(SmallJson(kAdded));
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->vocab_size(), 8);
  EXPECT_EQ(t->Encode("ab a", {}), (Ids{2, 4}));
  EXPECT_EQ(t->Encode("a<|x|>b", {.parse_control = true}), (Ids{0, 5, 1}));
  EXPECT_EQ(t->Encode("a<|x|>yb", {.parse_control = true}), (Ids{0, 6, 1}));
  EXPECT_EQ(t->Encode("a \u3000<t> \n b", {}), (Ids{0, 7, 1}));  // takes the spaces around it
  EXPECT_EQ(t->Find("<|x|>"), 5);
  EXPECT_EQ(t->Find("nothing"), -1);
  EXPECT_EQ(t->TokenBytes(4), " a");
  EXPECT_EQ(t->TokenBytes(-1), "");
  EXPECT_EQ(t->TokenBytes(8), "");
  EXPECT_EQ(t->Decode(Ids{2, 5, 4, 99}, true), "ab a");
  EXPECT_EQ(t->Decode(Ids{2, 5, 4}, false), "ab<|x|> a");
}

TEST(Tokenizer, EndTokensComeFromTheConfigurationsToo) {
  const auto ends = [](std::vector<std::string> jsons) {
    const auto t = TokenizerFromJson(SmallJson(kAdded), R"({"eos_token":"<|x|>"})", "t", jsons);
    EXPECT_TRUE(t.ok()) << t.status().message();
    Ids out;
    for (int32_t id = 0; id < 99 && t.ok(); ++id) {
      if (t->tokenizer->IsEnd(id)) out.push_back(id);
    }
    return out;
  };
  EXPECT_EQ(ends({}), (Ids{5}));
  EXPECT_EQ(ends({R"({"eos_token_id":[2,7]})", R"({"eos_token_id":1})"}), (Ids{1, 2, 5, 7}));
  EXPECT_EQ(ends({R"({"eos_token_id":null})", "{}", R"({"eos_token_id":[]})"}), (Ids{5}));
  EXPECT_EQ(ends({R"({"eos_token_id":42})"}), (Ids{5})) << "no such token: harmless";
  for (const char* bad : {R"({"eos_token_id":-1})", R"({"eos_token_id":"x"})", R"({"eos_token_id":[1,2.5]})",
                          R"({"eos_token_id":99999999999})", "{"}) {
    const std::vector<std::string> jsons = {bad};
    const auto t = TokenizerFromJson(SmallJson(kAdded), "", "t", jsons);
    ASSERT_FALSE(t.ok()) << bad;
    EXPECT_EQ(t.status().code(), StatusCode::kDataLoss) << t.status().message();
  }
}

TEST(Tokenizer, TypedControlTokensStayText) {
  const auto t = Load(SmallJson(kAdded));
  ASSERT_NE(t, nullptr);
  for (const char* text : {"<|x|>", "ab<|x|>ab", "<|x|><|x|>", "<|\u200bx|>"}) {
    for (const int32_t id : t->Encode(text, {})) EXPECT_FALSE(t->IsControl(id)) << text;
  }
}

// A vocabulary whose merges spell a control token must not give it to typed text.
TEST(Tokenizer, PiecesMergeAcrossTheirBordersAndOnlyScaffoldHoldsControlTokens) {
  const auto t = Load(SmallJson(kAdded));
  EXPECT_EQ(t->EncodePieces(Pieces{{"<|x|>a", true}, {"b", false}, {"a", true}}), (Ids{5, 2, 0})) << "a and b merge";
  const Ids typed = t->EncodePieces(Pieces{{"a<|", false}, {"x|>", true}, {"<|x|>", false}});
  EXPECT_EQ(std::count(typed.begin(), typed.end(), 5), 0) << "neither typed whole nor completed by scaffold";
}

TEST(Tokenizer, MergesNeverMakeAControlToken) {
  const auto t = Load(SmallJson(R"([{"id":2,"content":"ab","special":true,"normalized":false}])"));
  ASSERT_NE(t, nullptr);
  EXPECT_TRUE(t->IsControl(2));
  EXPECT_EQ(t->Encode("ab", {}), (Ids{0, 1}));
  EXPECT_EQ(t->Encode("ab", {.parse_control = true}), (Ids{2}));
}

TEST(Tokenizer, BytesWithoutATokenAreDropped) {
  const auto t = Load(SmallJson());
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->Encode("a\xff\x80z\xe4", {}), (Ids{0}));
}

TEST(Tokenizer, ConfigurationNamesEndsAndTemplate) {
  const std::string config =
      R"({"bos_token":"a","eos_token":{"content":"<|x|>"},"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})";
  const auto t = TokenizerFromJson(SmallJson(kAdded), config, "t");
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->chat_template, "D");
  EXPECT_EQ(t->tokenizer->bos(), 0);
  EXPECT_EQ(t->tokenizer->eos(), 5);
  EXPECT_TRUE(t->tokenizer->IsEnd(5));
  EXPECT_FALSE(t->tokenizer->IsEnd(4));
  EXPECT_FALSE(t->tokenizer->add_bos());
  EXPECT_EQ(t->tokenizer->Encode("b", {.add_bos = true, .add_eos = true}), (Ids{0, 1, 5}));
}

TEST(Tokenizer, TimeIsNotQuadraticInOneRun) {
  const auto t = Load(SmallJson(kAdded));
  ASSERT_NE(t, nullptr);
  std::string text;
  for (int i = 0; i < 500000; ++i) text += "ab";
  EXPECT_EQ(t->Encode(text, {}).size(), 500000u);
  EXPECT_EQ(t->Encode(std::string(1000000, 'a'), {}).size(), 1000000u);
  EXPECT_EQ(t->Encode(std::string(1000000, '<'), {}).size(), 0u);
  EXPECT_EQ(t->Encode(std::string(1000000, ' '), {}).size(), 1000000u);
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const auto t = Load(SmallJson(kAdded));
  ASSERT_NE(t, nullptr);
  const Ids want = t->Encode("ab a ab", {});
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t i = 0; i < equal.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) equal[i] += t->Encode("ab a ab", {}) == want;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnowByName) {
  const auto unknown = [](const std::string& json) { return Error(json, StatusCode::kUnimplemented); };
  const auto has = [](const std::string& message, const char* part) { return message.find(part) != message.npos; };
  const std::string regex = unknown(SmallJson(
      "[]",
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false,"add_prefix_space":false}]})"));
  EXPECT_TRUE(has(regex, "'x+'")) << regex;
  EXPECT_TRUE(has(unknown(SmallJson("[]", R"({"type":"Whitespace"})")), "'Whitespace'"));
  EXPECT_TRUE(has(unknown(SmallJson("[]", R"({"type":"ByteLevel"})")), "add_prefix_space"));
  EXPECT_TRUE(
      has(unknown(SmallJson("[]", R"({"type":"ByteLevel","add_prefix_space":false})", R"({"type":"Lowercase"})")),
          "'Lowercase'"));
  EXPECT_TRUE(has(unknown(SmallJson("[]", R"({"type":"ByteLevel","add_prefix_space":false})", "null",
                                    R"({"type":"BertProcessing"})")),
                  "'BertProcessing'"));
  EXPECT_TRUE(has(unknown(R"({"model":{"type":"WordPiece","vocab":{},"merges":[]}})"), "'WordPiece'"));
  EXPECT_TRUE(has(unknown(SmallJson(R"([{"id":5,"content":"w","special":false,"single_word":true}])")), "single_word"));
  EXPECT_TRUE(has(unknown(SmallJson("[]", "null")), "marks its spaces"));
}

TEST(TokenizerJson, RefusesBrokenFiles) {
  const auto broken = [](const std::string& json) { return Error(json, StatusCode::kDataLoss) != "no error"; };
  const std::string byte_level = R"({"type":"ByteLevel","add_prefix_space":false})";
  const auto vocab = [&](const std::string& v, const std::string& merges = "[]") {
    return SmallJson("[]", byte_level, "null", "null", "", v, merges);
  };
  EXPECT_TRUE(broken(""));
  EXPECT_TRUE(broken("[]"));
  EXPECT_TRUE(broken("{}"));
  EXPECT_TRUE(broken(R"({"model":3})"));
  EXPECT_TRUE(broken(vocab("{}")));
  EXPECT_TRUE(broken(vocab("[]")));
  EXPECT_TRUE(broken(vocab(R"({"a":-1})")));
  EXPECT_TRUE(broken(vocab(R"({"a":1.5})")));
  EXPECT_TRUE(broken(vocab(R"({"a":"0"})")));
  EXPECT_TRUE(broken(vocab(R"({"a":0,"b":0})")));
  EXPECT_TRUE(broken(vocab(R"({"a":16000000})")));  // a sparse id must not allocate
  EXPECT_TRUE(broken(vocab(R"({"a":18446744073709551615})")));
  EXPECT_TRUE(broken(vocab(R"({"a":0})", R"(["a a"])")));
  EXPECT_TRUE(broken(vocab(R"({"a":0})", R"(["a b"])")));
  EXPECT_TRUE(broken(vocab(R"({"a":0})", R"(["a"])")));
  EXPECT_TRUE(broken(vocab(R"({"a":0})", R"([["a"]])")));
  EXPECT_TRUE(broken(vocab(R"({"a":0})", R"([7])")));
  EXPECT_TRUE(broken(SmallJson(R"([{"content":"x"}])")));
  EXPECT_TRUE(broken(SmallJson(R"([{"id":5,"content":""}])")));
  EXPECT_TRUE(broken(SmallJson(R"([{"id":5,"content":")" + std::string(2000, 'x') + R"("}])")));
  EXPECT_TRUE(broken(SmallJson(R"({"id":5})")));
  EXPECT_TRUE(Error(SmallJson(), StatusCode::kDataLoss, R"({"eos_token":"absent"})") != "no error");
  EXPECT_TRUE(Error(SmallJson(), StatusCode::kDataLoss, R"({"eos_token":7})") != "no error");
  EXPECT_TRUE(Error(std::string(100000, '['), StatusCode::kResourceExhausted) != "no error");
  EXPECT_EQ(TokenizerFromDirectory("/nonexistent").ok(), false);
}

TEST(TokenizerGguf, ReadsTheMetadata) {
  const auto t = TokenizerFromGguf(SmallGguf());
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->Encode("ab<|im_end|>", {.parse_control = true}), (Ids{2, 3}));
  EXPECT_TRUE((*t)->IsEnd(3));  // ends a turn though the metadata does not say so
}

TEST(TokenizerGguf, RefusesUnknownNamesAndBrokenTables) {
  const auto error = [](const MetadataFile& f) {
    const auto t = TokenizerFromGguf(f);
    return t.ok() ? std::string("no error") : t.status().message();
  };
  MetadataFile f = SmallGguf();
  f.Set("pre", "falcon");
  EXPECT_NE(error(f).find("'falcon'"), std::string::npos);
  f.Set("pre", "default");  // not one rule: files that say so were split in several ways
  EXPECT_NE(error(f).find("'default'"), std::string::npos);
  f = SmallGguf();
  f.Set("model", "bert");
  EXPECT_NE(error(f).find("'bert'"), std::string::npos);
  f = SmallGguf();
  f.Set("tokens", std::vector<std::string>{});
  EXPECT_NE(error(f), "no error");
  f = SmallGguf();
  f.Set("token_type", std::vector<int64_t>{1});
  EXPECT_NE(error(f), "no error");
  f = SmallGguf();
  f.Set("merges", std::vector<std::string>{"a c"});
  EXPECT_NE(error(f), "no error");
  f.Set("merges", std::vector<std::string>{"ab"});
  EXPECT_NE(error(f), "no error");
  f.Set("merges", std::vector<std::string>(100, "a b"));
  EXPECT_NE(error(f), "no error");
  f = SmallGguf();
  f.Set("eos_token_id", int64_t{4});
  EXPECT_NE(error(f).find("outside"), std::string::npos);
  f = SmallGguf();
  f.Set("model", "llama");
  f.Set("scores", std::vector<double>{0, 0});
  EXPECT_NE(error(f), "no error");
  f.Set("scores", std::vector<double>{0, 0, 0, std::numeric_limits<double>::quiet_NaN()});
  EXPECT_NE(error(f), "no error");
}

TEST(Unicode, ReplacesAsTheStandardRecommends) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xf0\x9f\x98z"), "a\ufffdz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe0\x80\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(IncompleteTail("ab"), 0u);
  EXPECT_EQ(IncompleteTail("a\xf0\x9f\x98"), 3u);
  EXPECT_EQ(IncompleteTail("a\xc3\xa9"), 0u);
  EXPECT_EQ(IncompleteTail("\xc0"), 0u);
  EXPECT_EQ(NormaliseNfc("e\u0301\xff"
                         "A\u030a"),
            "\u00e9\xff\u00c5");
  EXPECT_EQ(ClassOf(0x1c89), CharClass::kLetter);  // new in Unicode 16
  EXPECT_EQ(ClassOf(0x2029), CharClass::kSpace);
  EXPECT_EQ(ClassOf(0x180e), CharClass::kOther);
  EXPECT_EQ(ClassOf(0x110000), CharClass::kOther);
}

}  // namespace
}  // namespace farsight
