// The one forward pass. A template over the backend; what differs between models, policies and phases is data.
#ifndef FARSIGHT_MODEL_FORWARD_INL_H_
#define FARSIGHT_MODEL_FORWARD_INL_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/check.h"
#include "model/runner.h"
#include "model/step_rows.h"
#include "model/tiered_cache.h"
#include "model/weights.h"

namespace farsight {

template <Backend B>
class Forward final : public ModelRunner {
 public:
  using Matrix = typename B::Matrix;

  Forward(B& backend, const Weights<Matrix>& weights, const ModelConfig& config, RunnerOptions options)
      : b_(backend), w_(weights), c_(config), o_(std::move(options)) {}

  Status Prepare() {
    cached_heads_ = c_.kv_heads * std::max(1, c_.nsa.kv_sets);
    q_width_ = static_cast<int64_t>(c_.heads) * c_.head_dim;
    kv_width_ = static_cast<int64_t>(cached_heads_) * c_.head_dim;
    qkv_width_ = q_width_ + 2 * kv_width_;
    block_tokens_ = o_.plan.options.block_size;
    max_blocks_ = static_cast<int>((o_.context_tokens + block_tokens_ - 1) / block_tokens_);
    OpLimits limits;
    limits.max_rows = o_.max_rows;
    limits.max_seqs = o_.max_seqs;
    limits.max_blocks = max_blocks_;
    limits.max_width = std::max({c_.hidden, c_.ffn, static_cast<int>(q_width_)});
    limits.max_precise = c_.vocab;
    limits.num_heads = c_.heads;
    limits.num_kv_heads = cached_heads_;
    limits.head_dim = c_.head_dim;
    limits.block_tokens = block_tokens_;
    FS_RETURN_IF_ERROR(b_.Reserve(limits));
    FS_ASSIGN_OR_RETURN(const RopeTableSpec rope, ResolveRope(c_.rope, c_.context, o_.context_tokens));
    rope_magnitude_ = rope.magnitude;
    FS_ASSIGN_OR_RETURN(inv_freq_, b_.Allocate(rope.inv_freq.size() * sizeof(double)));
    b_.CopyIn(inv_freq_, 0, std::as_bytes(std::span(rope.inv_freq)));
    FS_RETURN_IF_ERROR(PrepareForecast());
    FS_RETURN_IF_ERROR(AllocateCache());
    return AllocateActivations();
  }

  KvTiers* tiers() override { return tiered_ == nullptr ? nullptr : &tiered_->tiers(); }
  int64_t fork_blocks() const override { return fork_blocks_; }
  uint32_t page_layout() const override { return B::kPageLayout; }
  size_t summary_row_bytes() const override {
    size_t bytes = 0;
    for (const auto& cache : kv_) bytes += static_cast<size_t>(c_.kv_heads) * cache.summary.view.page_bytes;
    return bytes;
  }
  void GetSummaries(int32_t block, std::span<std::byte> row) override {
    ForSummaries(block, [&](Buffer& pages, size_t at, size_t from, size_t bytes) {
      b_.CopyOut(pages, at, row.subspan(from, bytes));
    });
  }
  void PutSummaries(int32_t block, std::span<const std::byte> row) override {
    ForSummaries(block, [&](Buffer& pages, size_t at, size_t from, size_t bytes) {
      b_.CopyIn(pages, at, row.subspan(from, bytes));
    });
  }
  int max_blocks() const override { return max_blocks_; }
  int64_t page_bytes() const override { return static_cast<int64_t>(kv_[0].view.page_bytes); }
  int64_t summary_bytes() const override {
    int64_t bytes = 0;
    for (size_t l = 0; l < kv_.size(); ++l) {
      if (Selects(l)) bytes = static_cast<int64_t>(kv_[l].summary.view.page_bytes);
    }
    return bytes;
  }
  int64_t bytes_per_block() const override {
    int64_t bytes = 0;
    for (size_t l = 0; l < kv_.size(); ++l) {
      bytes += static_cast<int64_t>(cached_heads_) * static_cast<int64_t>(kv_[l].view.page_bytes);
      if (Selects(l)) bytes += static_cast<int64_t>(c_.kv_heads) * static_cast<int64_t>(kv_[l].summary.view.page_bytes);
    }
    return bytes;
  }

