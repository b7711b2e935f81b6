// What both engines of AsyncFile share: the operations under way, their tickets, and what a result of the system means.
// Private to src/io.
#ifndef FARSIGHT_IO_ASYNC_FILE_OPS_H_
#define FARSIGHT_IO_ASYNC_FILE_OPS_H_

#include <sys/uio.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "io/async_file.h"

namespace farsight::internal {

inline constexpr int kMaxOpPieces = 16;
inline constexpr size_t kMaxOpBytes = size_t{1} << 20;  // deeper runs add latency, not bandwidth

// One system call's worth: pieces that follow each other in the file.
struct IoOp {
  IoKind kind = IoKind::kRead;
  uint64_t offset = 0;  // of what is left
  size_t bytes = 0;     // left
  int first = 0;        // piece the rest starts in
  int count = 0;        // pieces
  uint32_t ticket = 0;  // index into tickets
  uint32_t order = 0;   // of its first piece in the list, so that the lowest fault is reported
  std::array<iovec, kMaxOpPieces> pieces;
};

// How many of the pieces from the front make one operation.
size_t CountMergeable(std::span<const IoPiece> pieces);

class OpTable {
 public:
  OpTable(std::string path, bool direct, int depth);

  bool HasFree() const { return !free_ops_.empty(); }
  int in_flight() const { return static_cast<int>(ops_.size() - free_ops_.size()); }
  IoOp& op(uint32_t index) { return ops_[index]; }

  IoTicket NewTicket(std::span<const IoPiece> pieces);  // checks alignment
  bool Usable(IoTicket ticket) const;                   // false: it failed before it started
  uint32_t NewOp(IoKind kind, IoTicket ticket, std::span<const IoPiece> pieces, size_t order);
  // True: done with this operation. False: a part is left, start it again.
  bool Advance(uint32_t index, int64_t result);  // result: bytes, or -errno
  bool Done(IoTicket ticket) const;
  Status Redeem(IoTicket ticket);

  const IoCounters& counters() const { return counters_; }
  const std::string& path() const { return path_; }

 private:
  struct Ticket {
    uint32_t generation = 0;
    uint32_t pending = 0;
    uint32_t error_order = 0;
    bool live = false;
    Status status;
  };
  void Fail(const IoOp& op, Status status);
  Status Fault(const IoOp& op, int error) const;
  const Ticket* Find(IoTicket ticket) const;

  std::string path_;
  bool direct_;
  std::vector<IoOp> ops_;
  std::vector<uint32_t> free_ops_;
  std::vector<Ticket> tickets_;
  std::vector<uint32_t> free_tickets_;
  IoCounters counters_;
};

struct EngineFile {
  UniqueFd fd;
  std::string path;
  bool direct = false;
};
Status SyncFile(const EngineFile& file, const IoCalls& calls);
StatusOr<uint64_t> SizeOf(const EngineFile& file);
Status ResizeFile(const EngineFile& file, uint64_t bytes);

// kUnavailable where the system starts no thread; some are enough.
StatusOr<std::unique_ptr<AsyncFile>> NewThreadedFile(EngineFile file, const AsyncFileOptions& options);
// Leaves `file` untouched when io_uring is not available.
StatusOr<std::unique_ptr<AsyncFile>> NewUringFile(EngineFile* file, const AsyncFileOptions& options);

}  // namespace farsight::internal

#endif  // FARSIGHT_IO_ASYNC_FILE_OPS_H_
