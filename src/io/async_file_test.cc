#include "io/async_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "io/env.h"
#include "io/hash.h"
#include "io/testing/fake_async_file.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;

// `count` buffers of `bytes`, each aligned for direct I/O.
class Memory {
 public:
  Memory(size_t count, size_t bytes) : bytes_(bytes), buffer_(AllocateHost(count * bytes + kIoAlignment).value()) {
    base_ = buffer_.data() +
            (RoundUpToIo(reinterpret_cast<uintptr_t>(buffer_.data())) - reinterpret_cast<uintptr_t>(buffer_.data()));
  }
  std::byte* at(size_t i) { return base_ + i * bytes_; }

 private:
  size_t bytes_;
  Buffer buffer_;
  std::byte* base_;
};

struct Mode {
  IoEngine engine;
  DirectIo direct;
};

std::string NameOf(const Mode& m) {
  return std::string(m.engine == IoEngine::kUring ? "Uring" : "Pool") +
         (m.direct == DirectIo::kOn ? "Direct" : "Cached");
}

class AsyncFileTest : public ::testing::TestWithParam<Mode> {
 protected:
  // Null when this machine lacks what the mode needs; the test is then skipped.
  std::unique_ptr<AsyncFile> Open(const std::string& path, int depth = 8) {
    if (!FileExists(path)) dir_.Write(path.substr(path.rfind('/') + 1), "");
    AsyncFileOptions o;
    o.engine = GetParam().engine;
    o.direct = GetParam().direct;
    o.queue_depth = depth;
    auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kReadWrite).value(), path, o);
    if (file.ok()) return std::move(file).value();
    EXPECT_EQ(file.status().code(), StatusCode::kUnavailable) << file.status().ToString();
    return nullptr;
  }
  testing::TempDir dir_;
};

TEST_P(AsyncFileTest, RandomRunsReadWhatWasWritten) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  constexpr size_t kRun = 8192, kRuns = 300;
  Memory out(kRuns, kRun), in(kRuns, kRun);
  std::mt19937 rng(3);
  std::vector<size_t> order(kRuns);
  for (size_t i = 0; i < kRuns; ++i) {
    order[i] = i;
    for (size_t j = 0; j < kRun; ++j) out.at(i)[j] = static_cast<std::byte>(rng());
  }
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<IoTicket> tickets;
  for (size_t at = 0; at < kRuns;) {
    std::vector<IoPiece> pieces;
    for (size_t n = 1 + rng() % 40; n > 0 && at < kRuns; --n, ++at) {
      pieces.push_back({order[at] * kRun, out.at(order[at]), kRun});
    }
    tickets.push_back(file->Start(IoKind::kWrite, pieces));
  }
  std::shuffle(tickets.begin(), tickets.end(), rng);
  for (const IoTicket t : tickets) ASSERT_TRUE(file->Wait(t).ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(file->Size().value(), kRuns * kRun);
  std::vector<IoPiece> pieces;
  for (size_t i = 0; i < kRuns; ++i) pieces.push_back({i * kRun, in.at(i), kRun});
  const IoTicket read = file->Start(IoKind::kRead, pieces);
  while (!file->Done(read)) {
  }
  ASSERT_TRUE(file->Wait(read).ok());
  for (size_t i = 0; i < kRuns; ++i) ASSERT_EQ(std::memcmp(in.at(i), out.at(i), kRun), 0) << i;
  EXPECT_EQ(file->counters().bytes_read, kRuns * kRun);
  EXPECT_EQ(file->counters().read_operations, (kRuns + 15) / 16) << "neighbours travel together, 16 at most";
}

TEST_P(AsyncFileTest, WhatIsLinedUpStartsOnAnyThreadOrWhenItIsWaitedFor) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  constexpr size_t kRun = 4096, kRuns = 40;  // more than the queue holds
  Memory out(kRuns, kRun), in(kRuns, kRun);
  std::vector<IoPiece> writes, reads;
  for (size_t i = 0; i < kRuns; ++i) {
    std::fill_n(out.at(i), kRun, static_cast<std::byte>(i + 1));
    writes.push_back({i * 2 * kRun, out.at(i), kRun});
    reads.push_back({i * 2 * kRun, in.at(i), kRun});
  }
  ASSERT_TRUE(file->Transfer(IoKind::kWrite, writes).ok());
  const IoTicket first = file->Queue(IoKind::kRead, std::span(reads).first(5));
  std::thread([&] { file->Submit(); }).join();
  while (!file->Done(first)) {
  }
  ASSERT_TRUE(file->Wait(first).ok());
  ASSERT_TRUE(file->Wait(file->Queue(IoKind::kRead, std::span(reads).subspan(5))).ok());
  for (size_t i = 0; i < kRuns; ++i) ASSERT_EQ(std::memcmp(in.at(i), out.at(i), kRun), 0) << i;
}

