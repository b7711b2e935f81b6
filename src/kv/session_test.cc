#include "kv/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <utility>

#include "io/env.h"
#include "io/hash.h"
#include "io/testing/fake_async_file.h"
#include "io/testing/temp_dir.h"
#include "kv/testing/toy_model.h"

namespace farsight {
namespace {

using testing::FakeAsyncFile;
using testing::FakeDisk;
using ::testing::HasSubstr;
using testing::Mix;
using testing::ToyModel;
using testing::ToySequence;
using testing::ToyShape;
using testing::ToyTokens;

ToyShape Shape() {
  ToyShape shape;
  shape.num_blocks = 128;
  shape.summary_row_bytes = 4096;
  return shape;
}

SessionHeader Header() {
  SessionHeader h;
  h.geometry = Shape().geometry();
  h.block_tokens = 4;
  h.head_dim = 64;
  h.page_layout = 3;
  h.summary_layout = 5;
  h.model_fingerprint[0] = 0xab;
  h.model_name = "toy";
  return h;
}

// Summaries that follow from the tokens of a block, as a model's do.
class Rows {
 public:
  explicit Rows(const SequenceCache* cache) : cache_(cache) {}
  void Get(int32_t block, std::span<std::byte> row) const {
    const auto blocks = cache_->blocks();
    const auto b = static_cast<size_t>(std::find(blocks.begin(), blocks.end(), block) - blocks.begin());
    uint64_t hash = b;
    for (size_t t = b * 4; t < std::min(cache_->tokens().size(), b * 4 + 4); ++t) {
      hash = Mix(hash + static_cast<uint64_t>(cache_->tokens()[t]));
    }
    std::memcpy(row.data(), &hash, sizeof(hash));
  }

 private:
  const SequenceCache* cache_;
};

// A model with a sequence that lives in a session.
struct Player {
  explicit Player(std::unique_ptr<SessionFile> s, int64_t slots = 60, uint32_t seed = 1)
      : session(std::move(s)), model(Shape(), slots, NewScratch(seed)), seq(model.NewSequence()) {
    store = model.tiers->AddStore(&session->store()).value();
  }
  static std::unique_ptr<AsyncFile> NewScratch(uint32_t seed) {
    auto file = std::make_unique<FakeAsyncFile>(std::make_shared<FakeDisk>(), seed);
    file->max_delay = 10;
    return file;
  }
  ~Player() { Close(); }
  void Close() {
    seq.cache.Truncate(0);
    EXPECT_TRUE(model.tiers->Follow(model.pool).ok());
    EXPECT_TRUE(model.tiers->RemoveStore(store).ok());
  }
  Status Say(const std::vector<int32_t>& tokens) { return model.Step({{&seq, tokens}}); }
  Status Save(std::string_view settings = "{}") {
    const Rows rows(&seq.cache);
    return SaveSequence(session.get(), model.tiers.get(), store, seq.cache.tokens(), seq.cache.blocks(), settings,
                        [&](int32_t b, std::span<std::byte> row) { rows.Get(b, row); });
  }
  // The first n tokens of the session become the sequence.
  Status Resume(int64_t n) {
    std::vector<BlockCopy> copies;
    const std::span<const int32_t> tokens(session->content().tokens);
    EXPECT_TRUE(seq.cache.Append(tokens.first(static_cast<size_t>(n)), &copies));
    FS_RETURN_IF_ERROR(model.tiers->Follow(model.pool));
    const Rows rows(&seq.cache);
    return LoadSequence(session.get(), model.tiers.get(), store, n, seq.cache.blocks(),
                        [&](int32_t b, std::span<const std::byte> row) {
                          std::vector<std::byte> want(row.size());
                          rows.Get(b, want);
                          summaries += n % 4 != 0 && b == seq.cache.blocks().back() ? 0 : 1;
                          summaries_right += std::memcmp(row.data(), want.data(), row.size()) == 0 ? 1 : 0;
                        });
  }

