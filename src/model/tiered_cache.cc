#include "model/tiered_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace farsight {
namespace {

int RoundedUp(int n, int to) { return (n + to - 1) / to; }

}  // namespace

// Full blocks before a sequence's first row that its new summaries may read.
int64_t TieredCache::SummaryBlocks(const TieredCacheShape& s) {
  return s.summary_kernel > 1 ? RoundedUp(s.summary_kernel - 1, s.block_tokens) : 0;
}

int64_t TieredCache::MinimumSlots(const TieredCacheShape& s, const RunnerTiers& options) {
  TierNeeds n;
  n.layers = s.layers;
  n.heads = s.heads;
  n.open_blocks = options.open_blocks + options.fork_blocks;
  const int sequences = s.max_seqs - options.fork_tables;
  const int64_t split = std::min(kAttendSplitTokens / s.block_tokens, s.max_blocks);
  n.selected_blocks = static_cast<int32_t>(sequences * (split + SummaryBlocks(s)));
  n.appended_blocks = s.max_rows / s.block_tokens + 2 * sequences;
  n.requests_at_once = options.lookahead ? 2 : 1;
  return MinimumPages(n);
}

StatusOr<std::unique_ptr<TieredCache>> TieredCache::Create(const TieredCacheShape& shape, const RunnerTiers& options,
                                                           std::span<std::byte> pool) {
  const int64_t slots = static_cast<int64_t>(pool.size() / shape.page_bytes);
  const int64_t least = MinimumSlots(shape, options);
  if (slots < least) {
    return ResourceExhausted("a memory of " + std::to_string(options.memory_bytes) +
                             " bytes for keys and values is too small; at least " +
                             std::to_string(static_cast<uint64_t>(least) * shape.page_bytes) + " bytes are needed");
  }
  FS_ASSIGN_OR_RETURN(auto file, options.open_file());
  StoreGeometry geometry;
  geometry.layers = shape.layers;
  geometry.heads = shape.heads;
  geometry.page_bytes = shape.page_bytes;
  FS_RETURN_IF_ERROR(CheckGeometry(geometry));
  auto store =
      std::make_unique<BlockStore>(std::move(file), geometry, 0, std::numeric_limits<uint64_t>::max() / 2, false);
  std::unique_ptr<TieredCache> cache(new TieredCache(shape, options));
  TierOptions t;
  t.layers = shape.layers;
  t.heads = shape.heads;
  t.num_blocks = shape.num_blocks;
  t.page_bytes = shape.page_bytes;
  FS_ASSIGN_OR_RETURN(cache->tiers_, KvTiers::Create(t, pool, std::move(store)));
  cache->wanted_.assign(
      static_cast<size_t>(shape.max_seqs) * static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.max_blocks),
      0);
  cache->seen_.assign(static_cast<size_t>(shape.num_blocks) * static_cast<size_t>(shape.heads), 0);
  return cache;
}

void TieredCache::BeginStep(const Batch& batch) {
  batch_ = &batch;
  rows_.assign(static_cast<size_t>(batch.num_seqs), {});
  for (int t = 0; t < batch.num_rows(); ++t) {
    Rows& r = rows_[static_cast<size_t>(batch.row_seq[static_cast<size_t>(t)])];
    const int position = batch.positions[static_cast<size_t>(t)];
    if (r.end == 0) r.first = position;
    r.end = position + 1;
  }
  for (const RowEcho& e : batch.echoes) {
    Rows& r = rows_[static_cast<size_t>(e.seq)];
    r.first = std::min(r.first, batch.positions[static_cast<size_t>(e.first)]);
    r.fork = true;
  }
  written_.clear();
  summary_blocks_.clear();
  used_blocks_ = 0;
  int64_t forked = 0;
  for (int s = 0; s < batch.num_seqs; ++s) {
    const Rows& r = rows_[static_cast<size_t>(s)];
    if (r.end == 0) continue;
    const int own = r.first / s_.block_tokens;
    const int end = RoundedUp(r.end, s_.block_tokens);
    used_blocks_ = std::max(used_blocks_, end);
    for (int b = own; b < end; ++b) written_.push_back(Physical(s, b));
    if (r.fork) forked += end - own;
    // Windows that end in these rows begin in earlier blocks, which a fork has in common with its sequence.
    if (s_.summary_kernel == 0 || r.end / s_.summary_stride == r.first / s_.summary_stride) continue;
    for (int b = std::max(0, r.first + 1 - s_.summary_kernel) / s_.block_tokens; b < own; ++b) {
      const int32_t block = Physical(s, b);
      const bool there = std::find(summary_blocks_.begin(), summary_blocks_.end(), block) != summary_blocks_.end();
      if (!there) summary_blocks_.push_back(block);
    }
  }
  const int64_t open = static_cast<int64_t>(s_.layers) * batch.open_blocks;  // forks included
  const auto appended = static_cast<int64_t>(written_.size() + summary_blocks_.size()) - forked;
  const int64_t beside = appended * (lookahead_ ? 2 : 1);
  request_slots_ = (tiers_->num_slots() - s_.heads * (open + beside)) / (lookahead_ ? 2 : 1);
  for (LayerState& l : layers_) l.layer = -1;
  tiers_->BeginStep();
}