TEST_P(AsyncFileTest, MergesOnlyNeighboursInTheFile) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  ASSERT_TRUE(file->Resize(1 << 20).ok());
  Memory m(5, 4096);
  const IoPiece pieces[] = {
      {0, m.at(3), 4096}, {4096, m.at(0), 4096}, {12288, m.at(1), 4096}, {8192, m.at(2), 4096}, {12288, m.at(4), 4096}};
  ASSERT_TRUE(file->Transfer(IoKind::kRead, pieces).ok());
  EXPECT_EQ(file->counters().read_operations, 3u) << "0-8191, 12288, 8192-16383";
}

TEST_P(AsyncFileTest, AFileThatEndsTooSoonIsDataLossAndNamesThePlace) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  ASSERT_TRUE(file->Resize(8192 + 100).ok());
  Memory m(3, 4096);
  const IoPiece pieces[] = {{0, m.at(0), 4096}, {8192, m.at(1), 4096}, {1 << 20, m.at(2), 4096}};
  const Status status = file->Transfer(IoKind::kRead, pieces);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("ends at 8292; 3996 more bytes were expected")) << "the lowest piece's fault";
  EXPECT_TRUE(file->Transfer(IoKind::kRead, std::span(pieces, 1)).ok()) << "the file stays usable";
}

TEST_P(AsyncFileTest, AFullFileIsResourceExhausted) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small = {65536, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  Memory m(1, 65536);
  const IoPiece inside[] = {{0, m.at(0), 65536}};
  const IoPiece beyond[] = {{65536, m.at(0), 65536}};
  const Status fits = file->Transfer(IoKind::kWrite, inside);
  const Status full = file->Transfer(IoKind::kWrite, beyond);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_TRUE(fits.ok()) << fits.ToString();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.ToString();
  EXPECT_THAT(full.message(), HasSubstr("cannot write 65536 bytes at 65536 of '"));
}

TEST_P(AsyncFileTest, AnEmptyListIsDone) {
  const auto file = Open(dir_.Path("a"));
  if (file == nullptr) GTEST_SKIP();
  const IoTicket t = file->Start(IoKind::kRead, {});
  EXPECT_TRUE(file->Done(t));
  EXPECT_TRUE(file->Wait(t).ok());
}

TEST_P(AsyncFileTest, ClosingWaitsForWhatIsUnderWay) {
  Memory m(64, 65536);
  {
    const auto file = Open(dir_.Path("a"), 4);
    if (file == nullptr) GTEST_SKIP();
    std::memset(m.at(0), 7, 64 * 65536);
    std::vector<IoPiece> pieces;
    for (size_t i = 0; i < 64; ++i) pieces.push_back({i * 65536, m.at(i), 65536});
    file->Start(IoKind::kWrite, pieces);
  }
  EXPECT_EQ(ReadFileToString(dir_.Path("a"), 1 << 24).value(), std::string(64 * 65536, '\7'));
}

INSTANTIATE_TEST_SUITE_P(Engines, AsyncFileTest,
                         ::testing::Values(Mode{IoEngine::kUring, DirectIo::kOn},
                                           Mode{IoEngine::kUring, DirectIo::kOff},
                                           Mode{IoEngine::kThreads, DirectIo::kOn},
                                           Mode{IoEngine::kThreads, DirectIo::kOff}),
                         [](const auto& mode) { return NameOf(mode.param); });

// Calls that a test makes fail. Plain functions take no state, hence the counter here; each test resets it.
std::atomic<int> g_calls{0};