  std::unique_ptr<SessionFile> session;
  ToyModel model;
  ToySequence seq;
  int32_t store = -1;
  int summaries = 0, summaries_right = 0;
};

std::shared_ptr<FakeDisk> EmptyDisk() {
  auto disk = std::make_shared<FakeDisk>();
  disk->bytes = SessionFile::EmptyFile(Header());
  return disk;
}

StatusOr<std::unique_ptr<SessionFile>> OpenDisk(std::shared_ptr<FakeDisk> disk,
                                                FileAccess access = FileAccess::kReadWrite, int delay = 5) {
  auto file = std::make_unique<FakeAsyncFile>(std::move(disk), 7);
  file->max_delay = delay;
  return SessionFile::FromFile(std::move(file), access);
}

std::shared_ptr<FakeDisk> DiskOf(std::vector<std::byte> bytes) {
  auto disk = std::make_shared<FakeDisk>();
  disk->bytes = std::move(bytes);
  return disk;
}

// --- Saving and going on.

TEST(Session, ResumedEqualsUninterrupted) {
  ToyModel whole(Shape(), 100, Player::NewScratch(1));
  ToySequence w = whole.NewSequence();
  const auto disk = EmptyDisk();
  uint64_t answer = 0;
  // Cut at every place of a block and after many commits.
  for (int life = 0; life < 12; ++life) {
    Player p(OpenDisk(disk).value(), 46 + life, static_cast<uint32_t>(life));
    const auto n = static_cast<int64_t>(p.session->content().tokens.size());
    ASSERT_EQ(n, w.cache.length());
    ASSERT_TRUE(p.Resume(n).ok());
    EXPECT_EQ(p.model.tiers->Total().bytes_read, 0u) << "opening reads no page";
    EXPECT_EQ(p.summaries_right, static_cast<int>(p.seq.cache.blocks().size()));
    p.seq.answer = answer;
    for (int turn = 0; turn < 1 + life % 3; ++turn) {
      for (int i = 0; i < 3 + life; ++i) {
        const auto tokens = ToyTokens(i == 0 ? 3 : 1, static_cast<uint64_t>(life * 100 + turn * 50 + i));
        const Status status = p.Say(tokens);
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_TRUE(whole.Step({{&w, tokens}}).ok());
        ASSERT_EQ(p.seq.answer, w.answer) << "life " << life;
      }
      const Status saved = p.Save("settings " + std::to_string(life));
      ASSERT_TRUE(saved.ok()) << saved.ToString();
    }
    answer = p.seq.answer;
    EXPECT_EQ(p.session->content().settings, "settings " + std::to_string(life));
    EXPECT_TRUE(life <= 4 || p.model.tiers->Total().missed > 0);
  }
  const auto session = OpenDisk(disk, FileAccess::kRead).value();
  EXPECT_TRUE(std::equal(w.cache.tokens().begin(), w.cache.tokens().end(), session->content().tokens.begin(),
                         session->content().tokens.end()));
  const SessionReport report = VerifyOpenSession(session.get());
  EXPECT_EQ(report.num_faults, 0u) << report.faults[0];
  EXPECT_EQ(report.pages, w.cache.blocks().size() * 6);
  EXPECT_EQ(report.summaries, w.cache.blocks().size());
}

TEST(Session, ABeginningInsideABlockIsReusedAndTheRestReplaced) {
  const auto disk = EmptyDisk();
  {
    Player p(OpenDisk(disk).value());
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(p.Say(ToyTokens(4, i)).ok());
    ASSERT_TRUE(p.Save().ok());
  }
  const std::vector<int32_t> old = OpenDisk(disk, FileAccess::kRead).value()->content().tokens;
  for (const int64_t keep : {40, 38, 37, 33, 32, 5, 4, 3, 0}) {
    const auto copy = DiskOf(disk->bytes);
    Player p(OpenDisk(copy).value());
    ASSERT_TRUE(p.Resume(keep).ok());
    ToyModel fresh(Shape(), 100, Player::NewScratch(1));
    ToySequence f = fresh.NewSequence();
    std::vector<int32_t> start(old.begin(), old.begin() + keep);
    if (keep > 0) {
      for (size_t at = 0; at < start.size(); at += 4) {
        ASSERT_TRUE(fresh
                        .Step({{&f,
                                {start.begin() + static_cast<int64_t>(at),
                                 start.begin() + static_cast<int64_t>(std::min(at + 4, start.size()))}}})
                        .ok());
      }
    }
    f.answer = 0;
    for (uint64_t i = 0; i < 9; ++i) {
      ASSERT_TRUE(p.Say(ToyTokens(1, 900 + i)).ok());
      ASSERT_TRUE(fresh.Step({{&f, ToyTokens(1, 900 + i)}}).ok());
      ASSERT_EQ(p.seq.answer, f.answer) << "kept " << keep;
    }
    ASSERT_TRUE(p.Save().ok());
    const auto session = OpenDisk(copy, FileAccess::kRead).value();
    EXPECT_EQ(session->content().tokens.size(), static_cast<size_t>(keep) + 9);
    EXPECT_EQ(VerifyOpenSession(session.get()).num_faults, 0u);
  }
}

TEST(Session, ASequenceThatBeganInTheScratchFileMovesIn) {
  const auto disk = EmptyDisk();
  uint64_t answer = 0;
  {
    Player p(OpenDisk(disk).value(), 50);
    for (uint64_t i = 0; i < 41; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, i)).ok());
    EXPECT_EQ(p.model.tiers->place(p.seq.cache.blocks()[0]).store, 0);
    ASSERT_TRUE(p.Save().ok());
    for (const int32_t b : p.seq.cache.blocks()) {
      EXPECT_EQ(p.model.tiers->place(b).store, p.store);
    }
    EXPECT_EQ(p.model.tiers->store(0).num_used(), 0);
    ASSERT_TRUE(p.Say(ToyTokens(1, 99)).ok());
    answer = p.seq.answer;
  }
  Player q(OpenDisk(disk).value(), 50);
  ASSERT_TRUE(q.Resume(41).ok());
  ToyModel whole(Shape(), 100, Player::NewScratch(1));
  ToySequence w = whole.NewSequence();
  for (uint64_t i = 0; i < 41; ++i) ASSERT_TRUE(whole.Step({{&w, ToyTokens(1, i)}}).ok());
  q.seq.answer = w.answer;
  ASSERT_TRUE(q.Say(ToyTokens(1, 99)).ok());
  EXPECT_EQ(q.seq.answer, answer);
}

