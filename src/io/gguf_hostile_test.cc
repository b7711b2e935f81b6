// GGUF files that lie. Every test expects one sentence and no allocation driven by the lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/gguf.h"
#include "io/testing/gguf_writer.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::AllOf;
using testing::ByteSink;
using testing::GgufValue;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TempDir;

constexpr auto kString = static_cast<uint32_t>(GgufValue::kString);
constexpr auto kArray = static_cast<uint32_t>(GgufValue::kArray);
constexpr auto kU8 = static_cast<uint32_t>(GgufValue::kU8);

Status Open(const std::string& bytes) {
  // A buffer of exactly this size lets AddressSanitizer see a read beyond the end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const auto r = ParseGguf(std::as_bytes(std::span(exact)), "bad.gguf");
  return r.ok() ? OkStatus() : r.status();
}

std::string Message(const GgufWriter& w) {
  const Status s = Open(w.Build());
  EXPECT_FALSE(s.ok());
  EXPECT_LT(s.message().size(), 400u);
  return s.message();
}

GgufWriter WithTensor(std::vector<uint64_t> dims, uint32_t type, size_t bytes = 64) {
  GgufWriter w;
  w.AddTensor({"blk.0.w", std::move(dims), type, std::string(bytes, 'x'), {}, {}});
  return w;
}

// --- Sizes -----------------------------------------------------------------------------------------------------------

TEST(HostileGguf, DimensionsThatMultiplyPastTheWordSize) {
  constexpr uint64_t k1 = 1;
  const std::vector<std::vector<uint64_t>> shapes = {
      {k1 << 32, k1 << 31, 2, 1}, {k1 << 32, k1 << 32},        {k1 << 32, k1 << 31}, {k1 << 63}, {~uint64_t{0}},
      {k1 << 40, k1 << 24},       {3, (~uint64_t{0} / 3) + 2}, {k1 << 48, 2}};
  for (const auto& dims : shapes) {
    for (const uint32_t type : {0u, 1u, 2u, 14u}) {
      EXPECT_THAT(Message(WithTensor(dims, type)), AllOf(HasSubstr("'blk.0.w'"), HasSubstr("impossible shape")));
    }
  }
}

TEST(HostileGguf, ElementCountsPast32Bits) {
  // Q4_0 with 2^32 + 32 elements must ask for 2.4 GB, not for one block.
  const std::string m = Message(WithTensor({(uint64_t{1} << 32) + 32}, 2));
  EXPECT_THAT(m, AllOf(HasSubstr("'blk.0.w' needs 2415919122 bytes"), HasSubstr("shorter than its header says")));
}

TEST(HostileGguf, CountsNoFileCouldHold) {
  for (const uint64_t n : {uint64_t{1} << 60, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{3}}) {
    GgufWriter w;
    w.tensor_count = n;
    EXPECT_THAT(Message(w), HasSubstr("claims " + std::to_string(n) + " tensors"));
    GgufWriter v;
    v.key_count = n;
    EXPECT_THAT(Message(v), HasSubstr("claims " + std::to_string(n) + " metadata keys"));
  }
  // Enough bytes follow, but more than any model has.
  GgufWriter w;
  w.tensor_count = 65537;
  EXPECT_THAT(Open(w.Build() + std::string(65537 * 40, '\0')).message(), HasSubstr("more than the limit (65536)"));
}

TEST(HostileGguf, SumsThatWrap) {
  for (const uint64_t offset : {~uint64_t{0} - 31, uint64_t{1} << 63, (uint64_t{1} << 63) - 32, uint64_t{1} << 40}) {
    GgufWriter w;
    w.AddTensor({"t", {16}, 0, std::string(64, 'x'), offset, {}});
    EXPECT_THAT(Message(w), AllOf(HasSubstr("'t'"), HasSubstr("shorter than its header says")));
  }
}