  Status Step(const Batch& batch, StepResult* result) override {
    FS_CHECK(batch.num_rows() > 0 && batch.num_rows() <= o_.max_rows, "a step has at most max_rows rows");
    FS_CHECK(static_cast<int>(batch.logit_rows.size()) <= o_.max_logit_rows,
             "a step has at most max_logit_rows logits");
    FS_CHECK(batch.num_seqs <= o_.max_seqs, "a step has at most max_seqs sequences");
    const RowBatch rows = Upload(batch);
    echoes_.clear();
    shares_ = batch.list_sources.empty() ? nullptr : Sources(batch);
    refresh_ = batch.refresh;
    scores_wanted_ = batch.want_scores;
    FS_CHECK(!batch.want_scores || (o_.scores && batch.num_rows() <= o_.max_logit_rows), "there is room for scores");
    for (const RowEcho& e : batch.echoes) echoes_.push_back(EchoRows(rows, e, echo_seqs_.template as<int32_t>()));
    bool any_selects = false;
    for (uint8_t s : batch.selects) any_selects = any_selects || s != 0;
    CopySummaries(batch);
    if (tiered_ != nullptr) {
      tiered_->BeginStep(batch);
      early_ = o_.tiers.lookahead && tiered_->ListsKnownEarly(o_.plan);
    }

    b_.RopeTable({rows.positions, inv_freq_.template as<double>(), cos_.template as<float>(), sin_.template as<float>(),
                  rows.num_rows, c_.rope.dims / 2, rope_magnitude_});
    b_.Embed(
        {&w_.embedding, rows.tokens, x_.template as<float>(), rows.num_rows, static_cast<float>(c_.embedding_scale)});
    for (int l = 0; l < c_.layers; ++l) {
      if (Status s = Attention(l, batch, rows, any_selects); !s.ok()) {
        tiered_->Abort();
        select_seconds_ = 0;
        return s;
      }
      FeedForward(l, rows.num_rows);
    }
    Logits(batch, result);
    result->select_seconds = std::exchange(select_seconds_, 0);
    FetchLists(batch, any_selects, result);
    return OkStatus();
  }

  Status SetPlan(const AttentionPlan& plan) override {
    FS_CHECK(
        plan.options.block_size == block_tokens_ && tiered_ == nullptr && (!plan.Forecasts() || !forecast_.empty()),
        "the plan keeps the block size, has its Forecast, and all keys are in memory");
    const AttentionPlan old = std::exchange(o_.plan, plan);
    auto summaries = old.SharesSummaries(plan) ? StatusOr<std::vector<LayerSummary>>(std::vector<LayerSummary>())
                                               : AllocateSummaries();
    auto lists = AllocateLists();
    const Status before = AllocateBefore();
    if (!summaries.ok() || !lists.ok() || !before.ok()) {
      o_.plan = old;
      return !summaries.ok() ? summaries.status() : !lists.ok() ? lists.status() : before;
    }
    for (size_t l = 0; l < summaries->size(); ++l) kv_[l].summary = std::move((*summaries)[l]);
    lists_ = std::move(*lists);
    return OkStatus();
  }

  void Summarise(const Batch& batch) override {
    const RowBatch rows = Upload(batch);
    for (size_t l = 0; l < kv_.size(); ++l) {
      if (Selects(l)) b_.Summarise({rows, ScoredKeys(l), kv_[l].summary.view});
    }
  }

 private:
  enum Branches { kCompressed, kSelected, kWindow };

