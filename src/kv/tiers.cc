#include "kv/tiers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace farsight {
namespace {

constexpr size_t kWriteBatches = 16;  // under way at once

bool SameGeometry(const StoreGeometry& a, const StoreGeometry& b) {
  return a.layers == b.layers && a.heads == b.heads && a.page_bytes == b.page_bytes;
}

}  // namespace

int64_t MinimumPages(const TierNeeds& n) {
  const int64_t tails = static_cast<int64_t>(n.layers) * n.open_blocks;
  const int64_t appended = std::max(n.appended_blocks - 1, 0);
  return n.heads * (tails + (appended + n.selected_blocks) * n.requests_at_once);
}

TierCounters& TierCounters::operator+=(const TierCounters& o) {
  selected += o.selected;
  hit += o.hit;
  missed += o.missed;
  failed += o.failed;
  evicted += o.evicted;
  bytes_read += o.bytes_read;
  bytes_written += o.bytes_written;
  waited_ns += o.waited_ns;
  hidden_ns += o.hidden_ns;
  return *this;
}

StatusOr<std::unique_ptr<KvTiers>> KvTiers::Create(const TierOptions& options, std::span<std::byte> pool,
                                                   std::unique_ptr<BlockStore> scratch) {
  const TierOptions& o = options;
  if (o.layers <= 0 || o.heads <= 0 || o.num_blocks <= 0 || o.num_blocks > INT32_MAX / o.heads) {
    return InvalidArgument("KV tiers need layers, heads and blocks, and fewer than 2^31 pages a layer; got " +
                           std::to_string(o.layers) + ", " + std::to_string(o.heads) + " and " +
                           std::to_string(o.num_blocks));
  }
  StoreGeometry g = scratch->geometry();
  if (!SameGeometry(g, {o.layers, o.heads, o.page_bytes, 0, 0})) {
    return InvalidArgument("the KV file has another number of layers, heads or bytes a page than the KV tiers");
  }
  if (reinterpret_cast<uintptr_t>(pool.data()) % kIoAlignment != 0) {
    return InvalidArgument("the KV memory must start at a multiple of " + std::to_string(kIoAlignment));
  }
  const uint64_t slots = pool.size() / o.page_bytes;
  const auto least = static_cast<uint64_t>(o.layers) * static_cast<uint64_t>(o.heads);
  if (slots < least + 1 || slots > INT32_MAX) {
    return ResourceExhausted("a KV memory of " + std::to_string(pool.size()) + " bytes holds " + std::to_string(slots) +
                             " pages; at least " + std::to_string(least + 1) + " pages, " +
                             std::to_string((least + 1) * o.page_bytes) + " bytes, are needed");
  }
  return std::unique_ptr<KvTiers>(new KvTiers(options, pool, std::move(scratch)));
}

KvTiers::KvTiers(const TierOptions& options, std::span<std::byte> pool, std::unique_ptr<BlockStore> scratch)
    : o_(options),
      pages_(options.num_blocks * options.heads),
      pool_(pool),
      scratch_(std::move(scratch)),
      retention_(static_cast<int32_t>(pool.size() / options.page_bytes), options.layers, options.retention) {
  const size_t all = static_cast<size_t>(o_.layers) * static_cast<size_t>(pages_);
  stores_.push_back(scratch_.get());
  store_blocks_.push_back(0);
  places_.resize(static_cast<size_t>(o_.num_blocks));
  followed_.assign(static_cast<size_t>(o_.num_blocks), 0);
  visible_.assign(all, -1);
  where_.assign(all, -1);
  in_file_.assign(all, 0);
  sums_.assign(all, 0);
  scores_.assign(all, Retention::kNever);
  last_use_.assign(all, -1);
  seen_.assign(static_cast<size_t>(pages_), 0);
  slots_.resize(pool.size() / o_.page_bytes);
  for (auto s = static_cast<int32_t>(slots_.size()); s > 0; --s) free_slots_.push_back(s - 1);
  writes_.resize(kWriteBatches);
  counters_.resize(static_cast<size_t>(o_.layers));
}

KvTiers::~KvTiers() {
  // The files still read from and write to the pool until then.
  for (auto& f : fetches_) {
    if (f.live) FinishReads(&f);
  }
  (void)FinishAllWrites();
}

