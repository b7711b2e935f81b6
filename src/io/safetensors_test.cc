#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/testing/gguf_writer.h"
#include "io/testing/safetensors_writer.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SafetensorsWriter;
using testing::TempDir;

StatusOr<std::shared_ptr<const ModelFile>> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors");
}

std::string Message(const std::string& bytes) {
  // A buffer of exactly this size lets AddressSanitizer see a read beyond the end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const auto r = ParseSafetensors(std::as_bytes(std::span(exact)), "m.safetensors");
  EXPECT_FALSE(r.ok());
  EXPECT_LT(r.status().message().size(), 400u);
  return r.status().message();
}
std::string Message(const SafetensorsWriter& w) { return Message(w.Build()); }

// A tensor of 4 bytes whose description is replaced by `description`.
std::string Described(const std::string& description, const std::string& data = "abcd") {
  SafetensorsWriter w;
  w.header = "{\"t\":" + description + "}";
  return w.Build() + data;
}

std::string Text(const FileTensor& t) { return {reinterpret_cast<const char*>(t.data.data()), t.data.size()}; }

TEST(Safetensors, UsableTypesRoundTrip) {
  const std::string bytes = SafetensorsWriter()
                                .Metadata(R"({"format":"pt"})")
                                .AddTensor("w.f32", "F32", {2, 1}, "abcdefgh")
                                .AddTensor("w.f16", "F16", {3}, "ABCDEF")
                                .AddTensor("w.bf16", "BF16", {1, 2, 1}, "wxyz")
                                .AddTensor("scalar", "F32", {}, "1234")
                                .Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ((*file)->tensors().size(), 4u);
  EXPECT_EQ((*file)->FindTensor("w.f32")->dtype, DType::kF32);
  EXPECT_THAT((*file)->FindTensor("w.f32")->shape, ElementsAre(2, 1));
  EXPECT_EQ(Text(*(*file)->FindTensor("w.f32")), "abcdefgh");
  EXPECT_EQ((*file)->FindTensor("w.f16")->dtype, DType::kF16);
  EXPECT_EQ(Text(*(*file)->FindTensor("w.f16")), "ABCDEF");
  EXPECT_EQ((*file)->FindTensor("w.bf16")->dtype, DType::kBF16);
  EXPECT_THAT((*file)->FindTensor("w.bf16")->shape, ElementsAre(1, 2, 1));
  EXPECT_EQ(Text(*(*file)->FindTensor("w.bf16")), "wxyz");
  EXPECT_TRUE((*file)->FindTensor("scalar")->shape.empty());
  EXPECT_EQ(*(*file)->GetString("format"), "pt");
  EXPECT_TRUE((*file)->skipped().empty());
}

TEST(Safetensors, OtherTypesAreSkippedByName) {
  SafetensorsWriter w;
  const std::pair<const char*, size_t> types[] = {{"I64", 8}, {"BOOL", 1},    {"U8", 1},      {"I8", 1},
                                                  {"U16", 2}, {"I16", 2},     {"U32", 4},     {"I32", 4},
                                                  {"U64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F64", 8}};
  for (const auto& [name, size] : types) w.AddTensor(std::string("x.") + name, name, {3}, std::string(3 * size, 'x'));
  w.AddTensor("w", "F32", {1}, "abcd");
  const std::string bytes = w.Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors().size(), 1u);
  EXPECT_EQ(Text(*(*file)->FindTensor("w")), "abcd");
  ASSERT_EQ((*file)->skipped().size(), std::size(types));
  EXPECT_EQ((*file)->skipped()[0].name, "x.I64");
  EXPECT_EQ((*file)->skipped()[0].dtype, "I64");
  EXPECT_EQ((*file)->FindTensor("x.I64"), nullptr);
  const auto asked = (*file)->GetTensor("x.F8_E4M3");
  EXPECT_EQ(asked.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(asked.status().message(), AllOf(HasSubstr("'x.F8_E4M3'"), HasSubstr("type F8_E4M3")));
}

TEST(Safetensors, HeaderOrderIsNotDataOrder) {
  SafetensorsWriter w;
  w.AddTensor({"late", "F32", "[1]", "1111", 4, 8});
  w.AddTensor({"early", "F32", "[1]", "2222", 0, 4});
  const std::string bytes = w.Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(Text(*(*file)->FindTensor("early")), "1111");
  EXPECT_EQ(Text(*(*file)->FindTensor("late")), "2222");
}

// --- Lies about sizes ------------------------------------------------------------------------------------------------

