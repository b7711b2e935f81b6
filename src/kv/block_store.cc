#include "kv/block_store.h"

#include <utility>

#include "base/check.h"

namespace farsight {
namespace {

constexpr uint64_t kMaxGroupBytes = uint64_t{1} << 40;

}  // namespace

Status CheckGeometry(const StoreGeometry& g) {
  const bool positive = g.layers > 0 && g.layers <= 65536 && g.heads > 0 && g.heads <= 65536 && g.page_bytes > 0 &&
                        g.group_blocks > 0 && g.group_blocks <= 65536;
  if (!positive) return InvalidArgument("a KV store needs at least one layer, head, byte and block, and at most 65536");
  if (g.page_bytes % kIoAlignment != 0 || g.summary_row_bytes % kIoAlignment != 0) {
    return InvalidArgument("pages and summary rows of a KV store are multiples of " + std::to_string(kIoAlignment) +
                           " bytes; got " + std::to_string(g.page_bytes) + " and " +
                           std::to_string(g.summary_row_bytes));
  }
  const uint64_t pages =
      static_cast<uint64_t>(g.layers) * static_cast<uint64_t>(g.heads) * static_cast<uint64_t>(g.group_blocks);
  if (g.page_bytes > kMaxGroupBytes / pages ||
      g.summary_row_bytes > kMaxGroupBytes / static_cast<uint64_t>(g.group_blocks)) {
    return InvalidArgument("a group of " + std::to_string(g.group_blocks) + " KV blocks is larger than a terabyte");
  }
  return OkStatus();
}

uint64_t GroupBytes(const StoreGeometry& g) {
  const auto blocks = static_cast<uint64_t>(g.group_blocks);
  return static_cast<uint64_t>(g.layers) * static_cast<uint64_t>(g.heads) * blocks * g.page_bytes +
         blocks * g.summary_row_bytes;
}

BlockStore::BlockStore(std::unique_ptr<AsyncFile> file, const StoreGeometry& geometry, uint64_t end, uint64_t max_bytes,
                       bool read_only)
    : file_(std::move(file)), g_(geometry), end_(end), max_bytes_(max_bytes), read_only_(read_only) {}

StatusOr<std::unique_ptr<BlockStore>> BlockStore::CreateScratch(const std::string& path, const StoreGeometry& geometry,
                                                                const AsyncFileOptions& options, uint64_t max_bytes) {
  FS_RETURN_IF_ERROR(CheckGeometry(geometry));
  FS_ASSIGN_OR_RETURN(NewFile created, NewFile::Create(path));
  FS_ASSIGN_OR_RETURN(auto file, OpenAsyncFile(created.TakeNameless(), path, options));
  return std::make_unique<BlockStore>(std::move(file), geometry, 0, max_bytes, false);
}

StatusOr<uint64_t> BlockStore::TakeSpace(uint64_t bytes) {
  const uint64_t rounded = RoundUpToIo(bytes);
  if (rounded < bytes || rounded > max_bytes_ || end_ > max_bytes_ - rounded) {
    return ResourceExhausted("'" + file_->path() + "' is limited to " + std::to_string(max_bytes_) + " bytes; it has " +
                             std::to_string(end_) + " and needs " + std::to_string(bytes) + " more");
  }
  FS_RETURN_IF_ERROR(file_->Resize(end_ + rounded));
  return std::exchange(end_, end_ + rounded);
}

void BlockStore::AddGroup(uint64_t offset) {
  groups_.push_back(offset);
  states_.resize(states_.size() + static_cast<size_t>(g_.group_blocks), 0);
}

void BlockStore::Restart(uint64_t end, const std::vector<uint64_t>& groups) {
  FS_CHECK(used_ == 0, "a store in use is not restarted");
  end_ = end;
  groups_.clear();
  states_.clear();
  next_ = 0;
  for (const uint64_t g : groups) AddGroup(g);
}

StatusOr<int32_t> BlockStore::Allocate() {
  FS_CHECK(!read_only_, "a read-only store allocates nothing");
  const int32_t n = num_blocks();
  for (int32_t i = 0; i < n; ++i) {
    const int32_t block = next_ + i < n ? next_ + i : next_ + i - n;
    if (states_[static_cast<size_t>(block)] != 0) continue;
    states_[static_cast<size_t>(block)] = kUsed;
    next_ = block + 1;
    ++used_;
    return block;
  }
  if (n > INT32_MAX - g_.group_blocks) return ResourceExhausted("'" + file_->path() + "' holds no more KV blocks");
  FS_ASSIGN_OR_RETURN(const uint64_t offset, TakeSpace(GroupBytes(g_)));
  AddGroup(offset);
  states_[static_cast<size_t>(n)] = kUsed;
  next_ = n + 1;
  ++used_;
  return n;
}

void BlockStore::Release(int32_t block) {
  auto& state = states_[static_cast<size_t>(block)];
  FS_CHECK((state & kUsed) != 0, "a file block is released once");
  state &= static_cast<uint8_t>(~kUsed);
  --used_;
  if (state == 0 && block < next_) next_ = block;  // low places first: the file stays short and runs stay whole
}

void BlockStore::Use(int32_t block) {
  auto& state = states_[static_cast<size_t>(block)];
  FS_CHECK((state & kUsed) == 0, "a file block has one user");
  state |= kUsed;
  ++used_;
}

void BlockStore::SetCommitted(const std::vector<int32_t>& blocks) {
  for (auto& state : states_) state &= static_cast<uint8_t>(~kCommitted);
  for (const int32_t b : blocks) states_[static_cast<size_t>(b)] |= kCommitted;
  next_ = 0;
}

uint64_t BlockStore::PageOffset(int32_t block, int32_t layer, int32_t head) const {
  const auto in_group = static_cast<uint64_t>(block % g_.group_blocks);
  const uint64_t lane = static_cast<uint64_t>(layer) * static_cast<uint64_t>(g_.heads) + static_cast<uint64_t>(head);
  return groups_[static_cast<size_t>(block / g_.group_blocks)] +
         (lane * static_cast<uint64_t>(g_.group_blocks) + in_group) * g_.page_bytes;
}

uint64_t BlockStore::SummaryOffset(int32_t block) const {
  const uint64_t pages = static_cast<uint64_t>(g_.layers) * static_cast<uint64_t>(g_.heads) *
                         static_cast<uint64_t>(g_.group_blocks) * g_.page_bytes;
  return groups_[static_cast<size_t>(block / g_.group_blocks)] + pages +
         static_cast<uint64_t>(block % g_.group_blocks) * g_.summary_row_bytes;
}

}  // namespace farsight
