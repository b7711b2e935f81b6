// A file read and written in runs at offsets, without waiting for each: Start gives a ticket, Wait redeems it.
//
//   FS_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegularFile(path, FileAccess::kRead));
//   FS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> file, OpenAsyncFile(std::move(fd), path, {}));
//   const IoTicket t = file->Start(IoKind::kRead, pieces);   // returns at once; other work goes here
//   FS_RETURN_IF_ERROR(file->Wait(t));                       // now the bytes are there
#ifndef FARSIGHT_IO_ASYNC_FILE_H_
#define FARSIGHT_IO_ASYNC_FILE_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "farsight/status.h"
#include "io/direct_file.h"

namespace farsight {

enum class IoKind : uint8_t { kRead, kWrite };

// Where offsets, lengths and addresses of direct I/O start and end. Callers keep to it always, so that a file may be
// moved between direct and cached I/O without a change of layout.
inline constexpr size_t kIoAlignment = 4096;
constexpr uint64_t RoundUpToIo(uint64_t n) { return (n + kIoAlignment - 1) / kIoAlignment * kIoAlignment; }

// One run of bytes. Neighbours of a list whose offsets follow each other become one operation.
struct IoPiece {
  uint64_t offset = 0;
  std::byte* data = nullptr;  // written to by a read; must stay valid and, for a write, unchanged until Wait returns
  size_t bytes = 0;
};

// Redeemed once by Wait. 0 is no ticket.
using IoTicket = uint64_t;

struct IoCounters {
  uint64_t read_operations = 0;   // after merging
  uint64_t write_operations = 0;  // after merging
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t continued = 0;  // operations that the system cut short or interrupted and that were continued
};

// One caller at a time. An abstract class, so that tests can delay, reorder and break what a disk would do.
class AsyncFile {
 public:
  virtual ~AsyncFile() = default;

  // Starts all pieces and returns; waits only while more operations are under way than the queue holds. Faults are
  // reported by Wait: every ticket must be waited for, also after an error elsewhere. Allocates nothing once warm.
  virtual IoTicket Start(IoKind kind, std::span<const IoPiece> pieces) = 0;
  // As Start, but the system may hear of the pieces only when Submit or Wait is called. Submit alone may be called on
  // another thread, as long as nothing else is called meanwhile.
  virtual IoTicket Queue(IoKind kind, std::span<const IoPiece> pieces) { return Start(kind, pieces); }
  virtual void Submit() {}
  // True when Wait would return at once. Never blocks.
  virtual bool Done(IoTicket ticket) = 0;
  // Blocks until every piece is transferred or has failed; the fault of the lowest piece is returned:
  //   kResourceExhausted  the disk, a quota or a file size limit is full
  //   kDataLoss           the file ends before the piece does, or the device reports an error
  //   kInvalidArgument    a piece is not aligned for direct I/O
  //   kUnavailable        any other refusal of the system
  virtual Status Wait(IoTicket ticket) = 0;
  // Makes every write that was waited for durable.
  virtual Status Sync() = 0;
  virtual StatusOr<uint64_t> Size() const = 0;
  virtual Status Resize(uint64_t bytes) = 0;

  virtual const IoCounters& counters() const = 0;
  virtual std::string engine() const = 0;  // for people: "io_uring, direct"
  virtual const std::string& path() const = 0;

  // Start, then Wait.
  Status Transfer(IoKind kind, std::span<const IoPiece> pieces) { return Wait(Start(kind, pieces)); }
};

// The calls of the pread pool; tests replace them by ones that are interrupted, cut short or refused.
struct IoCalls {
  ssize_t (*read)(int fd, const iovec* pieces, int count, off_t offset);
  ssize_t (*write)(int fd, const iovec* pieces, int count, off_t offset);
  int (*sync)(int fd);
};
const IoCalls& SystemIoCalls();

enum class IoEngine : uint8_t {
  kAuto,     // io_uring where the system allows it, else the pool
  kUring,    // kUnavailable where it is forbidden or not built in
  kThreads,  // a pool of threads that call preadv and pwritev
};
enum class DirectIo : uint8_t {
  kAuto,  // past the page cache where the file system can
  kOn,    // kUnavailable where it cannot
  kOff,
};

struct AsyncFileOptions {
  IoEngine engine = IoEngine::kAuto;
  DirectIo direct = DirectIo::kAuto;
  int threads = 4;                 // of the pool; 1 to 64, fewer where the system refuses more
  int queue_depth = 64;            // operations under way at once; 1 to 4096
  const IoCalls* calls = nullptr;  // of the pool; null: the system's
};

// `path` is for messages. The descriptor must be of a regular file.
StatusOr<std::unique_ptr<AsyncFile>> OpenAsyncFile(UniqueFd fd, std::string path, const AsyncFileOptions& options);

}  // namespace farsight

#endif  // FARSIGHT_IO_ASYNC_FILE_H_