TEST(Session, WritingBehindIntoTheSessionLeavesOnlyTheLastBlockForTheSave) {
  const auto disk = EmptyDisk();
  Player p(OpenDisk(disk).value(), 60);
  p.model.home = p.store;
  for (uint64_t i = 0; i < 41; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, i)).ok());
  EXPECT_EQ(p.model.tiers->store(0).num_used(), 0);
  ASSERT_TRUE(p.model.tiers->Flush(p.seq.cache.blocks().first(10)).ok());
  const uint64_t before = p.model.tiers->Total().bytes_written;
  EXPECT_EQ(before, 10 * 6 * Shape().page_bytes);
  ASSERT_TRUE(p.Save().ok());
  EXPECT_EQ(p.model.tiers->Total().bytes_written - before, 6 * Shape().page_bytes) << "the unfilled block";
  const int32_t blocks = p.session->store().num_blocks();
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(p.Save().ok());
  }
  EXPECT_EQ(p.model.tiers->Total().bytes_written - before, 6 * Shape().page_bytes) << "nothing is new";
  EXPECT_EQ(p.session->store().num_blocks(), blocks) << "saving again and again does not grow the file";
  EXPECT_LT(p.session->store().end(), 13 * kSessionPage + 3 * GroupBytes(Header().geometry));
  EXPECT_EQ(VerifyOpenSession(p.session.get()).num_faults, 0u);
}