  // Calls f(summary pages of a layer, where the block's for a head begins there, where in a row, bytes).
  template <typename F>
  void ForSummaries(int32_t block, F f) {
    size_t from = 0;
    for (auto& cache : kv_) {
      const SummaryView& s = cache.summary.view;
      for (int h = 0; h < c_.kv_heads && s.page_bytes > 0; ++h, from += s.page_bytes) {
        f(cache.summary.pages, static_cast<size_t>(s.Page(block, h) - s.pages), from, s.page_bytes);
      }
    }
  }

  struct LayerSummary {
    Buffer pages;
    SummaryView view;
  };
  struct LayerCache {
    Buffer pages;
    KvView view;
    LayerSummary summary;
  };

  bool Selects(size_t layer) const { return o_.plan.sources[layer] != ListSource::kAll; }
  bool Forecasts(int layer) const {
    return layer < c_.layers && o_.plan.sources[static_cast<size_t>(layer)] == ListSource::kForecast;
  }
  bool FromInputBefore(int layer) const {
    return layer < c_.layers && o_.plan.sources[static_cast<size_t>(layer)] == ListSource::kInputBefore;
  }
  // Does the layer attend to what the layer before chose?
  bool Inherits(int layer) const {
    return layer < c_.layers && o_.plan.sources[static_cast<size_t>(layer)] == ListSource::kListBefore;
  }
  // Is the layer's list known before its own queries are?
  bool KnownEarly(int layer) const { return Forecasts(layer) || FromInputBefore(layer); }
  // Has Select run while the layer before computed?
  bool ChosenEarly(int layer) const { return tiered_ != nullptr && tiered_->Planned(layer) && KnownEarly(layer); }
  bool IsNsa() const { return c_.nsa.kv_sets > 0; }
  // Are blocks scored with queries and keys as they were before RoPE?
  bool ScoresUnrotated() const {
    if (IsNsa()) return c_.nsa.compress_rope == CompressRope::kNone;
    if (o_.plan.summary.kind != SummaryKind::kPooledKeys) return false;
    return o_.plan.Forecasts() ? !forecast_rotated_ : c_.nope_scores;
  }
  // NSA with three sets caches [compressed | selected | window] heads; with one, the branches share them.
  KvView Branch(const KvView& all, int branch) const {
    return all.Heads(c_.nsa.kv_sets == 3 ? branch * c_.kv_heads : 0, c_.kv_heads);
  }

  // The keys that summaries of a layer are made of.
  KvView ScoredKeys(size_t layer) const { return IsNsa() ? Branch(kv_[layer].view, kCompressed) : kv_[layer].view; }

  // In forward_memory-inl.h.
  Status PrepareSummary(size_t layer, SummaryView* summary);
  Status MakeContextTable();
  Status PrepareForecast();
  Status AllocateCache();
  StatusOr<std::vector<LayerSummary>> AllocateSummaries();
  Status AllocateActivations();
  Status AllocateBefore();
  StatusOr<std::vector<LayerList>> AllocateLists();

  // In forward_tiers-inl.h.
  Status MakeTiers();

  RowBatch Upload(const Batch& batch) {
    const auto put = [&](const std::vector<int32_t>& values, size_t offset) {
      b_.CopyIn(inputs_, offset, std::as_bytes(std::span(values)));
      return reinterpret_cast<const int32_t*>(inputs_.data() + offset);
    };
    const size_t row_bytes = static_cast<size_t>(o_.max_rows) * sizeof(int32_t);
    RowBatch r;
    r.num_rows = batch.num_rows();
    r.num_seqs = batch.num_seqs;
    r.max_blocks = max_blocks_;
    r.group_rows = batch.group_rows;
    r.tokens = put(batch.tokens, 0);
    r.positions = put(batch.positions, row_bytes);
    r.row_seq = put(batch.row_seq, 2 * row_bytes);
    r.block_tables = put(batch.block_tables, tables_at_);
    b_.CopyIn(inputs_, flags_at_, std::as_bytes(std::span(batch.selects)));
    return r;
  }

