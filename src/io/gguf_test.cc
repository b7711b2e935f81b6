#include "io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/testing/gguf_writer.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using testing::ByteSink;
using ::testing::ElementsAre;
using testing::GgufValue;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TempDir;

std::span<const std::byte> Bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

constexpr DType kAll[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                          DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::string Pattern(size_t n, unsigned seed) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>(seed + i * 7 + i / 251);
  return s;
}

TEST(Gguf, EveryTypeRoundTrips) {
  GgufWriter w;
  std::vector<std::string> data;
  for (const DType t : kAll) {
    // Three rows; F16 rows of 5 make the next tensor need padding.
    const int64_t cols = IsQuantised(t) ? 2 * InfoOf(t).block_elems : 5;
    data.push_back(Pattern(BytesOf(t, static_cast<size_t>(3 * cols)), static_cast<unsigned>(data.size())));
    w.AddTensor(std::string("t.") + InfoOf(t).name, t, {3, cols}, data.back());
  }
  const std::string bytes = w.Build();
  const auto file = ParseGguf(Bytes(bytes), "round.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ((*file)->tensors().size(), std::size(kAll));
  for (size_t i = 0; i < std::size(kAll); ++i) {
    const FileTensor* t = (*file)->FindTensor(std::string("t.") + InfoOf(kAll[i]).name);
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, kAll[i]);
    EXPECT_EQ(t->shape[0], 3);
    EXPECT_EQ(t->num_elements() % 3, 0);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t->data.data()), t->data.size()), data[i]) << t->name;
    EXPECT_EQ((t->data.data() - std::as_bytes(std::span(bytes)).data()) % 32, 0);
  }
  EXPECT_EQ((*file)->FindTensor("t.none"), nullptr);
  EXPECT_THAT((*file)->GetTensor("t.none").status().message(), HasSubstr("lacks the tensor 't.none'"));
  EXPECT_TRUE((*file)->GetTensor("t.Q4_1").ok());
}