ssize_t ShortRead(int fd, const iovec* pieces, int, off_t offset) {
  if (g_calls++ % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return pread(fd, pieces[0].iov_base, std::min<size_t>(pieces[0].iov_len, 1000), offset);
}
ssize_t ShortWrite(int fd, const iovec* pieces, int, off_t offset) {
  if (g_calls++ % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return pwrite(fd, pieces[0].iov_base, std::min<size_t>(pieces[0].iov_len, 700), offset);
}
ssize_t BrokenRead(int, const iovec*, int, off_t) {
  errno = EIO;
  return -1;
}
ssize_t FullWrite(int, const iovec*, int, off_t) {
  errno = ENOSPC;
  return -1;
}
ssize_t NothingWritten(int, const iovec*, int, off_t) { return 0; }
int BrokenSync(int) {
  errno = g_calls++ == 0 ? EINTR : EIO;
  return -1;
}

std::unique_ptr<AsyncFile> WithCalls(const std::string& path, const IoCalls& calls) {
  AsyncFileOptions o;
  o.engine = IoEngine::kThreads;
  o.direct = DirectIo::kOff;
  o.calls = &calls;
  return OpenAsyncFile(OpenRegularFile(path, FileAccess::kReadWrite).value(), path, o).value();
}

TEST(AsyncFilePool, ShortAndInterruptedCallsAreContinued) {
  testing::TempDir dir;
  g_calls = 0;
  const IoCalls calls = {ShortRead, ShortWrite, fdatasync};
  const auto file = WithCalls(dir.Write("a", ""), calls);
  std::vector<std::byte> out(30000), in(30000);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256);
  const IoPiece w[] = {{0, out.data(), 10000}, {10000, out.data() + 10000, 1}, {10001, out.data() + 10001, 19999}};
  ASSERT_TRUE(file->Transfer(IoKind::kWrite, w).ok());
  const IoPiece r[] = {{0, in.data(), 3}, {3, in.data() + 3, 29997}};
  ASSERT_TRUE(file->Transfer(IoKind::kRead, r).ok());
  EXPECT_EQ(in, out);
  EXPECT_GT(file->counters().continued, 60u);
}

TEST(AsyncFilePool, EachFaultOfTheSystemGetsItsCodeAndSentence) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", std::string(8192, 'x'));
  std::vector<std::byte> bytes(4096);
  const IoPiece piece[] = {{4096, bytes.data(), 4096}};
  g_calls = 0;
  const IoCalls broken = {BrokenRead, FullWrite, BrokenSync};
  const auto file = WithCalls(path, broken);
  const Status read = file->Transfer(IoKind::kRead, piece);
  EXPECT_EQ(read.code(), StatusCode::kDataLoss);
  EXPECT_EQ(read.message(), "cannot read 4096 bytes at 4096 of '" + path + "': Input/output error");
  const Status write = file->Transfer(IoKind::kWrite, piece);
  EXPECT_EQ(write.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(write.message(), "cannot write 4096 bytes at 4096 of '" + path + "': No space left on device");
  EXPECT_EQ(file->Sync().code(), StatusCode::kDataLoss);
  const IoCalls nothing = {BrokenRead, NothingWritten, fdatasync};
  EXPECT_EQ(WithCalls(path, nothing)->Transfer(IoKind::kWrite, piece).code(), StatusCode::kResourceExhausted);
}

TEST(AsyncFileOpen, DirectRunsMustBeAligned) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", std::string(8192, 'x'));
  AsyncFileOptions o;
  o.direct = DirectIo::kOn;
  auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kReadWrite).value(), path, o);
  if (!file.ok()) GTEST_SKIP() << file.status().ToString();
  Memory m(1, 8192);
  for (const IoPiece& p : {IoPiece{1, m.at(0), 4096}, IoPiece{0, m.at(0) + 64, 4096}, IoPiece{0, m.at(0), 4095}}) {
    EXPECT_EQ((*file)->Transfer(IoKind::kRead, {&p, 1}).code(), StatusCode::kInvalidArgument);
  }
}

TEST(AsyncFileOpen, ARunBeyondEveryFileIsRefused) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", "x");
  AsyncFileOptions o;
  o.direct = DirectIo::kOff;
  const auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kRead).value(), path, o).value();
  std::byte b{};
  const IoPiece p = {UINT64_MAX - 4, &b, 1};
  EXPECT_EQ(file->Transfer(IoKind::kRead, {&p, 1}).code(), StatusCode::kInvalidArgument);
}

TEST(AsyncFileOpen, BadOptionsAreRefused) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", "x");
  for (const auto& [threads, depth] : {std::pair{0, 8}, {65, 8}, {4, 0}, {4, 5000}}) {
    AsyncFileOptions o;
    o.threads = threads;
    o.queue_depth = depth;
    const auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kRead).value(), path, o);
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  }
}

// From here on the process gets `error` from two system calls. False: the system has no such filter.
bool Forbid(uint32_t call, uint32_t other, uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {5, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What `run` returns in a process of its own; -1 where it does not return.
constexpr int kNoFilter = 77;
template <typename F>
int InChild(F run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AsyncFileOpen, WhereNoThreadMayStartThePoolIsUnavailable) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", "x");
  const int code = InChild([&] {
    if (!Forbid(SYS_clone, SYS_clone3, EAGAIN)) return kNoFilter;
    AsyncFileOptions o;
    o.engine = IoEngine::kThreads;
    const auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kRead).value(), path, o);
    const bool told = file.status().message() == "the system starts no thread to read and write '" + path + "'";
    return file.status().code() != StatusCode::kUnavailable ? 1 : told ? 0 : 2;
  });
  if (code == kNoFilter) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
}