  const int32_t* Sources(const Batch& batch) {
    b_.CopyIn(sources_, 0, std::as_bytes(std::span(batch.list_sources)));
    return sources_.template as<int32_t>();
  }
  // Does the layer choose its blocks in this step?
  bool Refreshes(int layer) const { return refresh_.empty() || refresh_[static_cast<size_t>(layer)] != 0; }

  // Into every table a row belongs to, and all of them before anything reads.
  void AppendKv(const RowBatch& rows, const float* k, const float* v, const KvView& view) {
    for (const Echo& e : echoes_) {
      const int64_t at = e.first * qkv_width_;
      b_.AppendKv({e.rows, k + at, v + at, qkv_width_, view});
    }
    b_.AppendKv({rows, k, v, qkv_width_, view});
  }
  void CopySummaries(const Batch& batch) {
    for (const auto& copy : batch.copies) {
      for (auto& cache : kv_) {
        if (cache.summary.view.kind == SummaryKind::kNone) continue;
        KvView heads = cache.view.Heads(0, c_.kv_heads);
        heads.page_bytes = 0;  // the summaries alone
        heads.slots = nullptr;
        b_.CopyBlock({heads, cache.summary.view, copy.from, copy.to});
      }
    }
  }

  // Makes the layer's blocks ready to be written to, copies on write included; once a step.
  Status OpenLayer(int l, const Batch& batch) {
    const KvView& view = kv_[static_cast<size_t>(l)].view;
    if (tiered_ == nullptr) {
      for (const auto& copy : batch.copies) b_.CopyBlock({view, {}, copy.from, copy.to});
      return OkStatus();
    }
    if (tiered_->Opened(l)) return OkStatus();
    FS_RETURN_IF_ERROR(tiered_->OpenLayer(l));
    for (const auto& copy : batch.copies) {
      FS_RETURN_IF_ERROR(tiered_->BeginCopy(l, copy));
      b_.CopyBlock({view, {}, copy.from, copy.to});
      tiered_->EndCopy();
    }
    return OkStatus();
  }

  void Apply(const Linear<Matrix>& linear, const float* in, int64_t in_stride, float* out, int64_t out_stride, int rows,
             double alpha, bool accumulate, bool precise = false) {
    for (const auto& part : linear.parts) {
      const float* bias = linear.bias.empty() ? nullptr : linear.bias.template as<float>() + part.first_row;
      b_.MatMul({&part.matrix, in, out + part.first_row, bias, in_stride, out_stride, rows, static_cast<float>(alpha),
                 accumulate, precise});
    }
  }

  void Norm(const float* in, float* out, const Buffer& weight, int rows) {
    b_.RmsNorm({in, out, weight.template as<float>(), c_.hidden, c_.hidden, rows, 1, c_.hidden,
                static_cast<float>(c_.rms_eps)});
  }

