// A file in memory whose operations finish late, out of order, or not at all, and which remembers what a disk would
// have seen. Reads poison their target until they are served; writes take their bytes when they are served, so a buffer
// used too early or changed too soon shows.
#ifndef FARSIGHT_IO_TESTING_FAKE_ASYNC_FILE_H_
#define FARSIGHT_IO_TESTING_FAKE_ASYNC_FILE_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/async_file.h"

namespace farsight::testing {

// The bytes of a file, shared by all that have it open.
struct FakeDisk {
  struct Event {
    bool sync = false;  // everything before it is durable
    bool resize = false;
    uint64_t offset = 0;  // or the new size
    std::vector<std::byte> bytes;
  };
  std::vector<std::byte> bytes;
  std::vector<Event> log;  // only when keep_log
  bool keep_log = false;

  // The bytes after a power cut: a durable beginning of the log, and of the events after its last sync before `events`
  // any subset, the last one torn at a sector.
  static std::vector<std::byte> AfterCut(const std::vector<std::byte>& start, const std::vector<Event>& log,
                                         size_t events, std::mt19937* rng) {
    size_t durable = 0;
    for (size_t i = 0; i < events; ++i) {
      if (log[i].sync) durable = i;
    }
    std::vector<std::byte> out = start;
    for (size_t i = 0; i < events; ++i) {
      const Event& e = log[i];
      if (e.sync || (i > durable && (*rng)() % 4 == 0)) continue;
      if (e.resize) {
        out.resize(e.offset);
        continue;
      }
      size_t n = e.bytes.size();
      if (i > durable && (*rng)() % 4 == 0) n = (*rng)() % (n / 512 + 1) * 512;
      if (e.offset + n > out.size()) out.resize(e.offset + n);
      std::memcpy(out.data() + e.offset, e.bytes.data(), n);
    }
    return out;
  }
};

class FakeAsyncFile final : public AsyncFile {
 public:
  explicit FakeAsyncFile(std::shared_ptr<FakeDisk> disk = std::make_shared<FakeDisk>(), uint32_t seed = 1)
      : disk_(std::move(disk)), rng_(seed) {}

  int max_delay = 0;               // an operation is served after 0 .. max_delay calls of Done
  uint64_t capacity = UINT64_MAX;  // writes beyond it fail as on a full disk
  bool aligned = true;             // insist on kIoAlignment, as direct I/O does
  // Asked for every piece when it is served; an error that it returns is the piece's.
  std::function<Status(IoKind, const IoPiece&)> fault;

  FakeDisk& disk() { return *disk_; }
  size_t pending() const { return ops_.size(); }

  IoTicket Start(IoKind kind, std::span<const IoPiece> pieces) override {
    const IoTicket ticket = next_++;
    statuses_[ticket] = {UINT32_MAX, OkStatus()};
    for (uint32_t i = 0; i < pieces.size(); ++i) {
      const IoPiece& p = pieces[i];
      if (aligned && (p.offset % kIoAlignment != 0 || p.bytes % kIoAlignment != 0)) {
        Fail(ticket, i, InvalidArgument("direct I/O needs aligned runs"));
        continue;
      }
      if (kind == IoKind::kRead) std::memset(p.data, 0xa5, p.bytes);
      const int delay = max_delay == 0 ? 0 : static_cast<int>(rng_() % static_cast<uint32_t>(max_delay + 1));
      ops_.push_back({kind, p, ticket, i, delay});
      ++(kind == IoKind::kRead ? counters_.read_operations : counters_.write_operations);
      (kind == IoKind::kRead ? counters_.bytes_read : counters_.bytes_written) += p.bytes;
    }
    return ticket;
  }

  bool Done(IoTicket ticket) override {
    for (auto& op : ops_) --op.delay;
    ServeWhere([](const Op& op) { return op.delay < 0; });
    return std::none_of(ops_.begin(), ops_.end(), [&](const Op& op) { return op.ticket == ticket; });
  }

  Status Wait(IoTicket ticket) override {
    ServeWhere([&](const Op& op) { return op.ticket == ticket || rng_() % 2 == 0; });
    const auto it = statuses_.find(ticket);
    FS_CHECK(it != statuses_.end(), "a ticket is redeemed once");
    Status status = std::move(it->second.second);
    statuses_.erase(it);
    return status;
  }

  Status Sync() override {
    if (fault) {
      if (Status s = fault(IoKind::kWrite, {UINT64_MAX, nullptr, 0}); !s.ok()) return s;
    }
    if (disk_->keep_log) disk_->log.push_back({true, false, 0, {}});
    return OkStatus();
  }
  StatusOr<uint64_t> Size() const override { return uint64_t{disk_->bytes.size()}; }
  Status Resize(uint64_t bytes) override {
    if (bytes > capacity) return ResourceExhausted("cannot resize 'fake': No space left on device");
    disk_->bytes.resize(bytes);
    if (disk_->keep_log) disk_->log.push_back({false, true, bytes, {}});
    return OkStatus();
  }
  const IoCounters& counters() const override { return counters_; }
  std::string engine() const override { return "fake"; }
  const std::string& path() const override { return path_; }

 private:
  struct Op {
    IoKind kind;
    IoPiece piece;
    IoTicket ticket;
    uint32_t order;
    int delay;
  };

  void Fail(IoTicket ticket, uint32_t order, Status status) {
    auto& [at, first] = statuses_[ticket];
    if (order >= at) return;
    at = order;
    first = std::move(status);
  }

  template <typename Predicate>
  void ServeWhere(Predicate due) {
    std::shuffle(ops_.begin(), ops_.end(), rng_);
    std::vector<Op> left;
    for (const Op& op : ops_) {
      if (due(op)) {
        Serve(op);
      } else {
        left.push_back(op);
      }
    }
    ops_ = std::move(left);
  }

  void Serve(const Op& op) {
    const IoPiece& p = op.piece;
    if (fault) {
      if (Status s = fault(op.kind, p); !s.ok()) return Fail(op.ticket, op.order, std::move(s));
    }
    auto& bytes = disk_->bytes;
    if (op.kind == IoKind::kRead) {
      if (p.offset > bytes.size() || p.bytes > bytes.size() - p.offset) {
        return Fail(op.ticket, op.order, DataLoss("'fake' ends at " + std::to_string(bytes.size())));
      }
      if (p.bytes > 0) std::memcpy(p.data, bytes.data() + p.offset, p.bytes);
      return;
    }
    if (p.offset + p.bytes > capacity) {
      return Fail(op.ticket, op.order, ResourceExhausted("cannot write 'fake': No space left on device"));
    }
    if (p.offset + p.bytes > bytes.size()) bytes.resize(p.offset + p.bytes);
    std::memcpy(bytes.data() + p.offset, p.data, p.bytes);
    if (disk_->keep_log) disk_->log.push_back({false, false, p.offset, {p.data, p.data + p.bytes}});
  }

  std::shared_ptr<FakeDisk> disk_;
  std::mt19937 rng_;
  std::vector<Op> ops_;
  std::map<IoTicket, std::pair<uint32_t, Status>> statuses_;
  IoTicket next_ = 1;
  IoCounters counters_;
  std::string path_ = "fake";
};

}  // namespace farsight::testing

#endif  // FARSIGHT_IO_TESTING_FAKE_ASYNC_FILE_H_