TEST(HostileGguf, Alignments) {
  for (const uint32_t a : {0u, 1u, 4u, 12u, 33u, 131072u, 1u << 31, ~0u}) {
    GgufWriter w;
    w.U32("general.alignment", a).AddTensor("t", DType::kF32, {1});
    EXPECT_THAT(Message(w), HasSubstr("alignment " + std::to_string(a))) << a;
  }
  GgufWriter w;
  w.String("general.alignment", "32");
  EXPECT_THAT(Message(w), HasSubstr("'general.alignment' should be an integer"));
}

// --- Truncation ------------------------------------------------------------------------------------------------------

TEST(HostileGguf, EveryTruncationIsSeen) {
  const std::vector<std::string> words = {"a", "bc"};
  const std::string good = GgufWriter()
                               .U32("n", 1)
                               .Strings("words", words)
                               .AddTensor("a", DType::kQ4_0, {2, 32})
                               .AddTensor("b", DType::kF32, {3})
                               .Build();
  ASSERT_TRUE(Open(good).ok());
  for (size_t n = 0; n < good.size(); ++n) {
    const Status s = Open(good.substr(0, n));
    EXPECT_EQ(s.code(), StatusCode::kDataLoss) << "cut to " << n << " of " << good.size() << ": " << s.message();
  }
}

TEST(HostileGguf, TruncatedFileOnDisk) {
  const TempDir dir;
  const std::string good = GgufWriter().AddTensor("big", DType::kF32, {64, 64}).Build();
  for (const size_t cut : {size_t{1}, size_t{4096}}) {
    const std::string path = dir.Write("cut.gguf", good.substr(0, good.size() - cut));
    const auto r = OpenGguf(path);
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(), AllOf(HasSubstr("cut.gguf"), HasSubstr("shorter than its header says"),
                                            HasSubstr("'big'"), HasSubstr(std::to_string(good.size() - cut))));
  }
}

// --- Strings and arrays ----------------------------------------------------------------------------------------------

TEST(HostileGguf, StringLengths) {
  for (const uint64_t n : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32, uint64_t{100}}) {
    GgufWriter w;
    w.Key("s", kString, ByteSink().Put<uint64_t>(n).Raw("abc").bytes());
    EXPECT_THAT(Message(w), HasSubstr("is " + std::to_string(n) + " bytes, but only"));
  }
  GgufWriter w;
  w.String("s", std::string((16 << 20) + 1, 'x'));
  EXPECT_THAT(Message(w), HasSubstr("more than the limit of 16777216"));
  GgufWriter fits;
  fits.String("s", std::string(16 << 20, 'x'));
  EXPECT_TRUE(Open(fits.Build()).ok());
}

TEST(HostileGguf, ArrayLengths) {
  for (const uint64_t n : {uint64_t{1} << 40, ~uint64_t{0}, uint64_t{1} << 61, uint64_t{200}}) {
    for (const uint32_t type : {0u, 6u, 7u, 8u, 12u}) {
      GgufWriter w;
      w.Array("tokens", type, n, std::string(64, '\0'));
      EXPECT_THAT(Message(w), AllOf(HasSubstr("'tokens'"), HasSubstr(std::to_string(n)))) << type;
    }
  }
  GgufWriter w;
  w.Array("many", kU8, (1 << 22) + 1, std::string((1 << 22) + 1, 'x'));
  EXPECT_THAT(Message(w), HasSubstr("more than the limit of 4194304"));
}

TEST(HostileGguf, ArraysOfArrays) {
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += ByteSink().Put<uint32_t>(kArray).Put<uint64_t>(1).bytes();
  GgufWriter w;
  w.Key("deep", kArray, nested);
  EXPECT_THAT(Message(w), HasSubstr("'deep' is an array of arrays"));
}

TEST(HostileGguf, MetadataInAll) {
  // Each array passes its own limits; together they would take more memory than any model's metadata.
  GgufWriter w;
  const std::string bytes(1 << 22, 'x');
  for (int i = 0; i < 9; ++i) w.Array("k" + std::to_string(i), kU8, 1 << 22, bytes);
  EXPECT_THAT(Message(w), HasSubstr("metadata takes more than the limit of 268435456 bytes"));
}