TierCounters KvTiers::Total() const {
  TierCounters total;
  for (const auto& c : counters_) total += c;
  return total;
}

int64_t KvTiers::CountHeld() const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [](const Slot& s) { return s.state == SlotState::kUnfilled || s.pins > 0; });
}

std::byte* KvTiers::PageData(int32_t layer, int32_t page) {
  const int32_t slot = visible_[PageIndex(layer, page)];
  return slot < 0 ? nullptr : SlotData(slot);
}

uint64_t KvTiers::OffsetOf(int32_t layer, int32_t page) const {
  const BlockPlace place = places_[static_cast<size_t>(page / o_.heads)];
  return stores_[static_cast<size_t>(place.store)]->PageOffset(place.file_block, layer, page % o_.heads);
}

Status KvTiers::NoRoom(int64_t more) const {
  const uint64_t have = pool_.size() / o_.page_bytes * o_.page_bytes;
  return ResourceExhausted("all " + std::to_string(have) + " bytes of KV memory are in use; " +
                           std::to_string(have + static_cast<uint64_t>(more) * o_.page_bytes) +
                           " bytes would do for this step");
}

Status KvTiers::Reserve(int64_t pages) {
  if (reserved_ + pages > num_slots()) {
    const auto bytes = [this](int64_t n) { return std::to_string(static_cast<uint64_t>(n) * o_.page_bytes); };
    return ResourceExhausted("a sequence needs at least " + bytes(pages) + " bytes of KV memory; " +
                             bytes(num_slots() - reserved_) + " of " + bytes(num_slots()) +
                             " are not promised to others: a memory of " + bytes(reserved_ + pages) + " would do");
  }
  reserved_ += pages;
  return OkStatus();
}

// --- Slots.

void KvTiers::Assign(int32_t slot, int32_t layer, int32_t page, SlotState state) {
  Slot& s = SlotOf(slot);
  s.state = state;
  s.layer = layer;
  s.page = page;
  s.pins = 0;
  s.loader = -1;
  where_[PageIndex(layer, page)] = slot;
}

// The slot's page is in memory no longer; requests that hold it hold nothing.
void KvTiers::FreeSlot(int32_t slot) {
  Slot& s = SlotOf(slot);
  retention_.Hold(slot);
  const size_t i = PageIndex(s.layer, s.page);
  visible_[i] = -1;
  where_[i] = -1;
  s.state = SlotState::kFree;
  s.page = -1;
  s.pins = 0;
  ++s.generation;
  free_slots_.push_back(slot);
}

void KvTiers::MakeClean(int32_t slot) {
  Slot& s = SlotOf(slot);
  s.state = SlotState::kClean;
  if (s.pins == 0) retention_.Offer(slot, s.layer, scores_[PageIndex(s.layer, s.page)]);
}

void KvTiers::Touch(int32_t layer, int32_t page) {
  const size_t i = PageIndex(layer, page);
  if (last_use_[i] == static_cast<int32_t>(step_)) return;
  last_use_[i] = static_cast<int32_t>(step_);
  scores_[i] = retention_.Used(scores_[i], step_, layer);
}

StatusOr<int32_t> KvTiers::TakeSlot(int32_t layer) {
  for (;;) {
    if (free_slots_.empty()) {
      PollWrites();
      if (const int32_t victim = retention_.TakeVictim(step_, layer); victim >= 0) {
        ++counters_[static_cast<size_t>(SlotOf(victim).layer)].evicted;
        FreeSlot(victim);
      }
    }
    if (!free_slots_.empty()) {
      const int32_t slot = free_slots_.back();
      free_slots_.pop_back();
      return slot;
    }
    // Only writing makes room now. A failed write leaves its pages dirty; then it is tried once more, and its fault is
    // the caller's.
    if (num_writes_ > 0) {
      (void)FinishOldestWrite();
      continue;
    }
    write_error_ = OkStatus();
    FS_RETURN_IF_ERROR(StartWrites());
    if (num_writes_ == 0) return NoRoom(1);
    FS_RETURN_IF_ERROR(FinishOldestWrite());
  }
}