  Status Attention(int l, const Batch& batch, const RowBatch& rows, bool any_selects) {
    const auto& w = w_.layers[static_cast<size_t>(l)];
    auto& cache = kv_[static_cast<size_t>(l)];
    auto* x = x_.template as<float>();
    auto* h = h_.template as<float>();
    auto* q = qkv_.template as<float>();
    float* k = q + q_width_;
    float* v = k + kv_width_;
    const int t = rows.num_rows;

    Norm(x, h, w.attn_norm, t);
    if (l == 0 && Forecasts(0)) ForecastFor(0, h, t);
    if (Forecasts(l + 1)) ForecastFor(l + 1, h, t);
    if (FromInputBefore(l + 1)) QueriesFor(l + 1, h, t);
    if (tiered_ != nullptr) FS_RETURN_IF_ERROR(RequestEarly(l, batch, rows, any_selects));
    Apply(w.qkv, h, c_.hidden, q, qkv_width_, t, 1.0, false);
    if (IsNsa()) {
      const int64_t gates = int64_t{3} * c_.heads;
      Apply(w.branch_gate, h, c_.hidden, gates_.template as<float>(), gates, t, 1.0, false);
    }
    if (c_.qk_norm) {
      const auto eps = static_cast<float>(c_.rms_eps);
      b_.RmsNorm({q, q, w.q_norm.template as<float>(), qkv_width_, qkv_width_, t, c_.heads, c_.head_dim, eps});
      b_.RmsNorm({k, k, w.k_norm.template as<float>(), qkv_width_, qkv_width_, t, c_.kv_heads, c_.head_dim, eps});
    }
    if (o_.observe_layer) Observe(l, t);
    FS_RETURN_IF_ERROR(OpenLayer(l, batch));
    if (tiered_ != nullptr) FS_RETURN_IF_ERROR(tiered_->AwaitSummaryBlocks(l));
    const bool score_first = Selects(static_cast<size_t>(l)) && ScoresUnrotated();
    if (score_first) {
      RotateKeys(k, t);
      AppendKv(rows, k, v, cache.view);
      Summarise(l, rows);
      if (!ChosenEarly(l)) Select(l, rows, q, any_selects);
      Rotate(q, t, c_.heads);
    } else {
      Rotate(q, t, c_.heads);
      RotateKeys(k, t);
      AppendKv(rows, k, v, cache.view);
      Summarise(l, rows);
      if (!ChosenEarly(l)) Select(l, rows, q, any_selects);
    }
    if (tiered_ == nullptr) {
      AttendPart(l, rows, any_selects, 0, std::numeric_limits<int>::max());
    } else {
      FS_RETURN_IF_ERROR(AttendInWindows(l, batch, rows, any_selects));
    }
    if (IsNsa()) {
      b_.GateBranches({gates_.template as<float>(),
                       {h, selected_.template as<float>(), windowed_.template as<float>()},
                       h,
                       t,
                       c_.heads,
                       c_.head_dim});
    }
    Apply(w.o, h, q_width_, x, c_.hidden, t, c_.residual_scale, true);
    return OkStatus();
  }

  // All branches of the layer over the logical blocks [first_block, end_block).
  void AttendPart(int l, const RowBatch& rows, bool any_selects, int first_block, int end_block) {
    const KvView& view = kv_[static_cast<size_t>(l)].view;
    AttendParams attend;
    if (Selects(static_cast<size_t>(l)) && any_selects) {
      LayerList& list = ListOf(l);
      attend.ids = list.ids.template as<int32_t>();
      attend.counts = list.counts.template as<int32_t>();
      attend.max_selected = o_.plan.top_k;
    }
    attend.rows = rows;
    attend.q = qkv_.template as<float>();
    attend.out = IsNsa() ? selected_.template as<float>() : h_.template as<float>();
    attend.q_stride = qkv_width_;
    attend.out_stride = q_width_;
    attend.num_heads = c_.heads;
    attend.scale = Scale();
    attend.kv = IsNsa() ? Branch(view, kSelected) : view;
    if (c_.importances) attend.summary = kv_[static_cast<size_t>(l)].summary.view;
    attend.first_block = first_block;
    attend.end_block = end_block;
    attend.carry = carry_.data();
    b_.Attend(attend);
    if (!IsNsa()) return;
    attend.ids = attend.counts = nullptr;
    attend.window = c_.nsa.window;
    attend.out = windowed_.template as<float>();
    attend.kv = Branch(view, kWindow);
    attend.carry = window_carry_.data();
    b_.Attend(attend);
  }

  // In forward_tiers-inl.h. PlanLayer tells the tiers what layer l attends to; its list is known. PlanAhead opens and
  // plans layer l while the one before computes, where its list is known by then. RequestEarly has the reads of what
  // layer l's input alone chooses under way before layer l computes anything from it.
  void PlanLayer(int l, const Batch& batch, bool any_selects);
  Status RequestEarly(int l, const Batch& batch, const RowBatch& rows, bool any_selects);
  Status PlanAhead(int l, const Batch& batch, const RowBatch& rows, bool any_selects);
  Status AttendInWindows(int l, const Batch& batch, const RowBatch& rows, bool any_selects);
  void SubmitBeside() {
    b_.Beside([](void* tiers, int) { static_cast<KvTiers*>(tiers)->Submit(); }, &tiered_->tiers());
  }