TEST(HostileSafetensors, ShapeAgainstRange) {
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]})")),
              AllOf(HasSubstr("'t'"), HasSubstr("take 4000000 bytes"), HasSubstr("give 4")));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]})")),
              HasSubstr("shorter than its header says"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F16","shape":[1],"data_offsets":[0,4]})")), HasSubstr("take 2 bytes"));
}

TEST(HostileSafetensors, Offsets) {
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})")), HasSubstr("reversed"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})")), HasSubstr("two numbers"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1],"data_offsets":[0,2,4]})")), HasSubstr("two numbers"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1]})")), HasSubstr("data_offsets"));
  for (const char* bad : {"-4,0", "0.0,4", "0,4e0", "\"0\",4", "null,4", "0,18446744073709551616"}) {
    EXPECT_THAT(Message(Described(R"({"dtype":"F32","shape":[1],"data_offsets":[)" + std::string(bad) + "]}")),
                HasSubstr("not non-negative integers"))
        << bad;
  }
  EXPECT_THAT(
      Message(Described(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]})")),
      HasSubstr("shorter than its header says"));
}

TEST(HostileSafetensors, Tiling) {
  SafetensorsWriter overlap;
  overlap.AddTensor({"a", "F32", "[2]", "abcdefgh", 0, 8});
  overlap.AddTensor({"b", "F32", "[2]", "abcd", 4, 12});
  EXPECT_THAT(Message(overlap), HasSubstr("overlap at 'b'"));
  SafetensorsWriter same;
  same.AddTensor({"a", "F32", "[1]", "abcd", 0, 4});
  same.AddTensor({"b", "F32", "[1]", "", 0, 4});
  EXPECT_THAT(Message(same), HasSubstr("overlap"));
  SafetensorsWriter gap;
  gap.AddTensor({"a", "F32", "[1]", "abcdefgh", 0, 4});
  gap.AddTensor({"b", "F32", "[1]", "abcd", 8, 12});
  EXPECT_THAT(Message(gap), AllOf(HasSubstr("gap of 4 bytes"), HasSubstr("'b'")));
  SafetensorsWriter first;
  first.AddTensor({"a", "F32", "[1]", "abcdefgh", 4, 8});
  EXPECT_THAT(Message(first), HasSubstr("gap of 4 bytes"));
  const std::string good = SafetensorsWriter().AddTensor("a", "F32", {1}, "abcd").Build();
  EXPECT_THAT(Message(good + "more"), HasSubstr("4 bytes that belong to no tensor"));
}

TEST(HostileSafetensors, Shapes) {
  const auto shape = [](const std::string& s) {
    return Message(Described("{\"dtype\":\"F32\",\"shape\":" + s + ",\"data_offsets\":[0,4]}"));
  };
  EXPECT_THAT(shape("[0]"), HasSubstr("dimension of 0"));
  EXPECT_THAT(shape("[-1]"), HasSubstr("not a non-negative integer"));
  EXPECT_THAT(shape("[1.0]"), HasSubstr("not a non-negative integer"));
  EXPECT_THAT(shape("[true]"), HasSubstr("not a non-negative integer"));
  EXPECT_THAT(shape("1"), HasSubstr("no 'shape' array"));
  EXPECT_THAT(shape("[4294967296,4294967296]"), HasSubstr("impossible shape"));
  EXPECT_THAT(shape("[9223372036854775808,2]"), HasSubstr("impossible shape"));
  EXPECT_THAT(shape("[18446744073709551615]"), HasSubstr("impossible shape"));
  EXPECT_THAT(shape("[1,1,1,1,1,1,1,1,1]"), HasSubstr("9 dimensions"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","data_offsets":[0,4]})")), HasSubstr("no 'shape' array"));
}

TEST(HostileSafetensors, EveryTruncationIsSeen) {
  const std::string good =
      SafetensorsWriter().AddTensor("a", "F32", {2}, "abcdefgh").AddTensor("b", "I64", {1}, "12345678").Build();
  ASSERT_TRUE(Parse(good).ok());
  for (size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    EXPECT_EQ(Parse(cut).status().code(), StatusCode::kDataLoss) << n;
  }
}

// --- Headers ---------------------------------------------------------------------------------------------------------

TEST(HostileSafetensors, HeaderLengths) {
  for (const uint64_t n : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 32, uint64_t{1000}}) {
    SafetensorsWriter w;
    w.header_bytes = n;
    EXPECT_THAT(Message(w.AddTensor("a", "F32", {1}, "abcd")), HasSubstr("header should take " + std::to_string(n)));
  }
  SafetensorsWriter none;
  none.header_bytes = 0;
  EXPECT_THAT(Message(none), HasSubstr("does not start with '{'"));
  SafetensorsWriter over;
  over.header = "{" + std::string(100'000'000, ' ') + "}";
  EXPECT_THAT(Message(over), HasSubstr("more than the limit of 100000000"));
}

