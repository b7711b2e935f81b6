// KV blocks in two places: a memory pool of pages and a file. Only this class knows where a page is; which pages are
// wanted is decided elsewhere.
//
// A block id is what BlockPool hands out and block tables hold; with tiers it names a block, not a place in memory, so
// a BlockPool may have far more blocks than memory holds, and sharing, forking and truncating work as before. A page is
// the run of bytes of one (layer, block, head), page = block * heads + head. Attention finds it at
//
//   pool + slots(layer)[page] * page_bytes        (slots: int32 [num_blocks, heads] of the layer; -1 = not in memory)
//
// One step, for one layer l (blocks: those its rows write to; pages: what the lists of its rows name, any order,
// duplicates welcome; with lookahead the request for l is issued while l - 1 computes):
//
//   FS_RETURN_IF_ERROR(tiers.Follow(block_pool));                   once a step: blocks taken and given back
//   tiers.BeginStep();                                              once a step
//   FS_RETURN_IF_ERROR(tiers.BeginAppend(l, blocks));               room for what is written; before the request for l
//   ... AppendKv, Summarise ...
//   FS_ASSIGN_OR_RETURN(FetchTicket t, tiers.Request(l, pages));    lines the reads up, returns at once
//   tiers.Submit();                                                 starts them; Wait would, too
//   ... other work: the rest of layer l - 1 ...
//   FS_RETURN_IF_ERROR(tiers.Wait(t));                              now every page has a slot and keeps it
//   ... Attend ...
//   tiers.Finish(t);
//   tiers.EndAppend(l, full_blocks);                                blocks that became full: written behind
//
// A chunk whose lists name more pages than memory holds is attended in several requests (windows of ascending blocks).
// Copy on write of a partly filled block: request the pages of `from`, wait, BeginAppend(l, {to}), copy, finish.
// Errors of one request (a broken page, a full disk) leave everything else as it was; see each function.
#ifndef FARSIGHT_KV_TIERS_H_
#define FARSIGHT_KV_TIERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "farsight/status.h"
#include "kv/block_pool.h"
#include "kv/block_store.h"
#include "kv/tier_retention.h"

namespace farsight {

struct TierOptions {
  int32_t layers = 0;
  int32_t heads = 0;        // pages of a block in a layer
  int32_t num_blocks = 0;   // ids of the BlockPool; num_blocks * heads must stay below 2^31
  uint64_t page_bytes = 0;  // distance of slots: the backend's page rounded up to kIoAlignment
  RetentionOptions retention;
};

// The least pages of memory with which a step can be made.
struct TierNeeds {
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t open_blocks = 1;       // unfilled blocks at once: the last one of every sequence that is kept
  int32_t selected_blocks = 0;   // most blocks of one request and head, forced ones included
  int32_t appended_blocks = 0;   // most blocks a step writes to: (rows + block_tokens - 2) / block_tokens + 1
  int32_t requests_at_once = 2;  // requested and not yet finished: 2 with lookahead, else 1
};
// The unfilled blocks of every layer, what one layer appends beyond it, and what is requested at once.
int64_t MinimumPages(const TierNeeds& needs);

// Counted for each layer. Monotone; a page that two rows of a request name counts once.
struct TierCounters {
  uint64_t selected = 0;  // pages asked for
  uint64_t hit = 0;       // of them: in memory, or already on their way
  uint64_t missed = 0;    // of them: read from the file
  uint64_t failed = 0;    // of the missed: could not be read
  uint64_t evicted = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t waited_ns = 0;  // the caller stood still in Wait
  uint64_t hidden_ns = 0;  // reads were under way while the caller did other work (seen at its next call: upper bound)

  TierCounters& operator+=(const TierCounters& o);
};

struct FetchTicket {
  int32_t index = -1;
  uint32_t generation = 0;
};

// What a step or a session needs to know of a block in the file.
struct BlockPlace {
  int32_t store = -1;  // index of AddStore; 0: the scratch file; -1: the block is not begun
  int32_t file_block = -1;
};

// One caller at a time. Nothing is allocated once every table has seen its largest step.
class KvTiers {
 public:
  // `pool` is memory of the backend, aligned to kIoAlignment, and outlives this; its size over page_bytes is the number
  // of slots. `scratch` must have this geometry.
  static StatusOr<std::unique_ptr<KvTiers>> Create(const TierOptions& options, std::span<std::byte> pool,
                                                   std::unique_ptr<BlockStore> scratch);
  ~KvTiers();
  KvTiers(const KvTiers&) = delete;
  KvTiers& operator=(const KvTiers&) = delete;