void TieredCache::Abort() {
  EndCopy();
  for (LayerState& l : layers_) {
    if (l.layer < 0) continue;
    if (l.summary_ticket.index >= 0) tiers_->Finish(l.summary_ticket);
    for (Window& w : l.windows) {
      if (w.started) tiers_->Finish(w.ticket);
    }
    l.layer = -1;
  }
}

Status TieredCache::OpenLayer(int layer) {
  LayerState& l = Of(layer);
  l.layer = layer;
  l.planned = false;
  l.summary_ticket = {};
  l.windows.clear();
  FS_RETURN_IF_ERROR(tiers_->BeginAppend(layer, written_));
  if (summary_blocks_.empty()) return OkStatus();
  pages_.clear();
  for (const int32_t block : summary_blocks_) {
    for (int h = 0; h < s_.heads; ++h) pages_.push_back(block * s_.heads + h);
  }
  FS_ASSIGN_OR_RETURN(l.summary_ticket, tiers_->Request(layer, pages_));
  return OkStatus();
}

Status TieredCache::BeginCopy(int layer, const BlockCopy& copy) {
  pages_.clear();
  for (int h = 0; h < s_.heads; ++h) pages_.push_back(copy.from * s_.heads + h);
  FS_ASSIGN_OR_RETURN(copy_ticket_, tiers_->Request(layer, pages_));
  const Status status = tiers_->Wait(copy_ticket_);
  if (!status.ok()) copy_ticket_ = {};
  return status;
}

void TieredCache::EndCopy() {
  if (copy_ticket_.index >= 0) tiers_->Finish(std::exchange(copy_ticket_, {}));
}

Status TieredCache::AwaitSummaryBlocks(int layer) {
  LayerState& l = Of(layer);
  if (l.summary_ticket.index < 0) return OkStatus();
  const Status status = tiers_->Wait(l.summary_ticket);
  if (!status.ok()) l.summary_ticket = {};
  return status;
}

void TieredCache::WantLists(const LayerReads& reads) {
  const auto all = [&](int s, int position) {
    for (int h = 0; h < s_.kv_heads; ++h) {
      std::fill_n(Wanted(s, reads.list_head + h), position / s_.block_tokens + 1, uint8_t{1});
    }
  };
  if (reads.counts.empty()) {
    for (int s = 0; s < batch_->num_seqs; ++s) {
      if (const int end = rows_[static_cast<size_t>(s)].end; end > 0) all(s, end - 1);
    }
    return;
  }
  for (size_t t = 0; t < batch_->row_seq.size(); ++t) {
    const int s = batch_->row_seq[t];
    const size_t pair = t * static_cast<size_t>(s_.kv_heads);
    if (reads.counts[pair] < 0) {
      all(s, batch_->positions[t]);
      continue;
    }
    for (int h = 0; h < s_.kv_heads; ++h) {
      const size_t at = pair + static_cast<size_t>(h);
      const int32_t* ids = reads.ids.data() + at * static_cast<size_t>(reads.max_selected);
      uint8_t* wanted = Wanted(s, reads.list_head + h);
      for (int32_t k = 0; k < reads.counts[at]; ++k) wanted[ids[k]] = 1;
    }
  }
}