TEST(Gguf, ShapesAreOutermostFirst) {
  const std::string bytes = GgufWriter()
                                .AddTensor("a", DType::kF32, {7})
                                .AddTensor("b", DType::kF32, {2, 3, 4, 5})
                                .AddTensor("c", DType::kQ4_0, {2, 32})
                                .Build();
  const auto file = ParseGguf(Bytes(bytes), "x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT((*file)->FindTensor("a")->shape, ElementsAre(7));
  EXPECT_THAT((*file)->FindTensor("b")->shape, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT((*file)->FindTensor("c")->shape, ElementsAre(2, 32));
}

TEST(Gguf, EveryKindOfMetadata) {
  const std::vector<std::string> words = {"one", "", "drei\xC3\xA9"};
  const std::vector<float> floats = {1.5f, -0.25f};
  const std::vector<double> doubles = {1e300};
  const std::vector<int8_t> bytes8 = {-128, 127};
  const std::vector<uint64_t> wide = {0, uint64_t{1} << 62};
  const std::vector<uint8_t> flags = {1, 0, 1};
  const std::string bytes = GgufWriter()
                                .Number("u8", GgufValue::kU8, uint8_t{200})
                                .Number("i8", GgufValue::kI8, int8_t{-100})
                                .Number("u16", GgufValue::kU16, uint16_t{60000})
                                .Number("i16", GgufValue::kI16, int16_t{-30000})
                                .U32("u32", 4'000'000'000u)
                                .Number("i32", GgufValue::kI32, int32_t{-2'000'000'000})
                                .Number("u64", GgufValue::kU64, uint64_t{1} << 40)
                                .Number("i64", GgufValue::kI64, -(int64_t{1} << 40))
                                .F32("f32", 0.5f)
                                .Number("f64", GgufValue::kF64, 0.1)
                                .Bool("yes", true)
                                .Bool("no", false)
                                .String("text", std::string("a\0b", 3))
                                .Strings("words", words)
                                .Numbers<float>("floats", GgufValue::kF32, floats)
                                .Numbers<double>("doubles", GgufValue::kF64, doubles)
                                .Numbers<int8_t>("bytes8", GgufValue::kI8, bytes8)
                                .Numbers<uint64_t>("wide", GgufValue::kU64, wide)
                                .Numbers<uint8_t>("flags", GgufValue::kBool, flags)
                                .Array("nothing", static_cast<uint32_t>(GgufValue::kString), 0, "")
                                .Build();
  const auto opened = ParseGguf(Bytes(bytes), "meta.gguf");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const ModelFile& f = **opened;
  const auto integer = [&](const char* key) { return f.GetInt(key).ok() ? *f.GetInt(key) : -999; };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -100);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -30000);
  EXPECT_EQ(integer("u32"), 4'000'000'000);
  EXPECT_EQ(integer("i32"), -2'000'000'000);
  EXPECT_EQ(integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(integer("i64"), -(int64_t{1} << 40));
  EXPECT_EQ(*f.GetFloat("f32"), 0.5);
  EXPECT_EQ(*f.GetFloat("f64"), 0.1);
  EXPECT_EQ(*f.GetFloat("u8"), 200.0) << "an integer is a number";
  EXPECT_TRUE(*f.OptBool("yes", false));
  EXPECT_FALSE(*f.OptBool("no", true));
  EXPECT_EQ(*f.GetString("text"), std::string("a\0b", 3));
  EXPECT_EQ(std::get<std::vector<std::string>>(f.metadata().at("words")), words);
  EXPECT_THAT(std::get<std::vector<double>>(f.metadata().at("floats")), ElementsAre(1.5, -0.25));
  EXPECT_THAT(std::get<std::vector<double>>(f.metadata().at("doubles")), ElementsAre(1e300));
  EXPECT_THAT(std::get<std::vector<int64_t>>(f.metadata().at("bytes8")), ElementsAre(-128, 127));
  EXPECT_THAT(std::get<std::vector<int64_t>>(f.metadata().at("wide")), ElementsAre(0, int64_t{1} << 62));
  EXPECT_THAT(std::get<std::vector<int64_t>>(f.metadata().at("flags")), ElementsAre(1, 0, 1));
  EXPECT_TRUE(std::get<std::vector<std::string>>(f.metadata().at("nothing")).empty());
}

TEST(Gguf, TypedAccessNamesTheKeyAndTheType) {
  const std::string bytes = GgufWriter().String("s", "x").U32("n", 3).F32("f", 1.0f).Build();
  const auto opened = ParseGguf(Bytes(bytes), "typed.gguf");
  ASSERT_TRUE(opened.ok());
  const ModelFile& f = **opened;
  EXPECT_THAT(f.GetInt("s").status().message(), HasSubstr("'s' should be an integer but is a string"));
  EXPECT_THAT(f.GetInt("f").status().message(), HasSubstr("is a float"));
  EXPECT_THAT(f.GetFloat("s").status().message(), HasSubstr("should be a number"));
  EXPECT_THAT(f.GetString("n").status().message(), HasSubstr("'n' should be a string but is an integer"));
  EXPECT_THAT(f.OptBool("n", true).status().message(), HasSubstr("should be a bool"));
  EXPECT_THAT(f.GetInt("gone").status().message(), HasSubstr("'typed.gguf' lacks the required metadata key 'gone'"));
  EXPECT_FALSE(f.GetFloat("gone").ok());
  EXPECT_FALSE(f.GetString("gone").ok());
  EXPECT_EQ(*f.OptInt("gone", 5), 5);
  EXPECT_EQ(*f.OptFloat("gone", 2.5), 2.5);
  EXPECT_EQ(*f.OptString("gone", "d"), "d");
  EXPECT_TRUE(*f.OptBool("gone", true));
  EXPECT_FALSE(f.OptInt("s", 5).ok()) << "a key of the wrong type is an error, not a default";
}

TEST(Gguf, VersionsAndAlignments) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter w;
    w.version = version;
    const std::string bytes = w.U32("n", 1).AddTensor("a", DType::kF32, {3}).Build();
    EXPECT_TRUE(ParseGguf(Bytes(bytes), "x").ok()) << version;
  }
  for (const uint32_t alignment : {8u, 64u, 4096u, 65536u}) {
    const std::string bytes = GgufWriter()
                                  .SetAlignment(alignment)
                                  .AddTensor("a", DType::kF32, {1}, "abcd")
                                  .AddTensor("b", DType::kF32, {1}, "efgh")
                                  .Build();
    const auto file = ParseGguf(Bytes(bytes), "x");
    ASSERT_TRUE(file.ok()) << alignment << ": " << file.status().message();
    EXPECT_EQ(static_cast<char>((*file)->FindTensor("b")->data[0]), 'e');
  }
}

TEST(Gguf, NothingButAHeaderAndTrailingBytesAreFine) {
  const std::string empty = GgufWriter().Build();
  const auto none = ParseGguf(Bytes(empty), "x");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_TRUE((*none)->tensors().empty());
  const std::string trailing = GgufWriter().AddTensor("a", DType::kF32, {3}).Build() + "something else";
  EXPECT_TRUE(ParseGguf(Bytes(trailing), "x").ok());
}

TEST(Gguf, TensorsInAnyOrderOfTheirData) {
  GgufWriter w;
  w.AddTensor({"second", {1}, 0, "2222", 32, {}});
  w.AddTensor({"first", {1}, 0, "1111", 0, {}});
  std::string bytes = w.Build();
  const auto file = ParseGguf(Bytes(bytes), "x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_LT((*file)->FindTensor("first")->data.data(), (*file)->FindTensor("second")->data.data());
}

TEST(OpenGguf, TensorsOutliveEverythingButTheFile) {
  const TempDir dir;
  const std::string path = dir.Write("m.gguf", GgufWriter().AddTensor("a", DType::kF32, {2}, "ABCDEFGH").Build());
  const auto file = OpenGguf(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->path(), path);
  EXPECT_EQ(static_cast<char>((*file)->FindTensor("a")->data[7]), 'H');
  EXPECT_EQ(OpenGguf(dir.Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(OpenGguf(dir.path()).ok());
  EXPECT_THAT(OpenGguf(dir.Write("e", "")).status().message(), HasSubstr("is empty"));
}

// The data of a large model lies in a hole of a sparse file: reading it would take long, mapping it does not.
TEST(OpenGguf, DoesNotTouchTheData) {
  GgufWriter w;
  std::string words;
  for (int i = 0; i < 150'000; ++i) words += ByteSink().String("token " + std::to_string(i)).bytes();
  w.Array("tokenizer.ggml.tokens", static_cast<uint32_t>(GgufValue::kString), 150'000, words);
  constexpr uint64_t kTensorBytes = uint64_t{1} << 32;
  for (uint64_t i = 0; i < 300; ++i) {
    w.AddTensor({"blk." + std::to_string(i), {1 << 20, 1 << 10}, 0, "", i * kTensorBytes, {}});
  }
  const TempDir dir;
  const std::string path = dir.Write("large.gguf", w.Build());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + 300 * kTensorBytes);
  const auto file = OpenGguf(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors().size(), 300u);
  EXPECT_EQ((*file)->FindTensor("blk.299")->data.size(), kTensorBytes);
}

}  // namespace
}  // namespace farsight
