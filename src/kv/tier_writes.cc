// Writing behind, and what sessions need written.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "io/hash.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

constexpr size_t kBatchPages = 256;

}  // namespace

// A place that a session on disk refers to is never written again: the block moves to a fresh one. All its pages must
// be newer in memory then.
Status KvTiers::EnsureWritable(int32_t block) {
  BlockPlace& place = PlaceOf(block);
  if (stores_[static_cast<size_t>(place.store)]->Writable(place.file_block)) return OkStatus();
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h) {
      const size_t i = PageIndex(l, block * o_.heads + h);
      if (in_file_[i] == 0) continue;
      const bool here = where_[i] >= 0 && SlotOf(where_[i]).state == SlotState::kUnfilled;
      if (!here) return Internal("KV block " + std::to_string(block) + " was changed in part; it was not reopened");
    }
  }
  const int32_t home = stores_[static_cast<size_t>(place.store)]->read_only() ? 0 : place.store;
  FS_ASSIGN_OR_RETURN(const int32_t fresh, stores_[static_cast<size_t>(home)]->Allocate());
  Settle(block, {home, fresh});
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h) in_file_[PageIndex(l, block * o_.heads + h)] = 0;
  }
  return OkStatus();
}

void KvTiers::Settle(int32_t block, BlockPlace to) {
  BlockPlace& place = PlaceOf(block);
  stores_[static_cast<size_t>(place.store)]->Release(place.file_block);
  --store_blocks_[static_cast<size_t>(place.store)];
  ++store_blocks_[static_cast<size_t>(to.store)];
  place = to;
}

// Fills order_ with the dirty pages by place. After an error those without a place stay dirty.
Status KvTiers::CollectDirty() {
  order_.clear();
  size_t kept = 0;
  Status status;
  for (const Dirty& d : dirty_) {
    const Slot& s = SlotOf(d.slot);
    if (s.generation != d.generation || s.state != SlotState::kDirty) continue;
    if (Status placed = EnsureWritable(BlockOf(s.page)); !placed.ok()) {
      dirty_[kept++] = d;
      if (status.ok()) status = std::move(placed);
      continue;
    }
    SlotOf(d.slot).state = SlotState::kWriting;  // an entry that comes twice is taken once
    order_.push_back({PlaceOf(BlockOf(s.page)).store, s.page, d.slot, OffsetOf(s.layer, s.page)});
  }
  dirty_.resize(kept);
  std::sort(order_.begin(), order_.end(),
            [](const Miss& a, const Miss& b) { return a.store != b.store ? a.store < b.store : a.offset < b.offset; });
  return status;
}

Status KvTiers::StartWrites() {
  if (dirty_.empty()) return OkStatus();
  Status status = CollectDirty();
  for (size_t first = 0; first < order_.size();) {
    size_t count = 1;
    while (first + count < order_.size() && count < kBatchPages && order_[first + count].store == order_[first].store) {
      ++count;
    }
    if (num_writes_ == writes_.size()) (void)FinishOldestWrite();  // its pages are dirty again if it failed
    StartBatch(first, count);
    first += count;
  }
  return status;
}

void KvTiers::StartBatch(size_t first, size_t count) {
  WriteBatch& batch = writes_[(first_write_ + num_writes_) % writes_.size()];
  batch.store = order_[first].store;
  batch.slots.clear();
  batch.sums.clear();
  pieces_.clear();
  for (size_t i = first; i < first + count; ++i) {
    const std::byte* data = SlotData(order_[i].slot);
    batch.slots.push_back(order_[i].slot);
    batch.sums.push_back(Checksum({data, o_.page_bytes}));
    pieces_.push_back({order_[i].offset, SlotData(order_[i].slot), o_.page_bytes});
  }
  batch.ticket = stores_[static_cast<size_t>(batch.store)]->file().Start(IoKind::kWrite, pieces_);
  ++num_writes_;
}

Status KvTiers::FinishOldestWrite() {
  WriteBatch& batch = writes_[first_write_];
  Status status = stores_[static_cast<size_t>(batch.store)]->file().Wait(batch.ticket);
  first_write_ = (first_write_ + 1) % writes_.size();
  --num_writes_;
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    const int32_t slot = batch.slots[i];
    Slot& s = SlotOf(slot);
    if (!status.ok()) {
      s.state = SlotState::kDirty;
      dirty_.push_back({slot, s.generation});
      continue;
    }
    const size_t page = PageIndex(s.layer, s.page);
    in_file_[page] = 1;
    sums_[page] = batch.sums[i];
    counters_[static_cast<size_t>(s.layer)].bytes_written += o_.page_bytes;
    MakeClean(slot);
  }
  if (!status.ok()) write_error_ = status;
  return status;
}

void KvTiers::PollWrites() {
  while (num_writes_ > 0) {
    const WriteBatch& batch = writes_[first_write_];
    if (!stores_[static_cast<size_t>(batch.store)]->file().Done(batch.ticket)) return;
    (void)FinishOldestWrite();  // kept in write_error_
  }
}

Status KvTiers::FinishAllWrites() {
  Status status;
  while (num_writes_ > 0) {
    if (Status s = FinishOldestWrite(); !s.ok() && status.ok()) status = std::move(s);
  }
  return status;
}

