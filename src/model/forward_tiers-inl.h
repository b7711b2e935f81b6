// The forward where keys and values lie mostly in a file: what it tells the tiers, and attention in parts.
#ifndef FARSIGHT_MODEL_FORWARD_TIERS_INL_H_
#define FARSIGHT_MODEL_FORWARD_TIERS_INL_H_

#include <algorithm>
#include <memory>

#include "model/forward-inl.h"

namespace farsight {

template <Backend B>
Status Forward<B>::MakeTiers() {
  TieredCacheShape s;
  s.layers = c_.layers;
  s.heads = cached_heads_;
  s.kv_heads = c_.kv_heads;
  s.block_tokens = block_tokens_;
  s.max_rows = o_.max_rows;
  s.max_seqs = o_.max_seqs;
  s.max_blocks = max_blocks_;
  s.num_blocks = o_.num_blocks;
  s.page_bytes = kv_[0].view.page_bytes;
  if (o_.plan.summary.kind == SummaryKind::kPooledKeys || o_.plan.summary.kind == SummaryKind::kCompressed) {
    s.summary_kernel = o_.plan.summary.kernel;
    s.summary_stride = o_.plan.summary.stride;
  }
  const uint64_t all =
      static_cast<uint64_t>(c_.layers) * static_cast<uint64_t>(cached_heads_) * static_cast<uint64_t>(o_.num_blocks);
  const int64_t least = TieredCache::MinimumSlots(s, o_.tiers);
  const uint64_t slots = std::min(o_.tiers.memory_bytes / s.page_bytes, std::max(all, static_cast<uint64_t>(least)));
  if (slots < all) {
    RunnerTiers chains = o_.tiers;
    chains.fork_blocks = 0;
    const int64_t spare = static_cast<int64_t>(slots) - TieredCache::MinimumSlots(s, chains);
    fork_blocks_ = std::max<int64_t>(spare, 0) / (int64_t{s.layers} * s.heads);
  }
  FS_ASSIGN_OR_RETURN(tier_pages_, b_.Allocate(static_cast<size_t>(slots * s.page_bytes + kIoAlignment)));
  const auto at = reinterpret_cast<uintptr_t>(tier_pages_.data());
  std::byte* pages = tier_pages_.data() + (RoundUpToIo(at) - at);
  FS_ASSIGN_OR_RETURN(tiered_, TieredCache::Create(s, o_.tiers, {pages, static_cast<size_t>(slots * s.page_bytes)}));
  for (int l = 0; l < c_.layers; ++l) {
    KvView& view = kv_[static_cast<size_t>(l)].view;
    view.pages = pages;
    view.slots = tiered_->tiers().slots(l);
  }
  const size_t carry = static_cast<size_t>(o_.max_rows) * b_.AttendCarryBytes(c_.heads, c_.head_dim);
  FS_ASSIGN_OR_RETURN(carry_, b_.Allocate(carry));
  if (IsNsa()) {
    FS_ASSIGN_OR_RETURN(window_carry_, b_.Allocate(carry));
  }
  return OkStatus();
}

template <Backend B>
void Forward<B>::PlanLayer(int l, const Batch& batch, bool any_selects) {
  LayerReads reads;
  if (Selects(static_cast<size_t>(l)) && any_selects) {
    LayerList& list = *std::find_if(lists_.begin(), lists_.end(), [&](const auto& own) { return own.layer == l; });
    FetchCounts(list, batch);
    FetchIds(list, batch);
    const size_t pairs = Pairs(batch);
    reads.counts = std::span(list.host_counts).first(pairs);
    reads.ids = list.host_ids;
    reads.max_selected = o_.plan.top_k;
  }
  const bool sets = c_.nsa.kv_sets == 3;
  reads.list_head = sets ? kSelected * c_.kv_heads : 0;
  reads.window = IsNsa() ? c_.nsa.window : 0;
  reads.window_head = sets ? kWindow * c_.kv_heads : 0;
  tiered_->Plan(l, reads);
}

template <Backend B>
Status Forward<B>::PlanAhead(int l, const Batch& batch, const RowBatch& rows, bool any_selects) {
  if (!o_.tiers.lookahead || l >= c_.layers || tiered_->Planned(l)) return OkStatus();
  const bool chooses = Selects(static_cast<size_t>(l)) && any_selects && !Inherits(l) && Refreshes(l);
  if (chooses && !(KnownEarly(l) && early_)) return OkStatus();
  FS_RETURN_IF_ERROR(OpenLayer(l, batch));
  if (chooses) Select(l, rows, nullptr, any_selects);
  PlanLayer(l, batch, any_selects);
  return OkStatus();
}

template <Backend B>
Status Forward<B>::RequestEarly(int l, const Batch& batch, const RowBatch& rows, bool any_selects) {
  if (!early_ || !any_selects) return OkStatus();
  const auto request = [&](int target) {
    FS_RETURN_IF_ERROR(PlanAhead(target, batch, rows, any_selects));
    return tiered_->StartWindow(target, 0);
  };
  if (l == 0 && Forecasts(0)) FS_RETURN_IF_ERROR(request(0));
  // A layer in windows keeps the memory of the next one's until its last.
  const bool whole = tiered_->Planned(l) && tiered_->NumWindows(l) == 1;
  if (whole && KnownEarly(l + 1)) FS_RETURN_IF_ERROR(request(l + 1));
  SubmitBeside();
  return OkStatus();
}

template <Backend B>
Status Forward<B>::AttendInWindows(int l, const Batch& batch, const RowBatch& rows, bool any_selects) {
  if (!tiered_->Planned(l)) PlanLayer(l, batch, any_selects);
  const int n = tiered_->NumWindows(l);
  for (int w = 0; w < n; ++w) {
    FS_RETURN_IF_ERROR(tiered_->StartWindow(l, w));
    if (o_.tiers.lookahead && w + 1 < n) {
      FS_RETURN_IF_ERROR(tiered_->StartWindow(l, w + 1));
    } else if (w + 1 == n) {
      FS_RETURN_IF_ERROR(PlanAhead(l + 1, batch, rows, any_selects));
      if (tiered_->Planned(l + 1)) FS_RETURN_IF_ERROR(tiered_->StartWindow(l + 1, 0));
    }
    FS_RETURN_IF_ERROR(tiered_->AwaitWindow(l, w));
    SubmitBeside();
    AttendPart(l, rows, any_selects, tiered_->FirstBlock(l, w), tiered_->EndBlock(l, w));
    tiered_->FinishWindow(l, w);
  }
  tiered_->CloseLayer(l);
  return OkStatus();
}

}  // namespace farsight

#endif  // FARSIGHT_MODEL_FORWARD_TIERS_INL_H_
