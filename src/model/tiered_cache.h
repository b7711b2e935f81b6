// What a forward asks of KV tiers, layer by layer: room for what is written, the pages that the lists name, in as many
// windows of ascending blocks as memory makes necessary, and requests that run ahead of their use. Host data alone.
//
// For every layer l of a step, in this order ("next" is what is attended after it: the next window, or the first of
// layer l + 1 where its list is known already):
//
//   OpenLayer(l)                     once, perhaps while l - 1 computes; then the copies on write
//   AwaitSummaryBlocks(l)            AppendKv, Summarise
//   Plan(l, ...)                     the list is known; perhaps while l - 1 computes
//   for every window w:              StartWindow(next), AwaitWindow(l, w), Attend, FinishWindow(l, w)
//   CloseLayer(l)
#ifndef FARSIGHT_MODEL_TIERED_CACHE_H_
#define FARSIGHT_MODEL_TIERED_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kv/tiers.h"
#include "model/runner.h"

namespace farsight {

struct TieredCacheShape {
  int layers = 0;
  int heads = 0;  // of a block over all sets of keys and values: its pages in a layer
  int kv_heads = 0;
  int block_tokens = 0;
  int max_rows = 0;
  int max_seqs = 0;    // tables, those of forks included
  int max_blocks = 0;  // of a sequence
  int32_t num_blocks = 0;
  uint64_t page_bytes = 0;         // rounded up to kIoAlignment
  uint64_t summary_row_bytes = 0;  // of a block over all layers and heads, as a session stores it
  int summary_kernel = 0;          // tokens that a summary of one token's window reads, its own included
  int summary_stride = 1;          // tokens between windows
};

// What a layer attends to.
struct LayerReads {
  // [T, Hkv] and [T, Hkv, max_selected] as Select leaves them; empty: every row attends to all visible blocks.
  std::span<const int32_t> counts;
  std::span<const int32_t> ids;
  int max_selected = 0;
  int list_head = 0;  // the first head of a block that the lists are about
  // A second branch that attends to the newest `window` tokens by other heads (or the same); 0: none.
  int window = 0;
  int window_head = 0;
};

class TieredCache {
 public:
  // Slots that a step needs, however long the context: one split of every sequence at a time, which its forks share.
  static int64_t MinimumSlots(const TieredCacheShape& shape, const RunnerTiers& options);
  // kResourceExhausted, with the bytes that would do, when `pool` is smaller than that.
  static StatusOr<std::unique_ptr<TieredCache>> Create(const TieredCacheShape& shape, const RunnerTiers& options,
                                                       std::span<std::byte> pool);

  KvTiers& tiers() { return *tiers_; }

  void BeginStep(const Batch& batch);
  // Whether the lists of the step that do not come from a layer's own queries are known before its own keys are: where
  // all that their scores are made of (SelectParams::skip_local) was there before the first row of its table.
  bool ListsKnownEarly(const AttentionPlan& plan) const;
  // After an error anywhere in a step: no request is under way any more.
  void Abort();

  bool Opened(int layer) const { return Of(layer).layer == layer; }
  Status OpenLayer(int layer);
  // The pages of a block before they are copied (all heads are copied at once), and when they are.
  Status BeginCopy(int layer, const BlockCopy& copy);
  void EndCopy();
  Status AwaitSummaryBlocks(int layer);
  void Plan(int layer, const LayerReads& reads);
  bool Planned(int layer) const { return Opened(layer) && Of(layer).planned; }
  int NumWindows(int layer) const { return static_cast<int>(Of(layer).windows.size()); }
  // The logical blocks [first, end) of a window; the last one ends at INT_MAX.
  int FirstBlock(int layer, int window) const { return WindowOf(layer, window).first_block; }
  int EndBlock(int layer, int window) const { return WindowOf(layer, window).end_block; }
  Status StartWindow(int layer, int window);  // nothing when it was started
  Status AwaitWindow(int layer, int window);
  void FinishWindow(int layer, int window);
  void CloseLayer(int layer);

 private:
  struct Window {
    int first_block, end_block;
    size_t first_page, end_page;  // in LayerState::pages
    FetchTicket ticket;
    bool started = false;
  };
  // Of a layer that computes, or the one after it.
  struct LayerState {
    int layer = -1;
    bool planned = false;
    FetchTicket summary_ticket;  // index -1: none
    std::vector<int32_t> pages;  // by window
    std::vector<Window> windows;
  };
  // Positions that a table is written at, those that a fork has in common with other paths included.
  struct Rows {
    int first = 0, end = 0;
    bool fork = false;
  };

  TieredCache(const TieredCacheShape& shape, const RunnerTiers& options) : s_(shape), lookahead_(options.lookahead) {}

  static int64_t SummaryBlocks(const TieredCacheShape& shape);
  LayerState& Of(int layer) { return layers_[layer % 2]; }
  const LayerState& Of(int layer) const { return layers_[layer % 2]; }
  Window& WindowOf(int layer, int window) { return Of(layer).windows[static_cast<size_t>(window)]; }
  const Window& WindowOf(int layer, int window) const { return Of(layer).windows[static_cast<size_t>(window)]; }
  int32_t Physical(int seq, int block) const {
    return batch_
        ->block_tables[static_cast<size_t>(seq) * static_cast<size_t>(s_.max_blocks) + static_cast<size_t>(block)];
  }
  // Whether page (logical block, head) of a sequence is wanted by the layer that is being planned.
  uint8_t* Wanted(int seq, int head) {
    return wanted_.data() + (static_cast<size_t>(seq) * static_cast<size_t>(s_.heads) + static_cast<size_t>(head)) *
                                static_cast<size_t>(s_.max_blocks);
  }
  void WantLists(const LayerReads& reads);
  void WantWindow(const LayerReads& reads);

  TieredCacheShape s_;
  bool lookahead_;
  std::unique_ptr<KvTiers> tiers_;
  const Batch* batch_ = nullptr;  // of the step at hand
  std::vector<Rows> rows_;        // [tables] of the step
  std::vector<int32_t> written_;  // blocks that the step writes to
  std::vector<int32_t> summary_blocks_;
  int64_t request_slots_ = 0;  // pages of one window at most, beside those that are written
  int used_blocks_ = 0;        // of the longest sequence
  std::vector<uint8_t> wanted_;
  std::vector<uint32_t> seen_;  // [pages of a layer] the mark of the plan that has the page already
  uint32_t seen_mark_ = 0;
  std::vector<int32_t> pages_;  // scratch of one call
  LayerState layers_[2];
  FetchTicket copy_ticket_;
};

}  // namespace farsight

#endif  // FARSIGHT_MODEL_TIERED_CACHE_H_
