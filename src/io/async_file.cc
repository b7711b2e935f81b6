#include "io/async_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "io/async_file_ops.h"

namespace farsight {
namespace internal {

size_t CountMergeable(std::span<const IoPiece> pieces) {
  size_t bytes = pieces[0].bytes;
  size_t n = 1;
  while (n < pieces.size() && n < kMaxOpPieces && pieces[n].offset == pieces[n - 1].offset + pieces[n - 1].bytes &&
         bytes + pieces[n].bytes <= kMaxOpBytes) {
    bytes += pieces[n++].bytes;
  }
  return n;
}

OpTable::OpTable(std::string path, bool direct, int depth)
    : path_(std::move(path)), direct_(direct), ops_(static_cast<size_t>(depth)) {
  for (uint32_t i = 0; i < ops_.size(); ++i) free_ops_.push_back(i);
}

IoTicket OpTable::NewTicket(std::span<const IoPiece> pieces) {
  if (free_tickets_.empty()) {
    free_tickets_.push_back(static_cast<uint32_t>(tickets_.size()));
    tickets_.emplace_back();
  }
  const uint32_t index = free_tickets_.back();
  free_tickets_.pop_back();
  Ticket& t = tickets_[index];
  ++t.generation;
  t.pending = 0;
  t.error_order = UINT32_MAX;
  t.live = true;
  t.status = OkStatus();
  for (const IoPiece& p : pieces) {
    const bool aligned = p.offset % kIoAlignment == 0 && p.bytes % kIoAlignment == 0 &&
                         reinterpret_cast<uintptr_t>(p.data) % kIoAlignment == 0;
    if (direct_ && !aligned) {
      t.status = InvalidArgument("direct I/O of '" + path_ + "' needs multiples of " + std::to_string(kIoAlignment) +
                                 "; got " + std::to_string(p.bytes) + " bytes at " + std::to_string(p.offset));
    } else if (p.offset > INT64_MAX || p.bytes > INT64_MAX - p.offset) {
      t.status = InvalidArgument("a run of '" + path_ + "' ends beyond what a file can hold");
    }
  }
  return (IoTicket{t.generation} << 32) | (index + 1);
}

const OpTable::Ticket* OpTable::Find(IoTicket ticket) const {
  const uint64_t index = (ticket & 0xffffffffu) - 1;
  FS_CHECK(ticket != 0 && index < tickets_.size(), "a ticket comes from Start");
  const Ticket& t = tickets_[index];
  FS_CHECK(t.live && t.generation == ticket >> 32, "a ticket is redeemed once");
  return &t;
}

bool OpTable::Usable(IoTicket ticket) const { return Find(ticket)->status.ok(); }

uint32_t OpTable::NewOp(IoKind kind, IoTicket ticket, std::span<const IoPiece> pieces, size_t order) {
  const uint32_t index = free_ops_.back();
  free_ops_.pop_back();
  IoOp& op = ops_[index];
  op.kind = kind;
  op.offset = pieces[0].offset;
  op.bytes = 0;
  op.first = 0;
  op.count = static_cast<int>(pieces.size());
  op.ticket = static_cast<uint32_t>(ticket & 0xffffffffu) - 1;
  op.order = static_cast<uint32_t>(order);
  for (size_t i = 0; i < pieces.size(); ++i) {
    op.pieces[i] = {pieces[i].data, pieces[i].bytes};
    op.bytes += pieces[i].bytes;
  }
  ++tickets_[op.ticket].pending;
  ++(kind == IoKind::kRead ? counters_.read_operations : counters_.write_operations);
  (kind == IoKind::kRead ? counters_.bytes_read : counters_.bytes_written) += op.bytes;
  return index;
}

Status OpTable::Fault(const IoOp& op, int error) const {
  return StatusFromErrno(std::string(op.kind == IoKind::kRead ? "cannot read " : "cannot write ") +
                             std::to_string(op.bytes) + " bytes at " + std::to_string(op.offset) + " of '" + path_ +
                             "'",
                         error);
}

void OpTable::Fail(const IoOp& op, Status status) {
  Ticket& t = tickets_[op.ticket];
  if (op.order >= t.error_order) return;
  t.error_order = op.order;
  t.status = std::move(status);
}

bool OpTable::Advance(uint32_t index, int64_t result) {
  IoOp& op = ops_[index];
  if (result == -EINTR || result == -EAGAIN) {
    ++counters_.continued;
    return false;
  }
  const auto got = static_cast<size_t>(std::max<int64_t>(result, 0));
  const bool torn = direct_ && got < op.bytes && got % kIoAlignment != 0;  // direct I/O stops there only at the end
  if (result > 0 && got < op.bytes && !torn) {
    ++counters_.continued;
    op.offset += got;
    op.bytes -= got;
    for (size_t left = got; left > 0;) {
      iovec& piece = op.pieces[static_cast<size_t>(op.first)];
      const size_t step = std::min(left, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + step;
      piece.iov_len -= step;
      left -= step;
      if (piece.iov_len == 0) ++op.first;
    }
    return false;
  }
  if (result < 0) {
    Fail(op, Fault(op, static_cast<int>(-result)));
  } else if (got < op.bytes && op.kind == IoKind::kRead) {
    Fail(op, DataLoss("'" + path_ + "' ends at " + std::to_string(op.offset + got) + "; " +
                      std::to_string(op.bytes - got) + " more bytes were expected"));
  } else if (got < op.bytes) {
    Fail(op, Fault(op, ENOSPC));
  }
  --tickets_[op.ticket].pending;
  free_ops_.push_back(index);
  return true;
}

bool OpTable::Done(IoTicket ticket) const { return Find(ticket)->pending == 0; }

Status OpTable::Redeem(IoTicket ticket) {
  const Ticket* t = Find(ticket);
  FS_CHECK(t->pending == 0, "a ticket is redeemed when its operations are over");
  const auto index = static_cast<uint32_t>(t - tickets_.data());
  tickets_[index].live = false;
  free_tickets_.push_back(index);
  return std::move(tickets_[index].status);
}

Status SyncFile(const EngineFile& file, const IoCalls& calls) {
  int result;
  do {
    result = calls.sync(file.fd.get());
  } while (result != 0 && errno == EINTR);
  return result == 0 ? OkStatus() : StatusFromErrno("cannot sync '" + file.path + "'", errno);
}

StatusOr<uint64_t> SizeOf(const EngineFile& file) {
  struct stat st = {};
  if (fstat(file.fd.get(), &st) != 0) return StatusFromErrno("cannot read the size of '" + file.path + "'", errno);
  return static_cast<uint64_t>(st.st_size);
}

Status ResizeFile(const EngineFile& file, uint64_t bytes) {
  int result;
  do {
    result = ftruncate(file.fd.get(), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return OkStatus();
  return StatusFromErrno("cannot resize '" + file.path + "' to " + std::to_string(bytes) + " bytes", errno);
}

}  // namespace internal

namespace {

// A file system may accept the flag and refuse the read, so one read is tried.
bool DirectWorks(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return false;
  auto memory = AllocateHost(2 * kIoAlignment);
  if (!memory.ok()) return false;
  const auto at = reinterpret_cast<uintptr_t>(memory->data());
  ssize_t n;
  do {
    n = pread(fd, memory->data() + (RoundUpToIo(at) - at), kIoAlignment, 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) (void)fcntl(fd, F_SETFL, flags);
  return n >= 0;
}

}  // namespace

const IoCalls& SystemIoCalls() {
  static constexpr IoCalls kCalls = {preadv, pwritev, fdatasync};
  return kCalls;
}

StatusOr<std::unique_ptr<AsyncFile>> OpenAsyncFile(UniqueFd fd, std::string path, const AsyncFileOptions& options) {
  if (options.threads < 1 || options.threads > 64 || options.queue_depth < 1 || options.queue_depth > 4096) {
    return InvalidArgument("asynchronous files take 1 to 64 threads and a queue of 1 to 4096; got " +
                           std::to_string(options.threads) + " and " + std::to_string(options.queue_depth));
  }
  internal::EngineFile file{std::move(fd), std::move(path), false};
  if (options.direct != DirectIo::kOff) file.direct = DirectWorks(file.fd.get());
  if (options.direct == DirectIo::kOn && !file.direct) {
    return Unavailable("the file system of '" + file.path + "' does not support direct I/O");
  }
  if (options.engine != IoEngine::kThreads) {
    auto uring = internal::NewUringFile(&file, options);
    if (uring.ok() || options.engine == IoEngine::kUring) return uring;
  }
  return internal::NewThreadedFile(std::move(file), options);
}

}  // namespace farsight