TEST(HostileSafetensors, HeadersThatAreNoTable) {
  const auto header = [](const std::string& s) {
    SafetensorsWriter w;
    w.header = s;
    return Message(w);
  };
  EXPECT_THAT(header("[1,2,3]"), HasSubstr("does not start with '{'"));
  EXPECT_THAT(header(" {}"), HasSubstr("does not start with '{'"));
  EXPECT_THAT(header("{\"a\":"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header("{} {}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header("{\"a\":\"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header("{\"a\":1}"), HasSubstr("not described by an object"));
  EXPECT_THAT(header("{\"a\":{\"b\":[[[1]]]}}"), HasSubstr("deeper than 4 levels"));
  EXPECT_THAT(header("{\"a\":" + std::string(1'000'000, '[')), HasSubstr("deeper than 4 levels"));
  EXPECT_THAT(header("{\"__metadata__\":3}"), HasSubstr("'__metadata__'"));
  EXPECT_THAT(header("{\"__metadata__\":{\"a\":3}}"), HasSubstr("not a string"));
}

TEST(HostileSafetensors, TensorNamesAndTypes) {
  SafetensorsWriter twice;
  twice.AddTensor({"same", "F32", "[1]", "abcd", 0, 4});
  twice.AddTensor({"same", "F32", "[1]", "", 0, 4});
  EXPECT_THAT(Message(twice), HasSubstr("\"same\" twice"));
  EXPECT_THAT(Message(Described(R"({"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]})")),
              HasSubstr("\"dtype\" twice"));
  for (const std::string& name : {std::string(), std::string("a\\u0000b"), std::string(1025, 'n')}) {
    EXPECT_THAT(Message(SafetensorsWriter().AddTensor(name, "F32", {1}, "abcd")), HasSubstr("tensor name"));
  }
  EXPECT_THAT(Message(Described(R"({"dtype":"F12","shape":[1],"data_offsets":[0,4]})")),
              AllOf(HasSubstr("'t'"), HasSubstr("unknown type 'F12'")));
  EXPECT_THAT(Message(Described(R"({"dtype":32,"shape":[1],"data_offsets":[0,4]})")), HasSubstr("no 'dtype'"));
  EXPECT_THAT(Message(Described(R"({"shape":[1],"data_offsets":[0,4]})")), HasSubstr("no 'dtype'"));
}

TEST(HostileSafetensors, HeaderOfMillionsOfTensors) {
  SafetensorsWriter w;
  std::string text = "{";
  for (int i = 0; text.size() < 90'000'000; ++i) {
    if (i > 0) text += ',';
    text += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  }
  w.header = text + "}";
  EXPECT_THAT(Message(w), HasSubstr("values, more than the limit"));
  // Within the values that are parsed, but more tensors than any model has.
  text = "{";
  for (int i = 0; i < 65'537; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  w.header = text + "}";
  EXPECT_THAT(Message(w), HasSubstr("65537 tensors, more than the limit"));
}

TEST(HostileSafetensors, FilesOfAnotherKindAreRecognised) {
  EXPECT_THAT(Message("version https://git-lfs.github.com/spec/v1\noid sha256:0"), HasSubstr("Git LFS pointer"));
  EXPECT_THAT(Message(testing::GgufWriter().Build()), HasSubstr("GGUF"));
  EXPECT_THAT(Message("abc"), HasSubstr("only 3 bytes"));
}

TEST(HostileSafetensors, BytesChangedOneByOne) {
  const std::string good = SafetensorsWriter()
                               .Metadata(R"({"k":"v"})")
                               .AddTensor("a", "F32", {2, 1}, "abcdefgh")
                               .AddTensor("b", "I64", {1}, "12345678")
                               .Build();
  for (size_t i = 0; i < good.size(); ++i) {
    for (const unsigned change : {0x01u, 0x10u, 0x80u, 0xffu}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ change);
      const auto r = Parse(bytes);
      if (!r.ok()) continue;
      for (const auto& t : (*r)->tensors()) {
        const auto* begin = reinterpret_cast<const char*>(t.data.data());
        EXPECT_GE(begin, bytes.data());
        EXPECT_LE(begin + t.data.size(), bytes.data() + bytes.size());
      }
    }
  }
}

// --- Directories -----------------------------------------------------------------------------------------------------

class ShardedDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("one.safetensors", SafetensorsWriter().AddTensor("a", "F32", {1}, "aaaa").Build());
    dir_.Write("two.safetensors",
               SafetensorsWriter().AddTensor("b", "F32", {1}, "bbbb").AddTensor("mask", "BOOL", {1}, "m").Build());
  }
  void Index(const std::string& json) { dir_.Write("model.safetensors.index.json", json); }
  std::string OpenMessage() {
    const auto r = OpenSafetensors(dir_.path());
    EXPECT_FALSE(r.ok());
    return r.status().message();
  }

  TempDir dir_;
};