TEST(Session, TwoSequencesCannotHoldTheSamePlace) {
  const auto disk = EmptyDisk();
  Player p(OpenDisk(disk).value());
  ASSERT_TRUE(p.Say(ToyTokens(4, 1)).ok());
  ASSERT_TRUE(p.Save().ok());
  ToySequence other = p.model.NewSequence();
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(other.cache.Append(p.session->content().tokens, &copies));
  ASSERT_TRUE(p.model.tiers->Follow(p.model.pool).ok());
  const Status status = LoadSequence(p.session.get(), p.model.tiers.get(), p.store, 4, other.cache.blocks(),
                                     [](int32_t, std::span<const std::byte>) {});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(p.model.tiers->RemoveStore(p.store).code(), StatusCode::kUnavailable) << "a block still lives there";
}

// --- Power cuts.

TEST(Session, CutAnywhereTheFileIsAsBeforeOrAsAfter) {
  const auto disk = EmptyDisk();
  const std::vector<std::byte> start = disk->bytes;
  disk->keep_log = true;
  std::vector<std::vector<int32_t>> states = {{}};
  std::vector<size_t> ends = {0};  // events until the state is durable
  {
    Player p(OpenDisk(disk).value(), 60);
    for (int turn = 0; turn < 8; ++turn) {
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, static_cast<uint64_t>(turn * 10 + i))).ok());
      if (turn == 5) p.seq.cache.Truncate(9);  // later commits let go of blocks and use their places again
      ASSERT_TRUE(p.Save("turn " + std::to_string(turn)).ok());
      states.emplace_back(p.seq.cache.tokens().begin(), p.seq.cache.tokens().end());
      ends.push_back(disk->log.size());
    }
  }
  std::mt19937 rng(11);
  size_t before = 0, after = 0;
  const auto check = [&](size_t events) {
    const auto session = OpenDisk(DiskOf(FakeDisk::AfterCut(start, disk->log, events, &rng)));
    ASSERT_TRUE(session.ok()) << events << ": " << session.status().ToString();
    size_t durable = 0;
    while (durable + 1 < ends.size() && ends[durable + 1] <= events) ++durable;
    const bool old = (*session)->content().tokens == states[durable] && (*session)->sequence() == durable + 1;
    const bool next = durable + 1 < states.size() && (*session)->content().tokens == states[durable + 1] &&
                      (*session)->sequence() == durable + 2;
    EXPECT_TRUE(old || next) << events;
    (old ? before : after) += 1;
    const SessionReport report = VerifyOpenSession(session->get());
    EXPECT_EQ(report.num_faults, 0u) << events << ": " << report.faults[0];
  };
  for (size_t events = 0; events <= disk->log.size(); ++events) check(events);  // every write and every sync
  for (int i = 0; i < 200; ++i) check(rng() % (disk->log.size() + 1));
  EXPECT_GT(before, 50u);
  EXPECT_GT(after, 2u) << "a record that reached the disk before its sync returned";
}

// The same with a real process and a real file.
TEST(Session, KilledAnywhereTheFileOpensAndIsWhole) {
  testing::TempDir dir;
  const std::string path = dir.Path("s");
  {
    const auto created = SessionFile::Create(path, Header(), {});
    ASSERT_TRUE(created.ok()) << created.status().ToString();
  }
  std::mt19937 rng(3);
  uint64_t last = 1;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto session = SessionFile::Open(path, FileAccess::kReadWrite, {});
      if (!session.ok()) _exit(1);
      auto* p = new Player(std::move(session).value(), 60);
      const auto n = static_cast<int64_t>(p->session->content().tokens.size());
      if (!p->Resume(std::min<int64_t>(n, 90)).ok()) _exit(2);
      for (uint64_t i = 0;; ++i) {
        if (p->seq.cache.length() > 150) p->seq.cache.Truncate(21);
        if (!p->Say(ToyTokens(1 + i % 2, i)).ok() || !p->Save().ok()) _exit(3);
      }
    }
    usleep(20000 + static_cast<useconds_t>(rng() % 60000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    const auto report = VerifySession(path);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->num_faults, 0u) << report->faults[0];
    EXPECT_GE(report->info.sequence, last);
    last = report->info.sequence;
  }
  EXPECT_GT(last, 5u) << "the children did save";
}