// --- Blocks.

StatusOr<int32_t> KvTiers::AddStore(BlockStore* store) {
  if (!SameGeometry(store->geometry(), scratch_->geometry())) {
    return InvalidArgument("'" + store->file().path() +
                           "' has another number of layers, heads or bytes a page than "
                           "the KV tiers");
  }
  for (size_t i = 1; i < stores_.size(); ++i) {
    if (stores_[i] == nullptr) {
      stores_[i] = store;
      return static_cast<int32_t>(i);
    }
  }
  stores_.push_back(store);
  store_blocks_.push_back(0);
  return static_cast<int32_t>(stores_.size() - 1);
}

Status KvTiers::RemoveStore(int32_t index) {
  if (const int32_t n = store_blocks_[static_cast<size_t>(index)]; n > 0) {
    return Unavailable(std::to_string(n) + " KV blocks in use live in '" +
                       stores_[static_cast<size_t>(index)]->file().path() + "'");
  }
  (void)FinishAllWrites();
  stores_[static_cast<size_t>(index)] = nullptr;
  return OkStatus();
}

Status KvTiers::Follow(const BlockPool& pool) {
  FS_CHECK(pool.num_blocks() == o_.num_blocks, "tiers follow a pool of their own size");
  for (int32_t b = 0; b < o_.num_blocks; ++b) {
    auto& followed = followed_[static_cast<size_t>(b)];
    if (!pool.Owned(b)) {
      Drop(b);
      followed = 0;
    } else if (followed != pool.generation(b)) {
      FS_RETURN_IF_ERROR(Begin(b));
      followed = pool.generation(b);
    }
  }
  return OkStatus();
}

Status KvTiers::Begin(int32_t block, int32_t store) {
  Drop(block);
  BlockStore& s = *stores_[static_cast<size_t>(store)];
  FS_ASSIGN_OR_RETURN(const int32_t file_block, (s.read_only() ? *scratch_ : s).Allocate());
  const int32_t home = s.read_only() ? 0 : store;
  ++store_blocks_[static_cast<size_t>(home)];
  PlaceOf(block) = {home, file_block};
  return OkStatus();
}

Status KvTiers::Adopt(int32_t block, BlockPlace place, std::span<const uint64_t> sums) {
  const auto lanes = static_cast<size_t>(o_.layers) * static_cast<size_t>(o_.heads);
  FS_CHECK(sums.size() == lanes, "an adopted block has a checksum for every layer and head");
  BlockStore& store = *stores_[static_cast<size_t>(place.store)];
  if (store.InUse(place.file_block)) {
    return Unavailable("block " + std::to_string(place.file_block) + " of '" + store.file().path() +
                       "' belongs to another sequence already");
  }
  Drop(block);
  store.Use(place.file_block);
  ++store_blocks_[static_cast<size_t>(place.store)];
  PlaceOf(block) = place;
  for (size_t i = 0; i < lanes; ++i) {
    const size_t layer = i / static_cast<size_t>(o_.heads), head = i % static_cast<size_t>(o_.heads);
    const size_t page = PageIndex(static_cast<int32_t>(layer), block * o_.heads + static_cast<int32_t>(head));
    in_file_[page] = 1;
    sums_[page] = sums[i];
  }
  return OkStatus();
}

void KvTiers::DropPage(int32_t layer, int32_t page) {
  const size_t i = PageIndex(layer, page);
  int32_t slot = where_[i];
  if (slot >= 0 && SlotOf(slot).state == SlotState::kLoading) {
    FinishReads(&fetches_[static_cast<size_t>(SlotOf(slot).loader)]);
    slot = where_[i];
  }
  if (slot >= 0) {
    SettleSlot(slot);  // a late write would land on whoever has the place in the file next
    FreeSlot(slot);
  }
  in_file_[i] = 0;
  scores_[i] = Retention::kNever;
  last_use_[i] = -1;
}

void KvTiers::Drop(int32_t block) {
  BlockPlace& place = PlaceOf(block);
  if (place.store < 0) return;
  for (int32_t l = 0; l < o_.layers; ++l) {
    for (int32_t h = 0; h < o_.heads; ++h) DropPage(l, block * o_.heads + h);
  }
  stores_[static_cast<size_t>(place.store)]->Release(place.file_block);
  --store_blocks_[static_cast<size_t>(place.store)];
  place = {};
}