void TieredCache::WantWindow(const LayerReads& reads) {
  for (int s = 0; s < batch_->num_seqs; ++s) {
    const Rows& r = rows_[static_cast<size_t>(s)];
    if (r.end == 0) continue;
    const int first = std::max(0, r.first + 1 - reads.window) / s_.block_tokens;
    const int end = RoundedUp(r.end, s_.block_tokens);
    for (int h = 0; h < s_.kv_heads; ++h)
      std::fill_n(Wanted(s, reads.window_head + h) + first, end - first, uint8_t{1});
  }
}

void TieredCache::Plan(int layer, const LayerReads& reads) {
  LayerState& l = Of(layer);
  FS_CHECK(l.layer == layer, "a layer is opened before it is planned");
  for (int s = 0; s < batch_->num_seqs; ++s) {
    for (int h = 0; h < s_.heads; ++h) std::fill_n(Wanted(s, h), used_blocks_, uint8_t{0});
  }
  WantLists(reads);
  if (reads.window > 0) WantWindow(reads);
  l.planned = true;
  l.pages.clear();
  l.windows.clear();
  l.windows.push_back({0, std::numeric_limits<int>::max(), 0, 0, {}, false});
  const int split = kAttendSplitTokens / s_.block_tokens;
  if (++seen_mark_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    seen_mark_ = 1;
  }
  int64_t in_window = 0;  // pages that may have to be read
  for (int first = 0; first < used_blocks_; first += split) {
    const size_t before = l.pages.size();
    int64_t more = 0;
    for (int s = 0; s < batch_->num_seqs; ++s) {
      const int own = rows_[static_cast<size_t>(s)].first / s_.block_tokens;  // from here on: written, in memory
      for (int h = 0; h < s_.heads; ++h) {
        const uint8_t* wanted = Wanted(s, h);
        for (int b = first; b < std::min(first + split, used_blocks_); ++b) {
          if (wanted[b] == 0) continue;
          const int32_t page = Physical(s, b) * s_.heads + h;
          if (std::exchange(seen_[static_cast<size_t>(page)], seen_mark_) == seen_mark_) continue;  // of another path
          l.pages.push_back(page);
          more += b < own ? 1 : 0;
        }
      }
    }
    Window& w = l.windows.back();
    in_window += more;
    if (before > w.first_page && in_window > request_slots_) {
      in_window = more;
      w.end_block = first;
      l.windows.push_back({first, std::numeric_limits<int>::max(), before, 0, {}, false});
    }
    l.windows.back().end_page = l.pages.size();
  }
}

Status TieredCache::StartWindow(int layer, int window) {
  Window& w = WindowOf(layer, window);
  if (w.started) return OkStatus();
  const std::span<const int32_t> pages(Of(layer).pages);
  FS_ASSIGN_OR_RETURN(w.ticket, tiers_->Request(layer, pages.subspan(w.first_page, w.end_page - w.first_page)));
  w.started = true;
  return OkStatus();
}

Status TieredCache::AwaitWindow(int layer, int window) {
  FS_RETURN_IF_ERROR(StartWindow(layer, window));
  Window& w = WindowOf(layer, window);
  const Status status = tiers_->Wait(w.ticket);
  if (!status.ok()) w.started = false;
  return status;
}

void TieredCache::FinishWindow(int layer, int window) {
  Window& w = WindowOf(layer, window);
  tiers_->Finish(w.ticket);
  w.started = false;
}

void TieredCache::CloseLayer(int layer) {
  LayerState& l = Of(layer);
  if (l.summary_ticket.index >= 0) tiers_->Finish(std::exchange(l.summary_ticket, {}));
  tiers_->EndAppend(layer, batch_->full_blocks);
  l.layer = -1;
}

bool TieredCache::ListsKnownEarly(const AttentionPlan& plan) const {
  const SummaryView& s = plan.summary;
  const int block = plan.options.block_size;
  const int reach = s.kind == SummaryKind::kPooledKeys ? s.kernel - s.stride : 0;  // of the newest window, past it
  for (size_t t = 0; t < batch_->row_seq.size(); ++t) {
    const int own = batch_->positions[t] / block;
    if (batch_->selects[t] == 0 || own + 1 <= plan.top_k || own <= plan.local_blocks) continue;
    const int first = rows_[static_cast<size_t>(batch_->row_seq[t])].first;
    if ((own - plan.local_blocks) * block + reach > first) return false;
  }
  return true;
}

}  // namespace farsight
