// The pool of threads that read and write where io_uring is forbidden.
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/async_file_ops.h"

namespace farsight::internal {
namespace {

class ThreadedFile final : public AsyncFile {
 public:
  ThreadedFile(EngineFile file, const AsyncFileOptions& options)
      : file_(std::move(file)),
        calls_(options.calls != nullptr ? *options.calls : SystemIoCalls()),
        ops_(file_.path, file_.direct, options.queue_depth),
        ring_(static_cast<size_t>(options.queue_depth)) {
    // Fewer where the system refuses more.
    for (int i = 0; i < options.threads; ++i) {
      try {
        threads_.emplace_back([this] { Work(); });
      } catch (const std::system_error&) {
        break;
      }
    }
  }

  ~ThreadedFile() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (auto& t : threads_) t.join();  // after the queue is empty: memory of an operation may go away after this
  }

  bool HasThreads() const { return !threads_.empty(); }

  IoTicket Start(IoKind kind, std::span<const IoPiece> pieces) override {
    std::unique_lock lock(mutex_);
    const IoTicket ticket = ops_.NewTicket(pieces);
    if (!ops_.Usable(ticket)) return ticket;
    for (size_t i = 0; i < pieces.size();) {
      const size_t n = CountMergeable(pieces.subspan(i));
      done_.wait(lock, [this] { return ops_.HasFree(); });
      ring_[(head_ + queued_++) % ring_.size()] = ops_.NewOp(kind, ticket, pieces.subspan(i, n), i);
      work_.notify_one();
      i += n;
    }
    return ticket;
  }

  bool Done(IoTicket ticket) override {
    const std::lock_guard lock(mutex_);
    return ops_.Done(ticket);
  }

  Status Wait(IoTicket ticket) override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return ops_.Done(ticket); });
    return ops_.Redeem(ticket);
  }

  Status Sync() override { return SyncFile(file_, calls_); }
  StatusOr<uint64_t> Size() const override { return SizeOf(file_); }
  Status Resize(uint64_t bytes) override { return ResizeFile(file_, bytes); }
  const IoCounters& counters() const override {
    const std::lock_guard lock(mutex_);
    snapshot_ = ops_.counters();
    return snapshot_;
  }
  std::string engine() const override { return file_.direct ? "pread pool, direct" : "pread pool, cached"; }
  const std::string& path() const override { return file_.path; }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || queued_ > 0; });
      if (queued_ == 0) return;
      const uint32_t index = ring_[head_];
      head_ = (head_ + 1) % ring_.size();
      --queued_;
      int64_t result;
      do {
        const IoOp& op = ops_.op(index);  // ours alone until it is done
        lock.unlock();
        const auto call = op.kind == IoKind::kRead ? calls_.read : calls_.write;
        result = call(file_.fd.get(), op.pieces.data() + op.first, op.count - op.first, static_cast<off_t>(op.offset));
        if (result < 0) result = -static_cast<int64_t>(errno);
        lock.lock();
      } while (!ops_.Advance(index, result));
      done_.notify_all();
    }
  }

  EngineFile file_;
  const IoCalls calls_;
  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  OpTable ops_;
  mutable IoCounters snapshot_;
  std::vector<uint32_t> ring_;  // indices of operations not yet begun
  size_t head_ = 0, queued_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

StatusOr<std::unique_ptr<AsyncFile>> NewThreadedFile(EngineFile file, const AsyncFileOptions& options) {
  auto threaded = std::make_unique<ThreadedFile>(std::move(file), options);
  if (!threaded->HasThreads()) {
    return Unavailable("the system starts no thread to read and write '" + threaded->path() + "'");
  }
  return std::unique_ptr<AsyncFile>(std::move(threaded));
}

}  // namespace farsight::internal
