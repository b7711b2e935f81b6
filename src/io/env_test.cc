#include "io/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

std::string Read(const std::string& path) {
  auto r = ReadFileToString(path, 1 << 20);
  return r.ok() ? *r : "<" + r.status().message() + ">";
}

TEST(MappedFile, ShowsTheBytes) {
  const TempDir dir;
  const auto file = MappedFile::Open(dir.Write("a", std::string("x\0y", 3)));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto bytes = (*file)->bytes();
  ASSERT_EQ(bytes.size(), 3u);
  EXPECT_EQ(bytes[0], std::byte{'x'});
  EXPECT_EQ(bytes[1], std::byte{0});
  EXPECT_EQ(bytes[2], std::byte{'y'});
}

TEST(MappedFile, StaysReadableWhenTheNameIsGone) {
  const TempDir dir;
  const auto file = MappedFile::Open(dir.Write("a", "still here"));
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(dir.Path("a"));
  EXPECT_EQ((*file)->bytes()[9], std::byte{'e'});
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TempDir dir;
  const auto missing = MappedFile::Open(dir.Path("none"));
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("none"));

  const auto empty = MappedFile::Open(dir.Write("empty", ""));
  EXPECT_EQ(empty.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(empty.status().message(), HasSubstr("is empty"));

  const auto directory = MappedFile::Open(dir.path());
  EXPECT_EQ(directory.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(directory.status().message(), HasSubstr("is a directory"));

  ASSERT_EQ(mkfifo(dir.Path("pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::Open(dir.Path("pipe"));  // must not wait for a writer
  EXPECT_EQ(pipe.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pipe.status().message(), HasSubstr("is a pipe"));

  const auto device = MappedFile::Open("/dev/zero");
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(device.status().message(), HasSubstr("is a device"));
}

TEST(ReadFileToString, KeepsEveryByteAndTheLimit) {
  const TempDir dir;
  std::string content(200'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 + i / 256);
  const std::string path = dir.Write("a", content);
  EXPECT_EQ(Read(path), content);
  EXPECT_TRUE(ReadFileToString(path, content.size()).ok());
  const auto over = ReadFileToString(path, content.size() - 1);
  EXPECT_EQ(over.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(over.status().message(), HasSubstr("199999"));
  EXPECT_EQ(ReadFileToString("/dev/zero", 1000).status().code(), StatusCode::kResourceExhausted);
}

TEST(ReadFileToString, SaysWhyNot) {
  const TempDir dir;
  EXPECT_EQ(ReadFileToString(dir.Path("none"), 10).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(ReadFileToString(dir.path(), 10).ok());
  const auto empty = ReadFileToString(dir.Write("empty", ""), 10);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->empty());
}

TEST(WriteFileAtomically, ReplacesAndLeavesNothingBehind) {
  const TempDir dir;
  const std::string path = dir.Path("out");
  ASSERT_TRUE(WriteFileAtomically(path, "first").ok());
  EXPECT_EQ(Read(path), "first");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto old = MappedFile::Open(path);
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(WriteFileAtomically(path, "second, longer").ok());
  EXPECT_EQ(Read(path), "second, longer");
  EXPECT_EQ((*old)->bytes().size(), 5u) << "a reader of the old file keeps it";
  EXPECT_EQ((*old)->bytes()[0], std::byte{'f'});
  struct stat st = {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0600u) << "permissions are kept";
  size_t entries = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dir.path())) ++entries;
  EXPECT_EQ(entries, 1u);
}

TEST(WriteFileAtomically, FollowsLinksAndSparesDevices) {
  const TempDir dir;
  dir.Write("real", "old");
  std::filesystem::create_symlink("real", dir.Path("link"));
  ASSERT_TRUE(WriteFileAtomically(dir.Path("link"), "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(dir.Path("link")));
  EXPECT_EQ(Read(dir.Path("real")), "new");
  ASSERT_TRUE(WriteFileAtomically("/dev/null", "gone").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(WriteFileAtomically, RefusesDirectories) {
  const TempDir dir;
  EXPECT_EQ(WriteFileAtomically(dir.path(), "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteFileAtomically(dir.Path("no/such/file"), "x").code(), StatusCode::kNotFound);
}

TEST(CheckWritable, TellsWhatWritingWouldAndLeavesNothingBehind) {
  const TempDir dir;
  EXPECT_EQ(CheckWritable(dir.path()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckWritable(dir.Path("no/such/file")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(CheckWritable("/dev/null").ok());
  EXPECT_TRUE(CheckWritable(dir.Path("new")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const std::string path = dir.Write("old", "kept");
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_EQ(Read(path), "kept");
}

TEST(Paths, AreTold) {
  const TempDir dir;
  dir.Write("a", "");
  EXPECT_TRUE(IsDirectory(dir.path()));
  EXPECT_FALSE(IsDirectory(dir.Path("a")));
  EXPECT_TRUE(FileExists(dir.Path("a")));
  EXPECT_FALSE(FileExists(dir.Path("b")));
}

}  // namespace
}  // namespace farsight
