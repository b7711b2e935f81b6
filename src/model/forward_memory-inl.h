// What a forward allocates when it is made, and where a changed plan asks for more: cache, summaries, lists,
// activations.
#ifndef FARSIGHT_MODEL_FORWARD_MEMORY_INL_H_
#define FARSIGHT_MODEL_FORWARD_MEMORY_INL_H_

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "model/forward-inl.h"
#include "ops/dequantise.h"

namespace farsight {

// How the key summaries of a layer come about, beyond their constants.
template <Backend B>
Status Forward<B>::PrepareSummary(size_t layer, SummaryView* summary) {
  const auto& w = w_.layers[layer];
  if (!w.compress_k.empty()) {
    summary->key_weights = w.compress_k.template as<float>();
    summary->value_weights = w.compress_v.template as<float>();
  }
  if (c_.importances) {
    summary->importance_scale = w.importance_scale.template as<float>();
    summary->importance_weight = w.importance_weight.template as<float>();
    if (!w.importance_bias.empty()) summary->importance_bias = w.importance_bias.template as<float>();
  }
  // Three sets keep the compressed branch's keys as they are pooled; one set has been rotated for the others.
  const bool stored_rotated = !IsNsa() || c_.nsa.kv_sets == 1;
  summary->rotate_start = IsNsa() && c_.nsa.compress_rope == CompressRope::kStart;
  summary->unrotate = stored_rotated && (ScoresUnrotated() || summary->rotate_start);
  if (!summary->unrotate && !summary->rotate_start) return OkStatus();
  if (all_cos_.empty()) FS_RETURN_IF_ERROR(MakeContextTable());
  summary->cos = all_cos_.template as<float>();
  summary->sin = all_sin_.template as<float>();
  summary->half_dim = c_.rope.dims / 2;
  return OkStatus();
}

// cos and sin of every position, for keys that are turned after they were cached.
template <Backend B>
Status Forward<B>::MakeContextTable() {
  const auto n = static_cast<size_t>(max_blocks_) * static_cast<size_t>(block_tokens_);
  const size_t bytes = n * static_cast<size_t>(c_.rope.dims / 2) * sizeof(float);
  FS_ASSIGN_OR_RETURN(all_cos_, b_.Allocate(bytes));
  FS_ASSIGN_OR_RETURN(all_sin_, b_.Allocate(bytes));
  std::vector<int32_t> positions(n);
  for (size_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(i);
  FS_ASSIGN_OR_RETURN(Buffer at, b_.Allocate(n * sizeof(int32_t)));
  b_.CopyIn(at, 0, std::as_bytes(std::span(positions)));
  b_.RopeTable({at.template as<int32_t>(), inv_freq_.template as<double>(), all_cos_.template as<float>(),
                all_sin_.template as<float>(), static_cast<int>(n), c_.rope.dims / 2, rope_magnitude_});
  return OkStatus();
}

// The projection that chooses blocks of layer l is a product of its own beside the one of q, k and v. Where those are
// quantised it is Q8_0: products of floats took half of the time of choosing while a prompt is read.
template <Backend B>
Status Forward<B>::PrepareForecast() {
  if (o_.forecast == nullptr) return OkStatus();
  forecast_rotated_ = o_.forecast->info.rotated;
  forecast_heads_ = o_.forecast->Heads(c_);
  const int64_t rows = static_cast<int64_t>(forecast_heads_) * c_.head_dim;
  for (int l = 0; l < c_.layers; ++l) {
    const auto& values = o_.forecast->projections[static_cast<size_t>(l)];
    HostMatrix host{DType::kF32, rows, c_.hidden, std::as_bytes(std::span(values))};
    std::vector<std::byte> codes;
    const auto& own = w_.layers[static_cast<size_t>(l)].qkv.parts[0].matrix;
    if (IsQuantised(own.dtype()) && c_.hidden % InfoOf(DType::kQ8_0).block_elems == 0) {
      codes.resize(BytesOf(DType::kQ8_0, values.size()));
      QuantiseRowQ8(values.data(), static_cast<int64_t>(values.size()), codes.data());
      host = {DType::kQ8_0, rows, c_.hidden, codes};
    }
    FS_ASSIGN_OR_RETURN(Matrix m, b_.PrepareMatrix(std::span(&host, 1)));
    forecast_.push_back(std::move(m));
  }
  o_.forecast = nullptr;  // the caller's, and read now
  const auto floats = static_cast<size_t>(o_.max_rows) * static_cast<size_t>(rows);
  for (Buffer& b : forecast_rows_) {
    FS_ASSIGN_OR_RETURN(b, b_.Allocate(floats * sizeof(float)));
  }
  return OkStatus();
}

template <Backend B>
Status Forward<B>::AllocateCache() {
  for (int l = 0; l < c_.layers; ++l) {
    LayerCache cache;
    cache.view.dtype = o_.kv_dtype;
    cache.view.block_tokens = block_tokens_;
    cache.view.num_kv_heads = cached_heads_;
    cache.view.block_heads = cached_heads_;
    cache.view.head_dim = c_.head_dim;
    cache.view.page_bytes = b_.KvPageBytes(cache.view);
    const auto blocks = static_cast<size_t>(o_.num_blocks);
    if (o_.tiers.memory_bytes > 0) {
      cache.view.page_bytes = RoundUpToIo(cache.view.page_bytes);
    } else {
      FS_ASSIGN_OR_RETURN(cache.pages,
                          b_.Allocate(blocks * static_cast<size_t>(cached_heads_) * cache.view.page_bytes));
      cache.view.pages = cache.pages.data();
    }
    kv_.push_back(std::move(cache));
  }
  FS_ASSIGN_OR_RETURN(std::vector<LayerSummary> summaries, AllocateSummaries());
  for (size_t l = 0; l < kv_.size(); ++l) kv_[l].summary = std::move(summaries[l]);
  return o_.tiers.memory_bytes > 0 ? MakeTiers() : OkStatus();
}

// Of every layer, empty where it does not select.
template <Backend B>
auto Forward<B>::AllocateSummaries() -> StatusOr<std::vector<LayerSummary>> {
  std::vector<LayerSummary> out(kv_.size());
  for (size_t l = 0; l < kv_.size(); ++l) {
    if (!Selects(l)) continue;
    LayerSummary& s = out[l];
    s.view = o_.plan.summary;
    FS_RETURN_IF_ERROR(PrepareSummary(l, &s.view));
    s.view.page_bytes = b_.SummaryPageBytes(kv_[l].view, s.view);
    s.view.head_bytes = static_cast<size_t>(o_.num_blocks) * s.view.page_bytes;
    FS_ASSIGN_OR_RETURN(s.pages, b_.Allocate(static_cast<size_t>(c_.kv_heads) * s.view.head_bytes));
    s.view.pages = s.pages.data();
  }
  return out;
}

template <Backend B>
Status Forward<B>::AllocateActivations() {
  const auto floats = [&](int64_t rows, int64_t width) {
    return b_.Allocate(static_cast<size_t>(rows * width) * sizeof(float));
  };
  const int64_t t = o_.max_rows;
  FS_ASSIGN_OR_RETURN(x_, floats(t, c_.hidden));
  FS_ASSIGN_OR_RETURN(h_, floats(t, std::max<int64_t>(c_.hidden, q_width_)));
  FS_ASSIGN_OR_RETURN(qkv_, floats(t, qkv_width_));
  FS_ASSIGN_OR_RETURN(gate_up_, floats(t, 2 * int64_t{c_.ffn}));
  FS_ASSIGN_OR_RETURN(act_, floats(t, c_.ffn));
  FS_ASSIGN_OR_RETURN(cos_, floats(t, c_.rope.dims / 2));
  FS_ASSIGN_OR_RETURN(sin_, floats(t, c_.rope.dims / 2));
  FS_ASSIGN_OR_RETURN(logits_, floats(o_.max_logit_rows, c_.vocab));
  host_logits_.resize(static_cast<size_t>(o_.max_logit_rows * c_.vocab));

  if (IsNsa()) {
    FS_ASSIGN_OR_RETURN(gates_, floats(t, int64_t{3} * c_.heads));
    FS_ASSIGN_OR_RETURN(selected_, floats(t, q_width_));
    FS_ASSIGN_OR_RETURN(windowed_, floats(t, q_width_));
  }

  // Step inputs lie one after another in one buffer: tokens, positions, row_seq, block tables, then the flags.
  const auto rows = static_cast<size_t>(o_.max_rows);
  tables_at_ = 3 * rows * sizeof(int32_t);
  flags_at_ = tables_at_ + static_cast<size_t>(o_.max_seqs) * static_cast<size_t>(max_blocks_) * sizeof(int32_t);
  FS_ASSIGN_OR_RETURN(inputs_, b_.Allocate(flags_at_ + rows));
  FS_ASSIGN_OR_RETURN(sources_, b_.Allocate(rows * sizeof(int32_t)));
  const std::vector<int32_t> seqs = EchoSeqs(o_.max_seqs);
  FS_ASSIGN_OR_RETURN(echo_seqs_, b_.Allocate(seqs.size() * sizeof(int32_t)));
  b_.CopyIn(echo_seqs_, 0, std::as_bytes(std::span(seqs)));
  FS_ASSIGN_OR_RETURN(lists_, AllocateLists());
  return AllocateBefore();
}

template <Backend B>
Status Forward<B>::AllocateBefore() {
  if (!FromInputBefore(c_.layers - 1) || !before_rows_[0].empty()) return OkStatus();
  for (Buffer& b : before_rows_) {
    FS_ASSIGN_OR_RETURN(b, b_.Allocate(static_cast<size_t>(o_.max_rows * qkv_width_) * sizeof(float)));
  }
  return OkStatus();
}

// Of the layers that select.
template <Backend B>
auto Forward<B>::AllocateLists() -> StatusOr<std::vector<LayerList>> {
  std::vector<LayerList> out;
  const size_t pairs = static_cast<size_t>(o_.max_rows) * static_cast<size_t>(c_.kv_heads);
  for (size_t l = 0; l < kv_.size(); ++l) {
    if (!Selects(l)) continue;
    LayerList list;
    list.layer = static_cast<int>(l);
    FS_ASSIGN_OR_RETURN(list.counts, b_.Allocate(pairs * sizeof(int32_t)));
    FS_ASSIGN_OR_RETURN(list.ids, b_.Allocate(pairs * static_cast<size_t>(o_.plan.top_k) * sizeof(int32_t)));
    list.host_counts.resize(pairs);
    if (o_.scores) {
      list.host_scores.resize(static_cast<size_t>(o_.max_logit_rows) * static_cast<size_t>(c_.kv_heads) *
                              static_cast<size_t>(max_blocks_));
      FS_ASSIGN_OR_RETURN(list.scores, b_.Allocate(list.host_scores.size() * sizeof(float)));
    }
    out.push_back(std::move(list));
  }
  return out;
}

}  // namespace farsight

#endif  // FARSIGHT_MODEL_FORWARD_MEMORY_INL_H_