// In a child without io_uring, as container runtimes forbid it, the pool serves.
TEST(AsyncFileOpen, WhereIoUringIsForbiddenThePoolServes) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", std::string(8192, 'x'));
  const int code = InChild([&] {
    if (!Forbid(SYS_io_uring_setup, SYS_io_uring_setup, EPERM)) return kNoFilter;
    AsyncFileOptions o;
    o.direct = DirectIo::kOff;
    o.engine = IoEngine::kUring;
    auto forced = OpenAsyncFile(OpenRegularFile(path, FileAccess::kRead).value(), path, o);
    if (forced.ok() || forced.status().code() != StatusCode::kUnavailable) return 1;
    o.engine = IoEngine::kAuto;
    auto file = OpenAsyncFile(OpenRegularFile(path, FileAccess::kRead).value(), path, o);
    if (!file.ok() || (*file)->engine() != "pread pool, cached") return 2;
    std::byte b{};
    const IoPiece p = {100, &b, 1};
    return (*file)->Transfer(IoKind::kRead, {&p, 1}).ok() && b == std::byte{'x'} ? 0 : 3;
  });
  if (code == kNoFilter) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
}

TEST(DirectFile, OnlyRegularFilesAreOpened) {
  testing::TempDir dir;
  EXPECT_EQ(OpenRegularFile(dir.Path("none"), FileAccess::kRead).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenRegularFile(dir.path(), FileAccess::kRead).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenRegularFile(dir.path(), FileAccess::kReadWrite).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenRegularFile("/dev/null", FileAccess::kRead).status().code(), StatusCode::kInvalidArgument);
}

TEST(DirectFile, ANewFileHasNoNameUntilItIsPublished) {
  testing::TempDir dir;
  const std::string path = dir.Path("new");
  {
    const auto dropped = NewFile::Create(path);
    ASSERT_TRUE(dropped.ok()) << dropped.status().ToString();
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  auto file = NewFile::Create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(write(file->fd(), "abc", 3), 3);
  EXPECT_FALSE(FileExists(path));
  ASSERT_TRUE(file->Publish().ok());
  EXPECT_EQ(ReadFileToString(path, 10).value(), "abc");
  auto second = NewFile::Create(path);
  ASSERT_TRUE(second.ok());
  const auto refused = second->Publish();
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFileToString(path, 10).value(), "abc") << "an existing file is never replaced";
  EXPECT_EQ(NewFile::Create(dir.Path("no/such/directory")).status().code(), StatusCode::kNotFound);
}

TEST(DirectFile, OneWriterAtATime) {
  testing::TempDir dir;
  const std::string path = dir.Write("a", "x");
  {
    const UniqueFd first = OpenRegularFile(path, FileAccess::kReadWrite).value();
    ASSERT_TRUE(LockForWriting(first, path).ok());
    const UniqueFd second = OpenRegularFile(path, FileAccess::kReadWrite).value();
    const Status status = LockForWriting(second, path);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "'" + path + "' is being written by another process or session");
  }
  const UniqueFd later = OpenRegularFile(path, FileAccess::kReadWrite).value();
  EXPECT_TRUE(LockForWriting(later, path).ok());
}

TEST(Checksum, IsXxh3AndSeesEveryBit) {
  std::vector<std::byte> bytes(16384);
  EXPECT_EQ(Checksum(std::span(bytes).first(0)), 0x2d06800538d394c2u) << "the published value for no bytes";
  const uint64_t zero = Checksum(bytes);
  for (size_t i = 0; i < bytes.size(); i += 97) {
    bytes[i] ^= std::byte{16};
    EXPECT_NE(Checksum(bytes), zero);
    bytes[i] ^= std::byte{16};
  }
}

TEST(FakeAsyncFile, ReadsArePoisonedUntilServedAndFaultsAreTheLowestPieces) {
  testing::FakeAsyncFile file;
  file.max_delay = 5;
  file.disk().bytes.assign(8192, std::byte{1});
  std::vector<std::byte> buffer(8192, std::byte{9});
  const IoPiece pieces[] = {{0, buffer.data(), 4096}, {4096, buffer.data() + 4096, 4096}};
  const IoTicket t = file.Start(IoKind::kRead, pieces);
  EXPECT_EQ(buffer[0], std::byte{0xa5});
  while (!file.Done(t)) {
  }
  EXPECT_TRUE(file.Wait(t).ok());
  EXPECT_EQ(buffer, file.disk().bytes);
  file.fault = [](IoKind, const IoPiece& p) { return p.offset == 0 ? OkStatus() : DataLoss("broken"); };
  EXPECT_EQ(file.Transfer(IoKind::kRead, pieces).code(), StatusCode::kDataLoss);
  file.fault = nullptr;
  file.capacity = 4096;
  EXPECT_EQ(file.Transfer(IoKind::kWrite, pieces).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace farsight