  float Scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.head_dim))); }

  void Rotate(float* x, int t, int heads) { Rotate(x, qkv_width_, t, heads); }
  void Rotate(float* x, int64_t stride, int t, int heads) {
    b_.Rope({x, cos_.template as<float>(), sin_.template as<float>(), stride, t, heads, c_.head_dim, c_.rope.dims / 2});
  }

  // Queries for the selection of `target`, from the attention input of the layer before (of its own for layer 0).
  void ForecastFor(int target, const float* in, int t) {
    const Stopwatch watch(&select_seconds_);
    const int64_t width = static_cast<int64_t>(forecast_heads_) * c_.head_dim;
    float* out = ForecastRows(target);
    b_.MatMul({&forecast_[static_cast<size_t>(target)], in, out, nullptr, c_.hidden, width, t, 1.0f, false});
    if (!ScoresUnrotated()) Rotate(out, width, t, forecast_heads_);
  }
  // The queries of `target` as they would be if the layer before changed nothing.
  void QueriesFor(int target, const float* in, int t) {
    const Stopwatch watch(&select_seconds_);
    const auto& w = w_.layers[static_cast<size_t>(target)];
    float* out = BeforeRows(target);
    Apply(w.qkv, in, c_.hidden, out, qkv_width_, t, 1.0, false);
    if (c_.qk_norm) {
      b_.RmsNorm({out, out, w.q_norm.template as<float>(), qkv_width_, qkv_width_, t, c_.heads, c_.head_dim,
                  static_cast<float>(c_.rms_eps)});
    }
    if (!ScoresUnrotated()) Rotate(out, t, c_.heads);
  }
  float* BeforeRows(int target) { return before_rows_[target % 2].template as<float>(); }
  float* ForecastRows(int target) { return forecast_rows_[target % 2].template as<float>(); }

  // Of NSA's three sets, the compressed one is cached as it is pooled.
  void RotateKeys(float* k, int t) {
    const bool skip = c_.nsa.kv_sets == 3 && c_.nsa.compress_rope != CompressRope::kPost;
    const int first = skip ? c_.kv_heads : 0;
    Rotate(k + static_cast<int64_t>(first) * c_.head_dim, t, cached_heads_ - first);
  }

  // Extends the layer's key summaries by the rows.
  void Summarise(int l, const RowBatch& rows) {
    if (!Selects(static_cast<size_t>(l))) return;
    const SummaryView& summary = kv_[static_cast<size_t>(l)].summary.view;
    for (const Echo& e : echoes_) b_.Summarise({e.rows, ScoredKeys(static_cast<size_t>(l)), summary});
    b_.Summarise({rows, ScoredKeys(static_cast<size_t>(l)), summary});
  }

  // Chooses the layer's blocks; NSA's compressed branch goes to h_. A Forecast's list may be asked for before the
  // layer's summaries have these rows.
  void Select(int l, const RowBatch& rows, const float* q, bool any_selects) {
    if (!Selects(static_cast<size_t>(l)) || !any_selects) return;
    if (!Refreshes(l) && !IsNsa()) return;
    if (Inherits(l) && !Inherits(l + 1)) return;  // nothing attends to what it would choose
    const Stopwatch watch(&select_seconds_);
    LayerList& list = ChoiceOf(l);
    SelectParams s;
    s.rows = rows;
    s.q = Forecasts(l) ? ForecastRows(l) : FromInputBefore(l) ? BeforeRows(l) : q;
    s.row_sparse = reinterpret_cast<const uint8_t*>(inputs_.data() + flags_at_);
    s.q_stride = Forecasts(l) ? static_cast<int64_t>(forecast_heads_) * c_.head_dim : qkv_width_;
    s.num_heads = Forecasts(l) ? forecast_heads_ : c_.heads;
    s.scale = Scale();
    s.kv = ScoredKeys(static_cast<size_t>(l));
    s.summary = kv_[static_cast<size_t>(l)].summary.view;
    s.top_k = o_.plan.top_k;
    s.query_top_k = o_.plan.query_top_k;
    s.init_blocks = o_.plan.init_blocks;
    s.local_blocks = o_.plan.local_blocks;
    s.skip_local = KnownEarly(l);
    if (Refreshes(l)) {
      s.ids = list.ids.template as<int32_t>();
      s.counts = list.counts.template as<int32_t>();
      if (scores_wanted_) s.scores = list.scores.template as<float>();
    }
    s.out = h_.template as<float>();
    s.out_stride = q_width_;
    b_.Select(s);
    if (shares_ == nullptr || !Refreshes(l)) return;
    b_.ShareLists({rows, shares_, c_.kv_heads, block_tokens_, o_.plan.top_k, o_.plan.init_blocks, o_.plan.local_blocks,
                   s.ids, s.counts});
  }

  void Observe(int l, int t) {
    observed_hidden_.resize(static_cast<size_t>(t) * static_cast<size_t>(c_.hidden));
    observed_qkv_.resize(static_cast<size_t>(t) * static_cast<size_t>(qkv_width_));
    b_.CopyOut(h_, 0, std::as_writable_bytes(std::span(observed_hidden_)));
    b_.CopyOut(qkv_, 0, std::as_writable_bytes(std::span(observed_qkv_)));
    o_.observe_layer({l, t, observed_hidden_.data(), observed_qkv_.data(), qkv_width_});
  }

  void FeedForward(int l, int t) {
    const auto& w = w_.layers[static_cast<size_t>(l)];
    auto* x = x_.template as<float>();
    auto* h = h_.template as<float>();
    Norm(x, h, w.ffn_norm, t);
    Apply(w.gate_up, h, c_.hidden, gate_up_.template as<float>(), 2 * int64_t{c_.ffn}, t, 1.0, false);
    b_.SwiGlu({gate_up_.template as<float>(), act_.template as<float>(), t, c_.ffn});
    Apply(w.down, act_.template as<float>(), c_.ffn, x, c_.hidden, t, c_.residual_scale, true);
  }

  void Logits(const Batch& batch, StepResult* result) {
    result->logits = {};
    const int n = static_cast<int>(batch.logit_rows.size());
    if (n == 0) return;
    auto* h = h_.template as<float>();
    for (int i = 0; i < n; ++i) {
      const int row = batch.logit_rows[static_cast<size_t>(i)];
      Norm(x_.template as<float>() + static_cast<int64_t>(row) * c_.hidden, h + static_cast<int64_t>(i) * c_.hidden,
           w_.output_norm, 1);
    }
    auto* logits = logits_.template as<float>();
    if (w_.output.parts.empty()) {
      b_.MatMul(
          {&w_.embedding, h, logits, nullptr, c_.hidden, c_.vocab, n, static_cast<float>(c_.logit_scale), false, true});
    } else {
      Apply(w_.output, h, c_.hidden, logits, c_.vocab, n, c_.logit_scale, false, true);
    }
    const std::span<float> out(host_logits_.data(), static_cast<size_t>(n * c_.vocab));
    b_.CopyOut(logits_, 0, std::as_writable_bytes(out));
    result->logits = out;
  }

  // The list that a layer attends to: its own, or that of the layer before, or of the last one before those that chose
  // in this step.
  LayerList& ListOf(int layer) { return ChoiceOf(Inherits(layer) ? layer - 1 : layer); }
  LayerList& ChoiceOf(int layer) {
    for (size_t i = lists_.size(); i-- > 0;) {
      if (lists_[i].layer <= layer && Refreshes(lists_[i].layer)) return lists_[i];
    }
    FS_CHECK(false, "the first layer that selects does so in every step");
    return lists_[0];
  }

  size_t Pairs(const Batch& batch) const {
    return static_cast<size_t>(batch.num_rows()) * static_cast<size_t>(c_.kv_heads);
  }
  std::span<const int32_t> FetchCounts(LayerList& l, const Batch& batch) {
    const std::span<int32_t> counts(l.host_counts.data(), Pairs(batch));
    b_.CopyOut(ListOf(l.layer).counts, 0, std::as_writable_bytes(counts));
    return counts;
  }
  std::span<const int32_t> FetchIds(LayerList& l, const Batch& batch) {
    l.host_ids.resize(l.host_counts.size() * static_cast<size_t>(o_.plan.top_k));
    const std::span<int32_t> ids(l.host_ids.data(), Pairs(batch) * static_cast<size_t>(o_.plan.top_k));
    b_.CopyOut(ListOf(l.layer).ids, 0, std::as_writable_bytes(ids));
    return ids;
  }
  std::span<const float> FetchScores(LayerList& l, const Batch& batch) {
    const std::span<float> scores(l.host_scores.data(), Pairs(batch) * static_cast<size_t>(max_blocks_));
    b_.CopyOut(ListOf(l.layer).scores, 0, std::as_writable_bytes(scores));
    return scores;
  }

  void FetchLists(const Batch& batch, bool any_selects, StepResult* result) {
    result->lists.clear();
    if (!any_selects) return;
    for (auto& l : lists_) {
      const auto counts = FetchCounts(l, batch);
      const auto ids = batch.want_lists ? FetchIds(l, batch) : std::span<const int32_t>();
      result->lists.push_back(
          {l.layer, counts, ids, batch.want_scores ? FetchScores(l, batch) : std::span<const float>()});
    }
  }

  // Adds the time until it goes out of scope.
  class Stopwatch {
   public:
    explicit Stopwatch(double* seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
    ~Stopwatch() { *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

   private:
    double* seconds_;
    std::chrono::steady_clock::time_point start_;
  };

  B& b_;
  const Weights<Matrix>& w_;
  const ModelConfig& c_;
  RunnerOptions o_;
  int64_t q_width_ = 0, kv_width_ = 0, qkv_width_ = 0;
  int cached_heads_ = 0;  // KV heads of a block over all sets of keys and values
  int block_tokens_ = 64;
  int max_blocks_ = 0;
  double rope_magnitude_ = 1;
  size_t tables_at_ = 0, flags_at_ = 0;       // offsets in inputs_
  Buffer tier_pages_, carry_, window_carry_;  // with tiers: memory for pages, what parts of an attention hand on
  std::unique_ptr<TieredCache> tiered_;       // null: all pages are in memory
  int64_t fork_blocks_ = std::numeric_limits<int64_t>::max();
  bool early_ = false;  // lists of Forecasts are known before the step's own keys
  Buffer echo_seqs_;    // [max_seqs, kMaxEcho]: a row holds its own number
  // Of the step at hand.
  std::vector<Echo> echoes_;
  Buffer sources_;  // Batch::list_sources
  const int32_t* shares_ = nullptr;
  std::vector<uint8_t> refresh_;
  bool scores_wanted_ = false;
  double select_seconds_ = 0;
  std::vector<LayerCache> kv_;
  std::vector<LayerList> lists_;
  Buffer x_, h_, qkv_, gate_up_, act_, cos_, sin_, logits_, inv_freq_, inputs_;
  Buffer all_cos_, all_sin_;            // [context, dims / 2], where keys are turned after caching
  Buffer gates_, selected_, windowed_;  // NSA
  std::vector<Matrix> forecast_;        // [layers] by target; empty: there is no Forecast
  bool forecast_rotated_ = true;
  int forecast_heads_ = 0;   // Hkv, where one query serves the group, or Hq
  Buffer forecast_rows_[2];  // [T, forecast heads * D], of even and odd targets
  Buffer before_rows_[2];    // [T, Hq * D queries and more], the same
  std::vector<float> host_logits_;
  std::vector<float> observed_hidden_, observed_qkv_;
};

}  // namespace farsight

#endif  // FARSIGHT_MODEL_FORWARD_INL_H_
