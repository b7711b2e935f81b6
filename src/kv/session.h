// A session: the tokens of a conversation or a book with their keys, values and summaries, in one file that outlives
// the process (docs/sessions.md gives every byte). Commits are all or nothing: killed at any moment, the file is as
// before or as after.
//
//   new or old:  auto s = SessionFile::Create(path, header, {});  /  SessionFile::Open(path, FileAccess::kReadWrite,
//   {});
//                const int32_t store = tiers.AddStore(&s->store());
//   resume:      n = longest common beginning of s->content().tokens and the prompt (at most its length - 1);
//                cache.Append(prompt's first n tokens); tiers.Follow(pool);
//                LoadSequence(*s, tiers, store, n, cache.blocks(), put_summary); and, if n is inside a block,
//                tiers.Reopen(cache.blocks().back()). Blocks are read when a list names them.
//   go on:       after Follow, tiers.Begin(block, store) for every block that the sequence takes: it is written behind
//                into the session, and a save has little left to do.
//   save:        SaveSequence(*s, tiers, store, cache.tokens(), cache.blocks(), settings, get_summary);
//   close:       drop the sequence, tiers.Follow(pool), tiers.RemoveStore(store), then the SessionFile.
#ifndef FARSIGHT_KV_SESSION_H_
#define FARSIGHT_KV_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "farsight/status.h"
#include "io/async_file.h"
#include "kv/block_store.h"
#include "kv/session_format.h"

namespace farsight {

class KvTiers;

class SessionFile {
 public:
  // A new file with no tokens, locked for writing. kInvalidArgument when `path` exists or the header cannot be.
  static StatusOr<std::unique_ptr<SessionFile>> Create(const std::string& path, const SessionHeader& header,
                                                       const AsyncFileOptions& options);
  // Reads header, commit records and index; no block. kUnavailable when another writes to it (kReadWrite only; readers
  // are welcome beside a writer), kInvalidArgument when it is no session of this version, kDataLoss when it is broken.
  static StatusOr<std::unique_ptr<SessionFile>> Open(const std::string& path, FileAccess access,
                                                     const AsyncFileOptions& options);
  // The same on a file that is open already.
  static StatusOr<std::unique_ptr<SessionFile>> FromFile(std::unique_ptr<AsyncFile> file, FileAccess access);
  // The bytes of a file with no tokens.
  static std::vector<std::byte> EmptyFile(const SessionHeader& header);

  const SessionHeader& header() const { return header_; }
  const SessionContent& content() const { return content_; }  // as of the last commit
  uint64_t sequence() const { return commit_.sequence; }      // of the last commit
  BlockStore& store() { return *store_; }
  const std::string& path() const { return store_->file().path(); }

  // kInvalidArgument, with both names, unless the file was written by this model in this layout.
  Status CheckModel(const SessionHeader& expected) const;

  // One page of logical block `block`, lane = layer * heads + head; `out` is a page, aligned. kDataLoss names the page.
  Status ReadPage(size_t block, size_t lane, std::span<std::byte> out);
  // Its summary row, summary_row_bytes long.
  Status ReadSummaryRow(size_t block, std::span<std::byte> out);
  // Writes a row to a file block of the store and returns its checksum.
  StatusOr<uint64_t> WriteSummaryRow(int32_t file_block, std::span<const std::byte> row);

  // Whether Commit may be called: kInvalidArgument for a reader, kUnavailable after a commit that did not finish.
  Status CanCommit() const;
  // Makes `content` the state of the file; its pages and rows were written before. On an error the file is as it was;
  // if not even that is known, every further commit is refused.
  Status Commit(SessionContent content);

 private:
  struct Area {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  SessionFile(std::unique_ptr<AsyncFile> file, SessionHeader header, uint64_t header_sum, FileAccess access);
  Status Load();
  Status LoadOnce(uint64_t file_size);
  // Valid until the next read or write.
  StatusOr<std::span<const std::byte>> ReadBytes(uint64_t offset, uint64_t bytes);
  Status WriteBytes(uint64_t offset, std::span<const std::byte> bytes);
  StatusOr<std::byte*> Bounce(size_t bytes);
  bool SpareIsFree() const;
  StatusOr<Area> TakeIndexArea(uint64_t bytes);

  SessionHeader header_;
  uint64_t header_sum_;
  std::unique_ptr<BlockStore> store_;
  SessionCommit commit_;
  SessionContent content_;
  Area spare_;  // of the commit before: the next index goes there if it fits
  Area own_;    // of this commit
  bool unsure_ = false;
  Buffer bounce_;
};

// --- For people and tools.

struct SessionInfo {
  SessionHeader header;
  uint64_t sequence = 0;
  uint64_t tokens = 0;
  uint64_t blocks = 0;
  uint64_t file_bytes = 0;
  uint64_t block_bytes = 0;  // of pages and summaries in use
  std::string settings;
};
StatusOr<SessionInfo> DescribeSession(const std::string& path);

struct SessionReport {
  SessionInfo info;
  uint64_t pages = 0;      // read and compared
  uint64_t summaries = 0;  // the same
  uint64_t num_faults = 0;
  std::vector<std::string> faults;  // the first ones, at most 20
};
// Reads everything that the last commit refers to. An error only where the file cannot be opened as a session; broken
// pages are in the report.
StatusOr<SessionReport> VerifySession(const std::string& path);
SessionReport VerifyOpenSession(SessionFile* session);

// --- Between a session and the tiers. Rows are [layers, heads] summary pages in whatever form the caller likes.

using PutSummary = std::function<void(int32_t block, std::span<const std::byte> row)>;
using GetSummary = std::function<void(int32_t block, std::span<std::byte> row)>;

// The session's first `length` tokens become the content of `blocks` (begun, without content). Reads the summaries, no
// page. On an error the blocks are begun afresh.
Status LoadSequence(SessionFile* session, KvTiers* tiers, int32_t store, int64_t length,
                    std::span<const int32_t> blocks, const PutSummary& put);
// Commits a sequence. Writes only what the file does not hold yet; on an error the sequence goes on unharmed.
Status SaveSequence(SessionFile* session, KvTiers* tiers, int32_t store, std::span<const int32_t> tokens,
                    std::span<const int32_t> blocks, std::string_view settings, const GetSummary& get);

}  // namespace farsight

#endif  // FARSIGHT_KV_SESSION_H_