TEST_F(ShardedDirectory, IsOneModel) {
  Index(
      R"({"metadata":{"total_size":9},"weight_map":{"a":"one.safetensors","b":"two.safetensors","mask":"two.safetensors"}})");
  const auto file = OpenSafetensors(dir_.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors().size(), 2u);
  EXPECT_EQ(Text(*(*file)->FindTensor("a")), "aaaa");
  EXPECT_EQ(Text(*(*file)->FindTensor("b")), "bbbb");
  ASSERT_EQ((*file)->skipped().size(), 1u);
  EXPECT_EQ((*file)->skipped()[0].name, "mask");
}

TEST_F(ShardedDirectory, OneFileNeedsNoIndex) {
  EXPECT_THAT(OpenMessage(), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  dir_.Write("model.safetensors", SafetensorsWriter().AddTensor("c", "F32", {1}, "cccc").Build());
  const auto file = OpenSafetensors(dir_.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(Text(*(*file)->FindTensor("c")), "cccc");
  EXPECT_TRUE(OpenSafetensors(dir_.Path("one.safetensors")).ok());
  EXPECT_EQ(OpenSafetensors(dir_.Path("nine.safetensors")).status().code(), StatusCode::kNotFound);
}

TEST_F(ShardedDirectory, NamesAreNotPaths) {
  std::filesystem::create_directory(dir_.Path("sub"));
  std::filesystem::copy(dir_.Path("one.safetensors"), dir_.Path("sub/one.safetensors"));
  const std::string outside = dir_.Path("one.safetensors");
  for (const std::string& name : {std::string("../one.safetensors"), std::string("sub/one.safetensors"), outside,
                                  std::string("sub\\\\one.safetensors"), std::string(".."), std::string(),
                                  std::string("one.bin"), std::string("one\\u0000.safetensors")}) {
    Index(R"({"weight_map":{"a":")" + name + "\"}}");
    EXPECT_THAT(OpenMessage(), HasSubstr("not a plain file name")) << name;
  }
  Index(R"({"weight_map":{"a":7}})");
  EXPECT_THAT(OpenMessage(), HasSubstr("not a plain file name"));
}

TEST_F(ShardedDirectory, IndexAndShardsMustAgree) {
  Index(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("'b'"), HasSubstr("no shard has it")));
  Index(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("'a'"), HasSubstr("but it is in")));
  Index(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})");
  EXPECT_EQ(OpenSafetensors(dir_.path()).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenMessage(), HasSubstr("three.safetensors"));
  dir_.Write("three.safetensors", SafetensorsWriter().AddTensor("a", "F32", {1}, "cccc").Build());
  Index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"}})");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("tensor 'a'"), HasSubstr("is also in"), HasSubstr("one.safetensors")));
}

TEST_F(ShardedDirectory, BrokenIndexes) {
  for (const char* json : {"{}", "[]", "3", R"({"weight_map":[]})", R"({"weight_map":{}})"}) {
    Index(json);
    EXPECT_THAT(OpenMessage(), HasSubstr("no 'weight_map' object")) << json;
  }
  Index("{\"weight_map\":");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("not valid JSON")));
  Index(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})");
  EXPECT_THAT(OpenMessage(), HasSubstr("twice"));
  std::string many = R"({"weight_map":{"a":"one.safetensors")";
  for (int i = 0; i < 4097; ++i) many += ",\"t" + std::to_string(i) + "\":\"s" + std::to_string(i) + ".safetensors\"";
  Index(many + "}}");
  EXPECT_THAT(OpenMessage(), HasSubstr("4098 shards, more than the limit of 4096"));
}

TEST_F(ShardedDirectory, TruncatedShardIsNamed) {
  std::filesystem::resize_file(dir_.Path("two.safetensors"),
                               std::filesystem::file_size(dir_.Path("two.safetensors")) - 1);
  Index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("two.safetensors"), HasSubstr("shorter than its header says")));
}

}  // namespace
}  // namespace farsight