TEST(HostileGguf, Keys) {
  GgufWriter twice;
  twice.U32("a.b", 1).U32("other", 1).U32("a.b", 2);
  EXPECT_THAT(Message(twice), HasSubstr("'a.b' appears twice"));
  GgufWriter none;
  none.U32("", 1);
  EXPECT_THAT(Message(none), HasSubstr("has 0 bytes"));
  GgufWriter longest;
  longest.U32(std::string(65536, 'k'), 1);
  EXPECT_THAT(Message(longest), HasSubstr("has 65536 bytes"));
  for (const char* key : {"tab\there", "caf\xC3\xA9", "\x7f"}) {
    GgufWriter w;
    w.U32(key, 1);
    EXPECT_THAT(Message(w), HasSubstr("not printable ASCII"));
  }
}

TEST(HostileGguf, Values) {
  GgufWriter not_bool;
  not_bool.Number("flag", GgufValue::kBool, uint8_t{2});
  EXPECT_THAT(Message(not_bool), HasSubstr("'flag' is a bool but holds 2"));
  GgufWriter not_bools;
  not_bools.Array("flags", 7, 3, std::string("\0\1\xff", 3));
  EXPECT_THAT(Message(not_bools), HasSubstr("'flags' is a bool but holds 255"));
  GgufWriter wide;
  wide.Number("n", GgufValue::kU64, uint64_t{1} << 63);
  EXPECT_THAT(Message(wide), HasSubstr("9223372036854775808, which is too large"));
  for (const uint32_t type : {13u, 255u, ~0u}) {
    GgufWriter w;
    w.Key("odd", type, std::string(64, '\0'));
    EXPECT_THAT(Message(w), HasSubstr("unknown type " + std::to_string(type)));
    GgufWriter v;
    v.Array("odd", type, 1, std::string(64, '\0'));
    EXPECT_THAT(Message(v), HasSubstr("unknown type " + std::to_string(type)));
  }
}

// --- Tensor table ----------------------------------------------------------------------------------------------------

TEST(HostileGguf, DimensionCounts) {
  for (const uint32_t n : {0u, 5u, 255u, ~0u}) {
    GgufWriter w;
    w.AddTensor({"t", {4, 4}, 0, std::string(64, 'x'), {}, n});
    EXPECT_THAT(Message(w), HasSubstr("'t' has " + std::to_string(n) + " dimensions")) << n;
  }
  EXPECT_THAT(Message(WithTensor({0}, 0)), HasSubstr("impossible shape"));
  EXPECT_THAT(Message(WithTensor({32, 0}, 2)), HasSubstr("impossible shape"));
}

TEST(HostileGguf, RowsThatAreNoWholeBlocks) {
  for (const uint64_t row : {uint64_t{1}, uint64_t{31}, uint64_t{33}}) {
    EXPECT_THAT(Message(WithTensor({row, 32}, 2)), HasSubstr("not a multiple of the 32 of a Q4_0 block"));
  }
  EXPECT_THAT(Message(WithTensor({128, 2}, 12)), HasSubstr("not a multiple of the 256 of a Q4_K block"));
}

TEST(HostileGguf, TensorTypes) {
  const std::pair<uint32_t, const char*> types[] = {{10, "Q2_K"},
                                                    {11, "Q3_K"},
                                                    {16, "IQ2_XXS"},
                                                    {20, "IQ4_NL"},
                                                    {39, "MXFP4"},
                                                    {31, "Q4_0_4_4"},
                                                    {28, "F64"},
                                                    {26, "I32"},
                                                    {4, "Q4_2"},
                                                    {99, "number 99"},
                                                    {~0u, "number 4294967295"}};
  for (const auto& [id, name] : types) {
    const Status s = Open(WithTensor({256}, id, 4096).Build());
    EXPECT_EQ(s.code(), StatusCode::kUnimplemented) << id;
    EXPECT_THAT(s.message(), AllOf(HasSubstr("'blk.0.w'"), HasSubstr(name)));
  }
}

