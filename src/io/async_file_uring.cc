// io_uring: no thread of ours between the caller and the disk. Completions are taken whenever the caller comes by.
#include <utility>

#include "base/pause.h"
#include "io/async_file_ops.h"
#ifdef FARSIGHT_HAVE_URING
#include <liburing.h>

#include <cerrno>
#endif

namespace farsight::internal {

#ifdef FARSIGHT_HAVE_URING
namespace {

constexpr int kSpins = 4000;  // of Wait before it sleeps; longer than a page takes

class UringFile final : public AsyncFile {
 public:
  UringFile(const AsyncFileOptions& options, const EngineFile& file)
      : depth_(options.queue_depth), ops_(file.path, file.direct, options.queue_depth) {}

  ~UringFile() override {
    if (!live_) return;
    while (ops_.in_flight() > 0) Reap(true);  // the kernel still writes to the caller's memory until then
    io_uring_queue_exit(&ring_);
  }

  // 0 or -errno.
  int Init() {
    const int result = io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0);
    live_ = result == 0;
    return result;
  }
  void Adopt(EngineFile file) { file_ = std::move(file); }

  IoTicket Start(IoKind kind, std::span<const IoPiece> pieces) override {
    const IoTicket ticket = Queue(kind, pieces);
    Submit();
    return ticket;
  }

  IoTicket Queue(IoKind kind, std::span<const IoPiece> pieces) override {
    const IoTicket ticket = ops_.NewTicket(pieces);
    if (!ops_.Usable(ticket)) return ticket;
    for (size_t i = 0; i < pieces.size();) {
      const size_t n = CountMergeable(pieces.subspan(i));
      if (!ops_.HasFree()) Submit();
      while (!ops_.HasFree()) Reap(true);
      Enqueue(ops_.NewOp(kind, ticket, pieces.subspan(i, n), i));
      i += n;
    }
    return ticket;
  }

  bool Done(IoTicket ticket) override {
    Reap(false);
    return ops_.Done(ticket);
  }

  // An interrupted or refused submission is repeated by the next call; entries stay queued.
  void Submit() override {
    if (io_uring_sq_ready(&ring_) > 0) (void)io_uring_submit(&ring_);
  }

  Status Wait(IoTicket ticket) override {
    // A sleep and its waking cost about as much as a read takes.
    if (!ops_.Done(ticket)) Submit();
    for (int spin = 0; spin < kSpins && !ops_.Done(ticket); ++spin) {
      if (io_uring_cq_ready(&ring_) > 0) {
        Reap(false);
      } else {
        Pause();
      }
    }
    while (!ops_.Done(ticket)) Reap(true);
    return ops_.Redeem(ticket);
  }

  Status Sync() override { return SyncFile(file_, SystemIoCalls()); }
  StatusOr<uint64_t> Size() const override { return SizeOf(file_); }
  Status Resize(uint64_t bytes) override { return ResizeFile(file_, bytes); }
  const IoCounters& counters() const override { return ops_.counters(); }
  std::string engine() const override { return file_.direct ? "io_uring, direct" : "io_uring, cached"; }
  const std::string& path() const override { return file_.path; }

 private:
  // There is always room: as many entries as operations.
  void Enqueue(uint32_t index) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {
      Submit();
      sqe = io_uring_get_sqe(&ring_);
    }
    const IoOp& op = ops_.op(index);
    const auto* pieces = op.pieces.data() + op.first;
    const auto count = static_cast<unsigned>(op.count - op.first);
    if (op.kind == IoKind::kRead) {
      io_uring_prep_readv(sqe, file_.fd.get(), pieces, count, op.offset);
    } else {
      io_uring_prep_writev(sqe, file_.fd.get(), pieces, count, op.offset);
    }
    io_uring_sqe_set_data64(sqe, index);
  }

  void Reap(bool block) {
    io_uring_cqe* cqe = nullptr;
    if (block) {
      if (io_uring_submit_and_wait(&ring_, 1) < 0) return;  // interrupted or short of memory: the caller comes again
    }
    bool again = false;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      const auto index = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (!ops_.Advance(index, result)) {
        Enqueue(index);
        again = true;
      }
      cqe = nullptr;
    }
    if (again) Submit();
  }

  int depth_;
  EngineFile file_;
  OpTable ops_;
  io_uring ring_{};
  bool live_ = false;
};

}  // namespace

StatusOr<std::unique_ptr<AsyncFile>> NewUringFile(EngineFile* file, const AsyncFileOptions& options) {
  auto uring = std::make_unique<UringFile>(options, *file);
  const int result = uring->Init();
  if (result != 0) return StatusFromErrno("io_uring is not available for '" + file->path + "'", -result);
  uring->Adopt(std::move(*file));
  return std::unique_ptr<AsyncFile>(std::move(uring));
}

#else

StatusOr<std::unique_ptr<AsyncFile>> NewUringFile(EngineFile* file, const AsyncFileOptions&) {
  return Unavailable("io_uring is not available for '" + file->path + "': this program was built without it");
}

#endif

}  // namespace farsight::internal