TEST(Session, ADiskFullAtAnyWriteLeavesTheFileAsItWasAndTheSequenceGoesOn) {
  const auto disk = EmptyDisk();
  {
    Player p(OpenDisk(disk).value());
    for (uint64_t i = 0; i < 18; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, i)).ok());
    ASSERT_TRUE(p.Save().ok());
  }
  const std::vector<std::byte> start = disk->bytes;
  int refused = 0;
  for (int fail_at = 0; fail_at < 60; ++fail_at) {
    const auto copy = DiskOf(start);
    auto file = std::make_unique<FakeAsyncFile>(copy, 1);
    FakeAsyncFile* raw = file.get();
    Player p(SessionFile::FromFile(std::move(file), FileAccess::kReadWrite).value());
    ASSERT_TRUE(p.Resume(18).ok());
    for (uint64_t i = 0; i < 7; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, 50 + i)).ok());
    int writes = 0;
    raw->fault = [&](IoKind kind, const IoPiece&) {
      return kind == IoKind::kWrite && writes++ >= fail_at
                 ? ResourceExhausted("cannot write 'fake': No space left on device")
                 : OkStatus();
    };
    const Status status = p.Save();
    raw->fault = nullptr;
    const auto reopened = OpenDisk(copy, FileAccess::kRead);
    ASSERT_TRUE(reopened.ok()) << reopened.status().ToString();
    EXPECT_EQ(VerifyOpenSession(reopened->get()).num_faults, 0u) << fail_at;
    EXPECT_TRUE(p.Say(ToyTokens(1, 70)).ok()) << "the sequence goes on";
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "cannot write 'fake': No space left on device");
    const Status again = p.Save();
    if (again.ok()) {
      EXPECT_EQ((*reopened)->content().tokens.size(), 18u);
      EXPECT_EQ(OpenDisk(copy, FileAccess::kRead).value()->content().tokens.size(), 26u);
    } else {
      EXPECT_EQ(again.message(), "'fake' did not finish a commit; it must be opened again");
    }
    EXPECT_EQ(VerifyOpenSession(OpenDisk(copy, FileAccess::kRead).value().get()).num_faults, 0u) << fail_at;
  }
  EXPECT_GT(refused, 10);
}

// --- Files that are not as they should be.

std::vector<std::byte> SavedBytes() {
  const auto disk = EmptyDisk();
  Player p(OpenDisk(disk).value());
  for (uint64_t i = 0; i < 18; ++i) EXPECT_TRUE(p.Say(ToyTokens(1, i)).ok());
  EXPECT_TRUE(p.Save("{\"seed\":7}").ok());
  return disk->bytes;
}

Status OpenBytes(std::vector<std::byte> bytes) {
  return OpenDisk(DiskOf(std::move(bytes)), FileAccess::kRead, 0).status();
}