TEST(HostileGguf, Names) {
  GgufWriter twice;
  twice.AddTensor("same", DType::kF32, {1}).AddTensor("same", DType::kF32, {1});
  EXPECT_THAT(Message(twice), HasSubstr("'same' appears twice"));
  for (const std::string& name : {std::string(), std::string(64, 'n'), std::string("a\0b", 3)}) {
    GgufWriter w;
    w.AddTensor(name, DType::kF32, {1});
    EXPECT_THAT(Message(w), HasSubstr("1 to 63 without a NUL"));
  }
  GgufWriter longest;
  longest.AddTensor(std::string(63, 'n'), DType::kF32, {1});
  EXPECT_TRUE(Open(longest.Build()).ok());
}

TEST(HostileGguf, Offsets) {
  GgufWriter w;
  w.AddTensor({"t", {16}, 0, std::string(64, 'x'), 4, {}});
  EXPECT_THAT(Message(w), HasSubstr("offset 4, not a multiple of the alignment 32"));
  GgufWriter overlap;
  overlap.AddTensor({"one", {16}, 0, std::string(64, 'x'), 0, {}});
  overlap.AddTensor({"two", {16}, 0, std::string(64, 'x'), 32, {}});
  EXPECT_THAT(Message(overlap), AllOf(HasSubstr("overlap"), HasSubstr("'one'"), HasSubstr("'two'")));
  GgufWriter same;
  same.AddTensor({"one", {16}, 0, std::string(64, 'x'), 0, {}});
  same.AddTensor({"two", {16}, 0, std::string(64, 'x'), 0, {}});
  EXPECT_THAT(Message(same), HasSubstr("overlap"));
}

// --- Other files -----------------------------------------------------------------------------------------------------

TEST(HostileGguf, Versions) {
  for (const uint32_t version : {0u, 1u, 4u, 0xffffffffu}) {
    GgufWriter w;
    w.version = version;
    const Status s = Open(w.Build());
    EXPECT_EQ(s.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(s.message(), HasSubstr("GGUF version " + std::to_string(version)));
  }
  for (const uint32_t swapped : {0x03000000u, 0x02000000u}) {
    GgufWriter w;
    w.version = swapped;
    const Status s = Open(w.Build());
    EXPECT_EQ(s.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(s.message(), HasSubstr("big-endian"));
  }
}

TEST(HostileGguf, FilesOfAnotherKindAreRecognised) {
  const std::pair<std::string, const char*> files[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"},
      {"<!DOCTYPE html><html>", "HTML page"},
      {"PK\x03\x04 some zip archive", "PyTorch checkpoint"},
      {"lmgg and an old version", "GGML file"},
      {std::string("\x10\0\0\0\0\0\0\0{\"a\":", 13), "safetensors"},
      {"just some text", "does not start with 'GGUF'"}};
  for (const auto& [bytes, hint] : files) EXPECT_THAT(Open(bytes).message(), HasSubstr(hint));
}

TEST(HostileGguf, BytesChangedOneByOne) {
  // Whatever one changed byte does, the result is a file or a sentence, and every tensor lies inside the buffer.
  const std::vector<std::string> words = {"a", "bc", "def"};
  const std::string good = GgufWriter()
                               .U32("n", 1)
                               .Strings("words", words)
                               .SetAlignment(32)
                               .AddTensor("a", DType::kQ4_0, {2, 32})
                               .AddTensor("b", DType::kF32, {3})
                               .Build();
  for (size_t i = 0; i < good.size(); ++i) {
    for (const unsigned change : {0x01u, 0x80u, 0xffu}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ change);
      const auto r = ParseGguf(std::as_bytes(std::span(bytes)), "x");
      if (!r.ok()) {
        EXPECT_FALSE(r.status().message().empty());
        continue;
      }
      for (const auto& t : (*r)->tensors()) {
        const auto* begin = reinterpret_cast<const char*>(t.data.data());
        EXPECT_GE(begin, bytes.data());
        EXPECT_LE(begin + t.data.size(), bytes.data() + bytes.size());
        EXPECT_EQ(t.data.size(), BytesOf(t.dtype, static_cast<size_t>(t.num_elements())));
      }
    }
  }
}

}  // namespace
}  // namespace farsight