  const TierOptions& options() const { return o_; }
  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }
  const int32_t* slots(int32_t layer) const { return visible_.data() + PageIndex(layer, 0); }
  std::byte* PageData(int32_t layer, int32_t page);  // null when it is not in memory
  const TierCounters& counters(int32_t layer) const { return counters_[static_cast<size_t>(layer)]; }
  TierCounters Total() const;
  int64_t CountHeld() const;  // pages that can't leave memory: of unfilled blocks, or held by a request
  BlockStore& store(int32_t index) { return *stores_[static_cast<size_t>(index)]; }

  // --- Admission: sequences share the pool; each reserves its minimum.
  // kResourceExhausted, with the bytes that would do, when the reserved minima would exceed the pool.
  Status Reserve(int64_t pages);
  void Unreserve(int64_t pages) { reserved_ -= pages; }

  // --- Life of a block.
  // A further file that blocks may live in (a session's); not owned. Its geometry must equal the scratch file's.
  StatusOr<int32_t> AddStore(BlockStore* store);
  // kUnavailable while a block lives there. The index is free again.
  Status RemoveStore(int32_t index);
  // Begins (in the scratch file) the blocks that the pool handed out since the last call and drops those given back.
  Status Follow(const BlockPool& pool);
  // A fresh block id without content, to be written to `store`. Whatever the id held before is dropped.
  Status Begin(int32_t block, int32_t store = 0);
  // A block whose content is in a store already (kUnavailable: another block has that place): `sums` are the checksums
  // [layers, heads] of its pages.
  Status Adopt(int32_t block, BlockPlace place, std::span<const uint64_t> sums);
  // The id's last owner left: its slots and its place in the file are free. Nothing when it is not begun.
  void Drop(int32_t block);
  // Before rows are appended to a block that was full before (truncated in the middle, or adopted): brings all its
  // pages into memory, where they stay until it is full again.
  Status Reopen(int32_t block);
  // Whether rows may be appended: what the block holds is unfilled, or it holds nothing.
  bool Open(int32_t block) const;
  BlockPlace place(int32_t block) const { return places_[static_cast<size_t>(block)]; }

  // --- A step.
  void BeginStep();
  // kResourceExhausted when there is no slot that may be taken.
  Status BeginAppend(int32_t layer, std::span<const int32_t> blocks);
  void EndAppend(int32_t layer, std::span<const int32_t> full_blocks);
  // kResourceExhausted (nothing changed) when the pages do not fit beside what is in use, with the bytes that would do;
  // the fault of the file when room could only be made by writing.
  StatusOr<FetchTicket> Request(int32_t layer, std::span<const int32_t> pages);
  // Starts the reads that are lined up. May be called on another thread while nothing else is: handing them to the
  // system takes as long as a small product.
  void Submit();
  // kDataLoss for a page whose checksum is wrong or that cannot be read; the ticket is then finished, and only requests
  // that name that page are affected.
  Status Wait(FetchTicket ticket);
  void Finish(FetchTicket ticket);

  // --- Sessions.
  // Writes every page of the blocks that is newer in memory than in the file, the unfilled ones too (they stay in
  // memory). Afterwards place() and PageSum() describe what the file holds; it is not synced.
  Status Flush(std::span<const int32_t> blocks);
  uint64_t PageSum(int32_t layer, int32_t page) const { return sums_[PageIndex(layer, page)]; }
  // Copies a block that lives elsewhere into `store`, where it lives from now on. kUnavailable when it lives in a store
  // other than the scratch file: two sessions do not share.
  Status Move(int32_t block, int32_t store);

 private:
  enum class SlotState : uint8_t {
    kFree,
    kLoading,   // a read is under way
    kClean,     // equal to the file
    kUnfilled,  // rows are still appended: only here
    kDirty,     // full, to be written
    kWriting,   // full, a write is under way
  };
  struct Slot {
    SlotState state = SlotState::kFree;
    int32_t layer = 0;
    int32_t page = -1;
    int32_t pins = 0;         // requests that hold it
    uint32_t generation = 0;  // of its content: a request that holds an older one holds nothing
    int32_t loader = -1;      // kLoading: the request that reads it
  };
  struct Held {
    int32_t page;
    int32_t slot;
    uint32_t generation;
  };
  struct Miss {
    int32_t store;
    int32_t page;
    int32_t slot;
    uint64_t offset;
  };
  struct Read {
    int32_t store;
    size_t first, count;  // in misses
    IoTicket ticket;
  };
  struct Fetch {
    uint32_t generation = 0;
    bool live = false;
    bool loaded = false;  // its reads are over
    int32_t layer = 0;
    int64_t start_ns = 0;
    int64_t done_ns = 0;  // when its reads were first seen to be over
    std::vector<Held> held;
    std::vector<Miss> misses;
    std::vector<Read> reads;
    Status status;
  };
  struct Dirty {
    int32_t slot;
    uint32_t generation;
  };
  struct WriteBatch {
    IoTicket ticket = 0;
    int32_t store = 0;
    std::vector<int32_t> slots;
    std::vector<uint64_t> sums;
  };