TEST(Session, AFlippedBitIsFoundWhereverItIs) {
  const std::vector<std::byte> good = SavedBytes();
  const auto flip = [&](uint64_t at) {
    std::vector<std::byte> bytes = good;
    bytes[static_cast<size_t>(at)] ^= std::byte{2};
    return bytes;
  };
  EXPECT_EQ(OpenBytes(flip(3)).message(), "'fake' is not a session file");
  EXPECT_EQ(OpenBytes(flip(8)).message(), "'fake' is a session of version 3; this program reads version 1");
  EXPECT_EQ(OpenBytes(flip(100)).message(), "'fake' is a session whose header does not match its checksum");
  // Commit 2 lies in record 0; without it the file is as after commit 1.
  const auto older = OpenDisk(DiskOf(flip(kSessionPage + 50)), FileAccess::kRead);
  ASSERT_TRUE(older.ok());
  EXPECT_EQ((*older)->content().tokens.size(), 0u);
  std::vector<std::byte> none = flip(kSessionPage + 50);
  none[2 * kSessionPage + 20] ^= std::byte{1};
  EXPECT_EQ(OpenBytes(none).message(), "'fake' has no intact commit record");

  const auto session = OpenDisk(DiskOf(good), FileAccess::kRead).value();
  const int32_t block = session->content().file_blocks[2];
  const auto page =
      VerifyOpenSession(OpenDisk(DiskOf(flip(session->store().PageOffset(block, 1, 1) + 9))).value().get());
  ASSERT_EQ(page.num_faults, 1u);
  EXPECT_THAT(page.faults[0], HasSubstr("the KV page of block 2, layer 1, head 1, at "));
  const auto row = VerifyOpenSession(OpenDisk(DiskOf(flip(session->store().SummaryOffset(block)))).value().get());
  ASSERT_EQ(row.num_faults, 1u);
  EXPECT_THAT(row.faults[0], HasSubstr("the summaries of block 2, at "));

  // In a running sequence the broken block fails when it is asked for, the broken summary when the session is resumed.
  Player p(OpenDisk(DiskOf(flip(session->store().SummaryOffset(block)))).value());
  EXPECT_THAT(p.Resume(18).message(), HasSubstr("the summaries of block 2"));
}

TEST(Session, NoFlippedBitOfRecordsAndIndexGoesUnseen) {
  const std::vector<std::byte> good = SavedBytes();
  const auto whole = OpenDisk(DiskOf(good), FileAccess::kRead).value();
  std::mt19937 rng(2);
  for (int i = 0; i < 600; ++i) {
    std::vector<std::byte> bytes = good;
    const size_t at = rng() % (3 * kSessionPage);
    bytes[at] ^= static_cast<std::byte>(1u << rng() % 8);
    const auto session = OpenDisk(DiskOf(bytes), FileAccess::kRead, 0);
    if (!session.ok()) {
      EXPECT_FALSE(session.status().message().empty());
      continue;
    }
    EXPECT_TRUE((*session)->content().tokens == whole->content().tokens || (*session)->sequence() == 1) << at;
  }
}

TEST(Session, CutShortFilesAreNamedAsSuch) {
  const std::vector<std::byte> good = SavedBytes();
  for (const size_t n : {size_t{0}, size_t{1}, size_t{4095}}) {
    EXPECT_EQ(OpenBytes({good.begin(), good.begin() + static_cast<int64_t>(n)}).message(),
              "'fake' is not a session file");
  }
  for (const size_t n : {size_t{4096}, size_t{12287}}) {
    EXPECT_THAT(OpenBytes({good.begin(), good.begin() + static_cast<int64_t>(n)}).message(),
                HasSubstr("was cut short"));
  }
  for (size_t n = kSessionDataStart; n < good.size(); n += 4096) {
    const auto session = OpenDisk(DiskOf({good.begin(), good.begin() + static_cast<int64_t>(n)}), FileAccess::kRead);
    if (session.ok()) {
      EXPECT_EQ((*session)->sequence(), 1u) << "the first commit needs only the start";
    } else {
      EXPECT_EQ(session.status().message(),
                "'fake' was cut short: it has " + std::to_string(n) + " bytes, its last commit needs " +
                    (n < kSessionDataStart + kSessionPage ? std::to_string(good.size()) : "?"));
    }
  }
}