bool KvTiers::Open(int32_t block) const {
  for (int32_t l = 0; l < o_.layers; ++l) {
    const size_t i = PageIndex(l, block * o_.heads);
    const int32_t slot = where_[i];
    if (slot >= 0 ? slots_[static_cast<size_t>(slot)].state != SlotState::kUnfilled : in_file_[i] != 0) return false;
  }
  return true;
}

Status KvTiers::Reopen(int32_t block) {
  std::vector<int32_t> pages;
  for (int32_t l = 0; l < o_.layers; ++l) {
    pages.clear();
    for (int32_t h = 0; h < o_.heads; ++h) {
      const size_t i = PageIndex(l, block * o_.heads + h);
      if (where_[i] >= 0 || in_file_[i] != 0) pages.push_back(block * o_.heads + h);
    }
    auto ticket = Request(l, pages);
    Status status = ticket.ok() ? Wait(*ticket) : ticket.status();
    if (!status.ok()) {
      for (int32_t done = 0; done < l; ++done)
        EndAppend(done, {&block, 1});  // as before: full, equal to the file or not
      return status;
    }
    for (const int32_t page : pages) {
      const int32_t slot = where_[PageIndex(l, page)];
      SettleSlot(slot);
      SlotOf(slot).state = SlotState::kUnfilled;
    }
    Finish(*ticket);
  }
  return OkStatus();
}

// --- Steps.

void KvTiers::CheckStep(int32_t layer, std::span<const int32_t> blocks) const {
  FS_CHECK(layer >= 0 && layer < o_.layers, "a layer of the model");
  for (const int32_t b : blocks) FS_CHECK(b >= 0 && b < o_.num_blocks, "a block of the pool");
}

void KvTiers::BeginStep() {
  ++step_;
  PollReads();
  PollWrites();
}

Status KvTiers::BeginAppend(int32_t layer, std::span<const int32_t> blocks) {
  CheckStep(layer, blocks);
  PollReads();
  int64_t left = static_cast<int64_t>(blocks.size()) * o_.heads;
  for (const int32_t block : blocks) {
    if (PlaceOf(block).store < 0)
      return Internal("KV block " + std::to_string(block) + " is written before it is begun");
    for (int32_t h = 0; h < o_.heads; ++h, --left) {
      const int32_t page = block * o_.heads + h;
      const size_t i = PageIndex(layer, page);
      if (const int32_t slot = where_[i]; slot >= 0 && SlotOf(slot).state == SlotState::kUnfilled) {
        in_file_[i] = 0;
        Touch(layer, page);
        continue;
      }
      if (where_[i] >= 0 || in_file_[i] != 0) {
        return Internal("KV block " + std::to_string(block) + " is full; it is reopened before it is written again");
      }
      auto slot = TakeSlot(layer);
      if (!slot.ok()) {
        return OnlyUseFills() ? NoRoom(left) : slot.status();
      }
      // What another sequence left there must not reach a session file.
      std::memset(SlotData(*slot), 0, o_.page_bytes);
      Assign(*slot, layer, page, SlotState::kUnfilled);
      visible_[i] = *slot;
      Touch(layer, page);
    }
  }
  return OkStatus();
}

void KvTiers::EndAppend(int32_t layer, std::span<const int32_t> full_blocks) {
  CheckStep(layer, full_blocks);
  for (const int32_t block : full_blocks) {
    for (int32_t h = 0; h < o_.heads; ++h) {
      const size_t i = PageIndex(layer, block * o_.heads + h);
      const int32_t slot = where_[i];
      if (slot < 0 || SlotOf(slot).state != SlotState::kUnfilled) continue;  // ended before
      if (in_file_[i] != 0) {                                                // reopened, and nothing was appended
        MakeClean(slot);
        continue;
      }
      SlotOf(slot).state = SlotState::kDirty;
      dirty_.push_back({slot, SlotOf(slot).generation});
    }
  }
  PollReads();
  if (write_error_.ok()) write_error_ = StartWrites();
}

}  // namespace farsight
