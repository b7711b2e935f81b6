#include "io/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/env.h"
#include "io/safetensors.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;

TEST(SafetensorsWriter, OurReaderReadsItBack) {
  const testing::TempDir dir;
  const std::vector<float> a = {1, -2, 3.5f, 0, 1e-8f, 7};
  const std::vector<uint16_t> b = {0x3f80, 0xc000};
  const std::string path = dir.Path("x.safetensors");
  const Status written = WriteSafetensors(path, {{"kind", "a \"quoted\" name\n"}, {"step", "12"}},
                                          {{"first.weight", DType::kF32, {2, 3}, std::as_bytes(std::span(a))},
                                           {"second", DType::kBF16, {2}, std::as_bytes(std::span(b))}});
  ASSERT_TRUE(written.ok()) << written.message();
  const auto file = OpenSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*(*file)->GetString("kind"), "a \"quoted\" name\n");
  EXPECT_EQ(*(*file)->GetString("step"), "12");
  const FileTensor* first = (*file)->FindTensor("first.weight");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(first->data.data()), first->data.size()),
            std::string(reinterpret_cast<const char*>(a.data()), 24));
  const FileTensor* second = (*file)->FindTensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->dtype, DType::kBF16);
  EXPECT_EQ((*file)->tensors().size(), 2u);
  // The data starts at a multiple of eight, so that tensors can be used where they lie.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data.data()) % 8, 0u);
}

TEST(SafetensorsWriter, RefusesWhatNoReaderWouldTake) {
  const testing::TempDir dir;
  const std::vector<float> a = {1, 2};
  const auto bytes = std::as_bytes(std::span(a));
  const std::string path = dir.Path("x.safetensors");
  EXPECT_THAT(WriteSafetensors(path, {}, {{"a", DType::kF32, {3}, bytes}}).message(), HasSubstr("asks for 12"));
  EXPECT_THAT(WriteSafetensors(path, {}, {{"a", DType::kF32, {2}, bytes}, {"a", DType::kF32, {2}, bytes}}).message(),
              HasSubstr("two tensors"));
  EXPECT_THAT(WriteSafetensors(path, {}, {{"a", DType::kQ8_0, {32}, bytes}}).message(), HasSubstr("no type"));
  EXPECT_FALSE(FileExists(path));
}

}  // namespace
}  // namespace farsight