TEST(Session, FilesOfOthersAreRefusedInOneSentence) {
  testing::TempDir dir;
  const auto open = [&](const std::string& path) { return SessionFile::Open(path, FileAccess::kRead, {}).status(); };
  EXPECT_EQ(open(dir.Path("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(open(dir.path()).code(), StatusCode::kInvalidArgument);
  const std::string gguf = dir.Write("m.gguf", "GGUF" + std::string(100000, 'x'));
  EXPECT_EQ(open(gguf).message(), "'" + gguf + "' is not a session file");
  EXPECT_EQ(open(dir.Write("short", "FARSKVS\n")).code(), StatusCode::kInvalidArgument);
  const std::string path = dir.Path("s");
  ASSERT_TRUE(SessionFile::Create(path, Header(), {}).ok());
  EXPECT_EQ(SessionFile::Create(path, Header(), {}).status().message(),
            "'" + path + "' exists; a new file was expected");
  EXPECT_EQ(SessionFile::Create(dir.Path("no/s"), Header(), {}).status().code(), StatusCode::kNotFound);
  SessionHeader bad = Header();
  bad.kv_dtype = DType::kQ4_0;
  EXPECT_EQ(SessionFile::Create(dir.Path("t"), bad, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Session, OneWriterAndAnyReaders) {
  testing::TempDir dir;
  const std::string path = dir.Path("s");
  auto writer = SessionFile::Create(path, Header(), {});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  const auto second = SessionFile::Open(path, FileAccess::kReadWrite, {});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(second.status().message(), "'" + path + "' is being written by another process or session");
  Player p(std::move(writer).value());
  for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(p.Say(ToyTokens(1, i)).ok());
  ASSERT_TRUE(p.Save("x").ok());
  const auto info = DescribeSession(path);
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(info->tokens, 9u);
  EXPECT_EQ(info->blocks, 3u);
  EXPECT_EQ(info->sequence, 2u);
  EXPECT_EQ(info->settings, "x");
  EXPECT_EQ(info->header.model_name, "toy");
  EXPECT_EQ(info->block_bytes, 3 * (6 * 4096 + 4096u));
  auto reader = SessionFile::Open(path, FileAccess::kRead, {});
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->Commit({}).code(), StatusCode::kInvalidArgument);
  // A reader's sequence goes on in the scratch file.
  Player q(std::move(reader).value());
  ASSERT_TRUE(q.Resume(9).ok());
  for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(q.Say(ToyTokens(1, 20 + i)).ok());
  EXPECT_EQ(q.Save().message(), "'" + path + "' was opened for reading");
  EXPECT_EQ(VerifySession(path)->num_faults, 0u);
}

TEST(Session, AnotherModelOrLayoutIsNamed) {
  const auto session = OpenDisk(EmptyDisk()).value();
  EXPECT_TRUE(session->CheckModel(Header()).ok());
  SessionHeader other = Header();
  other.model_name = "other";
  other.model_fingerprint[1] = 1;
  EXPECT_EQ(session->CheckModel(other).message(),
            "'fake' was written by the model 'toy' (ab0000000000); this is 'other' (ab0100000000)");
  other = Header();
  other.kv_dtype = DType::kBF16;
  EXPECT_EQ(session->CheckModel(other).message(),
            "'fake' was written with other settings: blocks of 4 tokens in F16, layout 3/5; this run uses 4 in BF16, "
            "layout 3/5");
}

// --- Files that lie, with sums that are right.

struct Liar {
  SessionHeader header = Header();
  std::vector<uint64_t> groups = {16384};
  SessionContent content;
  SessionCommit commit;

  Liar() {
    content.tokens = {1, 2, 3, 4, 5};
    content.settings = "abc";
    content.file_blocks = {0, 1};
    content.summary_sums = {1, 2};
    content.page_sums.assign(12, 9);
    commit.sequence = 2;
    commit.index_offset = kSessionDataStart;
    commit.num_tokens = 5;
    commit.file_bytes = 16384 + GroupBytes(header.geometry);
  }
  std::vector<std::byte> Bytes() {
    std::vector<std::byte> bytes = EncodeSessionHeader(header, &commit.header_sum);
    std::vector<std::byte> index = EncodeSessionIndex(header, 2, groups, content);
    if (cut > 0) index.resize(index.size() - cut);
    commit.index_bytes = index.size();
    commit.index_sum = Checksum(index);
    bytes.resize(16384 + GroupBytes(header.geometry));
    const auto record = EncodeSessionCommit(commit);
    std::memcpy(bytes.data() + kSessionPage * (1 + commit.sequence % 2), record.data(), record.size());
    std::memcpy(bytes.data() + kSessionDataStart, index.data(), index.size());
    return bytes;
  }
  size_t cut = 0;
};

TEST(Session, LiesInTheIndexAreRefused) {
  EXPECT_TRUE(OpenBytes(Liar().Bytes()).ok());
  const auto message = [](const std::function<void(Liar*)>& lie) {
    Liar l;
    lie(&l);
    const Status status = OpenBytes(l.Bytes());
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    return status.message();
  };
  EXPECT_THAT(message([](Liar* l) { l->groups = {16384 - 4096}; }), HasSubstr("overlaps at 12288"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {16384, 16384}; }), HasSubstr("overlaps at 16384"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {16384 + 4096}; }), HasSubstr("outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {16385}; }), HasSubstr("outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {0}; }), HasSubstr("outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {UINT64_MAX - 4095}; }), HasSubstr("outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->groups = {}; }), HasSubstr("names block 0; it has 0"));
  EXPECT_THAT(message([](Liar* l) { l->content.file_blocks = {0, 4}; }), HasSubstr("names block 4; it has 4"));
  EXPECT_THAT(message([](Liar* l) { l->content.file_blocks = {0, -1}; }), HasSubstr("names block 2147483647"));
  EXPECT_THAT(message([](Liar* l) { l->content.file_blocks = {1, 1}; }), HasSubstr("names block 1 twice"));
  EXPECT_THAT(message([](Liar* l) { l->content.tokens[2] = -7; }), HasSubstr("negative token id, -7"));
  EXPECT_THAT(message([](Liar* l) { l->commit.num_tokens = 6; }), HasSubstr("contradicts its commit record"));
  EXPECT_THAT(message([](Liar* l) { l->content.tokens.resize(9), l->commit.num_tokens = 9; }),
              HasSubstr("contradicts its commit record"));
  EXPECT_THAT(message([](Liar* l) { l->cut = 8; }), HasSubstr("which its counts contradict"));
  EXPECT_THAT(message([](Liar* l) { l->commit.sequence = 4; }), HasSubstr("contradicts its commit record"));
  EXPECT_THAT(message([](Liar* l) { l->commit.index_offset = UINT64_MAX - 4095; }),
              HasSubstr("index outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->commit.index_offset = 4096; }), HasSubstr("index outside its data"));
  EXPECT_THAT(message([](Liar* l) { l->commit.file_bytes = UINT64_MAX; }), HasSubstr("was cut short"));
  EXPECT_THAT(message([](Liar* l) { l->header.geometry.page_bytes = 4095; }), HasSubstr("multiples of 4096"));
  EXPECT_THAT(message([](Liar* l) { l->header.block_tokens = 0; }), HasSubstr("1 to 65536 tokens a block"));
}

TEST(Session, ARecordOfAnotherFileIsNotMixedIn) {
  Liar a, b;
  b.header.model_name = "other";
  std::vector<std::byte> bytes = a.Bytes();
  const std::vector<std::byte> other = b.Bytes();
  std::memcpy(bytes.data() + kSessionPage, other.data() + kSessionPage, kSessionPage);
  EXPECT_EQ(OpenBytes(bytes).message(), "'fake' has a commit record of another file");
  bytes = a.Bytes();
  std::memcpy(bytes.data(), other.data(), kSessionPage);
  const Status status = OpenBytes(bytes);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
}

TEST(Session, TheIndexNeverMovesOverDataThatAnOlderRecordClaims) {
  // Record 1 claims that its index lay where the group of commit 2 lies.
  Liar l;
  std::vector<std::byte> bytes = l.Bytes();
  SessionCommit old = l.commit;
  old.sequence = 1;
  old.index_offset = 16384;
  const auto record = EncodeSessionCommit(old);
  std::memcpy(bytes.data() + 2 * kSessionPage, record.data(), record.size());
  const auto disk = DiskOf(bytes);
  auto session = OpenDisk(disk);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  ASSERT_TRUE((*session)->Commit((*session)->content()).ok());
  EXPECT_EQ(std::memcmp(disk->bytes.data() + 16384, bytes.data() + 16384, GroupBytes(l.header.geometry)), 0);
}

}  // namespace
}  // namespace farsight