  KvTiers(const TierOptions& options, std::span<std::byte> pool, std::unique_ptr<BlockStore> scratch);

  size_t PageIndex(int32_t layer, int32_t page) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(pages_) + static_cast<size_t>(page);
  }
  std::byte* SlotData(int32_t slot) { return pool_.data() + static_cast<size_t>(slot) * o_.page_bytes; }
  Slot& SlotOf(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  BlockPlace& PlaceOf(int32_t block) { return places_[static_cast<size_t>(block)]; }
  void CheckStep(int32_t layer, std::span<const int32_t> blocks) const;

  // tiers.cc
  StatusOr<int32_t> TakeSlot(int32_t layer);
  void Assign(int32_t slot, int32_t layer, int32_t page, SlotState state);
  void FreeSlot(int32_t slot);
  void MakeClean(int32_t slot);
  void Touch(int32_t layer, int32_t page);
  void DropPage(int32_t layer, int32_t page);
  Status NoRoom(int64_t more) const;
  bool OnlyUseFills() const { return write_error_.ok() && dirty_.empty() && num_writes_ == 0; }
  int32_t BlockOf(int32_t page) const { return page / o_.heads; }
  uint64_t OffsetOf(int32_t layer, int32_t page) const;

  // tier_writes.cc
  Status EnsureWritable(int32_t block);
  Status StartWrites();
  Status CollectDirty();
  void StartBatch(size_t first, size_t count);
  void PollWrites();
  Status FinishOldestWrite();
  Status FinishAllWrites();
  void SettleSlot(int32_t slot);  // waits until no write of it is under way
  Status WriteSnapshots(int32_t block);
  Status ReadBlock(int32_t block, std::byte* out);
  void Settle(int32_t block, BlockPlace to);

  // tier_fetch.cc
  Fetch* NewFetch(int32_t layer);
  Fetch& FetchOf(FetchTicket ticket);
  Status Pin(Fetch* fetch, std::span<const int32_t> pages);
  Status TakeSlotsForMisses(Fetch* fetch);
  void QueueReads(Fetch* fetch);
  void FinishReads(Fetch* fetch);
  void FinishRead(Fetch* fetch, const Read& read);
  void Close(Fetch* fetch);
  void PollReads();

  TierOptions o_;
  int32_t pages_;  // of a layer: num_blocks * heads
  std::span<std::byte> pool_;
  std::unique_ptr<BlockStore> scratch_;
  std::vector<BlockStore*> stores_;    // [0] is the scratch file; null: removed
  std::vector<int32_t> store_blocks_;  // blocks that live in each store
  std::vector<BlockPlace> places_;     // [num_blocks]
  std::vector<uint32_t> followed_;     // [num_blocks] generation of the pool that the block was begun for
  std::vector<int32_t> visible_;       // [layers, num_blocks, heads] slot of a page that may be read
  std::vector<int32_t> where_;         // the same, also while it is being read into the slot
  std::vector<uint8_t> in_file_;       // the same: the file holds this content
  std::vector<uint64_t> sums_;         // the same: checksum of what the file holds
  std::vector<double> scores_;         // the same: retention score, also of pages that left memory
  std::vector<int32_t> last_use_;      // the same: step of the last use
  std::vector<uint32_t> seen_;         // the same for one layer: request that named the page last
  uint32_t seen_mark_ = 0;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;
  Retention retention_;
  int64_t step_ = 0;
  int64_t reserved_ = 0;
  std::vector<Fetch> fetches_;
  std::vector<Dirty> dirty_;        // to be written; an entry whose slot is no longer dirty is skipped
  std::vector<WriteBatch> writes_;  // a ring of batches under way
  size_t first_write_ = 0, num_writes_ = 0;
  Status write_error_;                  // of the last write: more are tried only when room is needed
  std::vector<IoPiece> pieces_;         // scratch of one call
  std::vector<Miss> order_;             // of one call
  std::vector<TierCounters> counters_;  // [layers]
};

}  // namespace farsight

#endif  // FARSIGHT_KV_TIERS_H_