void KvTiers::SettleSlot(int32_t slot) {
  while (SlotOf(slot).state == SlotState::kWriting) (void)FinishOldestWrite();
  retention_.Hold(slot);
}

Status KvTiers::Flush(std::span<const int32_t> blocks) {
  CheckStep(0, blocks);
  write_error_ = OkStatus();
  FS_RETURN_IF_ERROR(StartWrites());
  FS_RETURN_IF_ERROR(FinishAllWrites());
  for (const int32_t block : blocks) {
    if (PlaceOf(block).store >= 0) FS_RETURN_IF_ERROR(WriteSnapshots(block));
  }
  return OkStatus();
}

// Unfilled pages as they are now; they stay unfilled.
Status KvTiers::WriteSnapshots(int32_t block) {
  order_.clear();
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h) {
      const int32_t page = block * o_.heads + h;
      const size_t i = PageIndex(l, page);
      if (where_[i] < 0 || in_file_[i] != 0 || SlotOf(where_[i]).state != SlotState::kUnfilled) continue;
      order_.push_back({0, page, where_[i], 0});
    }
  }
  if (order_.empty()) return OkStatus();
  FS_RETURN_IF_ERROR(EnsureWritable(block));
  // A fresh place holds nothing yet, so pages that an earlier snapshot wrote are written again.
  pieces_.clear();
  order_.clear();
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h) {
      const int32_t page = block * o_.heads + h;
      const size_t i = PageIndex(l, page);
      if (where_[i] < 0 || in_file_[i] != 0) continue;
      order_.push_back({0, page, where_[i], 0});
      pieces_.push_back({OffsetOf(l, page), SlotData(where_[i]), o_.page_bytes});
    }
  }
  FS_RETURN_IF_ERROR(stores_[static_cast<size_t>(PlaceOf(block).store)]->file().Transfer(IoKind::kWrite, pieces_));
  for (const Miss& m : order_) {
    const Slot& s = SlotOf(m.slot);
    const size_t i = PageIndex(s.layer, m.page);
    in_file_[i] = 1;
    sums_[i] = Checksum({SlotData(m.slot), o_.page_bytes});
    counters_[static_cast<size_t>(s.layer)].bytes_written += o_.page_bytes;
  }
  return OkStatus();
}

// Every page of a block that was flushed, [layers, heads] pages; from memory where it is there.
Status KvTiers::ReadBlock(int32_t block, std::byte* out) {
  pieces_.clear();
  order_.clear();
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h, out += o_.page_bytes) {
      const int32_t page = block * o_.heads + h;
      const size_t i = PageIndex(l, page);
      if (in_file_[i] == 0)
        return Internal("KV block " + std::to_string(block) + " has no content in layer " + std::to_string(l));
      if (visible_[i] >= 0) {
        std::memcpy(out, SlotData(visible_[i]), o_.page_bytes);
      } else {
        pieces_.push_back({OffsetOf(l, page), out, o_.page_bytes});
        order_.push_back({0, page, l, 0});
      }
    }
  }
  AsyncFile& file = stores_[static_cast<size_t>(PlaceOf(block).store)]->file();
  FS_RETURN_IF_ERROR(file.Transfer(IoKind::kRead, pieces_));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (Checksum({pieces_[i].data, o_.page_bytes}) != sums_[PageIndex(order_[i].slot, order_[i].page)]) {
      return DataLoss("a KV page at " + std::to_string(pieces_[i].offset) + " of '" + file.path() +
                      "' does not match its checksum");
    }
  }
  return OkStatus();
}

Status KvTiers::Move(int32_t block, int32_t store) {
  const BlockPlace from = PlaceOf(block);
  if (from.store == store) return OkStatus();
  if (stores_[static_cast<size_t>(store)]->read_only()) {
    return InvalidArgument("'" + stores_[static_cast<size_t>(store)]->file().path() + "' was opened for reading");
  }
  if (from.store != 0) {
    return Unavailable("KV block " + std::to_string(block) + " lives in '" +
                       stores_[static_cast<size_t>(from.store)]->file().path() +
                       "'; it cannot be moved to another file");
  }
  FS_RETURN_IF_ERROR(Flush({&block, 1}));
  const size_t lanes = static_cast<size_t>(o_.layers) * static_cast<size_t>(o_.heads);
  FS_ASSIGN_OR_RETURN(Buffer memory, AllocateHost(lanes * o_.page_bytes + kIoAlignment));
  const auto at = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* bounce = memory.data() + (RoundUpToIo(at) - at);
  FS_RETURN_IF_ERROR(ReadBlock(block, bounce));
  BlockStore& target = *stores_[static_cast<size_t>(store)];
  FS_ASSIGN_OR_RETURN(const int32_t fresh, target.Allocate());
  pieces_.clear();
  for (size_t i = 0; i < lanes; ++i) {
    const auto layer = static_cast<int32_t>(i / static_cast<size_t>(o_.heads));
    const auto head = static_cast<int32_t>(i % static_cast<size_t>(o_.heads));
    pieces_.push_back({target.PageOffset(fresh, layer, head), bounce + i * o_.page_bytes, o_.page_bytes});
  }
  if (Status written = target.file().Transfer(IoKind::kWrite, pieces_); !written.ok()) {
    target.Release(fresh);
    return written;
  }
  Settle(block, {store, fresh});
  return OkStatus();
}

}  // namespace farsight
