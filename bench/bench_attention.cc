// Times paged attention, key summaries and block selection of one layer of a small model (SmolLM2-135M: 9 query heads,
// 3 KV heads of 64 channels), against the machine's own limits measured in the same run. Every case is verified against
// the double-precision reference before anything is timed.
//   bench_attention [threads] [isa] [seconds per case] [substring of the cases wanted]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "measure.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

constexpr int kHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kDim = 64;
constexpr int kBlock = 64;
constexpr int kChunk = 512;  // rows of a prefill step
constexpr int kTopK = 24;
// As many as a small model has, so that caches between layers behave as in a decode step.
constexpr int kLayers = 30;

// One sequence's cache in `layers` layers on one backend: keys with a direction of their own per block, so that
// selection has something to find.
template <typename B>
class Cache {
 public:
  Cache(B& backend, DType dtype, SummaryView summary, int tokens, int layers) : b_(backend), tokens_(tokens) {
    kv_.dtype = dtype;
    kv_.block_tokens = kBlock;
    kv_.num_kv_heads = kKvHeads;
    kv_.block_heads = kKvHeads;
    kv_.head_dim = kDim;
    kv_.page_bytes = b_.KvPageBytes(kv_);
    summary_ = summary;
    summary_.page_bytes = b_.SummaryPageBytes(kv_, summary_);
    blocks_ = (tokens + kBlock - 1) / kBlock;
    summary_.head_bytes = static_cast<size_t>(blocks_) * summary_.page_bytes;
    const auto pages = static_cast<size_t>(blocks_ * kKvHeads);
    for (int l = 0; l < layers; ++l) {
      pages_.push_back(b_.Allocate(pages * kv_.page_bytes).value());
      summaries_.push_back(b_.Allocate(pages * summary_.page_bytes + 64).value());
    }
    table_.resize(static_cast<size_t>(blocks_));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(5));
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int width) {
      x.resize(static_cast<size_t>(tokens) * static_cast<size_t>(width));
      for (float& f : x) f = normal(rng);
    };
    fill(k_, kKvHeads * kDim);
    fill(v_, kKvHeads * kDim);
    fill(q_, kHeads * kDim);
    out_.resize(q_.size());
    positions_.resize(static_cast<size_t>(tokens));
    std::iota(positions_.begin(), positions_.end(), 0);
    row_seq_.assign(positions_.size(), 0);
    sparse_.assign(positions_.size(), 1);
    ids_.resize(positions_.size() * kKvHeads * kTopK);
    counts_.resize(positions_.size() * kKvHeads);
    OpLimits limits;
    limits.max_rows = tokens;
    limits.max_seqs = 1;
    limits.max_blocks = blocks_;
    limits.max_width = kHeads * kDim;
    limits.num_heads = kHeads;
    limits.num_kv_heads = kKvHeads;
    limits.head_dim = kDim;
    limits.block_tokens = kBlock;
    reserved_ = b_.Reserve(limits).ok();
    for (int l = 0; l < layers; ++l) {
      for (int at = 0; at < tokens; at += kChunk) {
        Append(l, at, std::min(tokens, at + kChunk));
        Summarise(l, at, std::min(tokens, at + kChunk));
      }
    }
  }

  bool reserved() const { return reserved_; }
  double page_bytes() const { return static_cast<double>(kv_.page_bytes); }
  double summary_bytes() const { return static_cast<double>(summary_.page_bytes); }
  int blocks() const { return blocks_; }

  void Append(int layer, int from, int to) {
    Use(layer);
    b_.AppendKv({Rows(from, to), k_.data() + static_cast<int64_t>(from) * kKvHeads * kDim,
                 v_.data() + static_cast<int64_t>(from) * kKvHeads * kDim, kKvHeads * kDim, kv_});
  }
  void Summarise(int layer, int from, int to) {
    Use(layer);
    b_.Summarise({Rows(from, to), kv_, summary_});
  }
  SelectParams Selection(int layer, int from, int to) {
    Use(layer);
    SelectParams p;
    p.rows = Rows(from, to);
    p.q = q_.data() + static_cast<int64_t>(from) * kHeads * kDim;
    p.row_sparse = sparse_.data();
    p.q_stride = kHeads * kDim;
    p.num_heads = kHeads;
    p.scale = 0.125f;
    p.kv = kv_;
    p.summary = summary_;
    p.top_k = kTopK;
    p.init_blocks = 1;
    p.local_blocks = 4;
    p.ids = ids_.data() + static_cast<int64_t>(from) * kKvHeads * kTopK;
    p.counts = counts_.data() + static_cast<int64_t>(from) * kKvHeads;
    return p;
  }
  void Select(int layer, int from, int to) { b_.Select(Selection(layer, from, to)); }
  void Attend(int layer, int from, int to, bool listed) {
    Use(layer);
    AttendParams p;
    p.rows = Rows(from, to);
    p.q = q_.data() + static_cast<int64_t>(from) * kHeads * kDim;
    p.out = out_.data() + static_cast<int64_t>(from) * kHeads * kDim;
    p.q_stride = p.out_stride = kHeads * kDim;
    p.num_heads = kHeads;
    p.scale = 0.125f;
    p.kv = kv_;
    if (listed) {
      p.ids = ids_.data() + static_cast<int64_t>(from) * kKvHeads * kTopK;
      p.counts = counts_.data() + static_cast<int64_t>(from) * kKvHeads;
      p.max_selected = kTopK;
    }
    b_.Attend(p);
  }

  std::vector<int32_t> ids_, counts_;
  std::vector<float> out_;

 private:
  void Use(int layer) {
    kv_.pages = pages_[static_cast<size_t>(layer)].data();
    summary_.pages = summaries_[static_cast<size_t>(layer)].data();
  }
  RowBatch Rows(int from, int to) const {
    return {to - from, 1, blocks_, nullptr, positions_.data() + from, row_seq_.data(), table_.data()};
  }

  B& b_;
  KvView kv_;
  SummaryView summary_;
  int tokens_;
  int blocks_ = 0;
  bool reserved_ = false;
  std::vector<Buffer> pages_, summaries_;
  std::vector<int32_t> table_, positions_, row_seq_;
  std::vector<uint8_t> sparse_;
  std::vector<float> k_, v_, q_;
};

class Bench : KernelBench {
 public:
  explicit Bench(BenchArgs args) : KernelBench(std::move(args)) {}

  int Main() {
    Limits(Arithmetic::kFloat);
    const SummaryView pooled{nullptr, 0, 0, SummaryKind::kPooledKeys, 32, 16, 2};
    for (const SummaryView& s : {pooled, Sketch(2)}) {
      for (const DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
        if (!Verify(t, s)) return 1;
      }
    }
    for (const DType t : {DType::kF16, DType::kBF16, DType::kF32}) Decode(t, Sketch(2), 7000);
    Decode(DType::kF16, pooled, 7000);
    Decode(DType::kF16, Sketch(1), 7000);
    Decode(DType::kF16, Sketch(4), 7000);
    Prefill(DType::kF16, pooled, 4096);
    Prefill(DType::kF16, Sketch(2), 4096);
    Prefill(DType::kF32, pooled, 4096);
    return 0;
  }

 private:
  static SummaryView Sketch(int bits) { return {nullptr, 0, 0, SummaryKind::kSketch, 32, 16, bits}; }

  std::string Name(const char* op, DType t, int rows, int depth) const {
    return std::string(op) + "/" + IsaName(backend_->isa()) + "/" + InfoOf(t).name + "/rows:" + std::to_string(rows) +
           "/depth:" + std::to_string(depth) + "/hq:9/hkv:3/d:64";
  }
  bool Wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }

  void Bytes(const std::string& name, double bytes, int calls, double s) const {
    std::printf("case:%s threads:%d us:%.1f GB/s:%.1f read_share:%.2f\n", name.c_str(), pool_.num_threads(),
                s / calls * 1e6, bytes / s / 1e9, bytes / s / 1e9 / read_gbs_);
    std::fflush(stdout);
  }
  void Flops(const std::string& name, double flops, double s) const {
    std::printf("case:%s threads:%d ms:%.2f GFLOP/s:%.1f fma_share:%.2f\n", name.c_str(), pool_.num_threads(), s * 1e3,
                flops / s / 1e9, peak_gops_ > 0 ? flops / s / 1e9 / peak_gops_ : 0.0);
    std::fflush(stdout);
  }

  // The last rows of a short cache: attention, dense and over the backend's own lists, against the reference.
  bool Verify(DType t, const SummaryView& s) {
    constexpr int kTokens = 2100;
    constexpr int kFrom = kTokens - 7;
    RefBackend ref;
    Cache<CpuBackend> got(*backend_, t, s, kTokens, 1);
    Cache<RefBackend> want(ref, t, s, kTokens, 1);
    if (!got.reserved()) return false;
    got.Select(0, kFrom, kTokens);
    want.Select(0, kFrom, kTokens);
    int listed = 0;
    int common = 0;
    for (int i = kFrom * kKvHeads; i < kTokens * kKvHeads; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i) * kTopK;
      std::vector<int32_t> both;
      std::set_intersection(got.ids_.begin() + at, got.ids_.begin() + at + kTopK, want.ids_.begin() + at,
                            want.ids_.begin() + at + kTopK, std::back_inserter(both));
      listed += kTopK;
      common += static_cast<int>(both.size());
    }
    if (common < (s.kind == SummaryKind::kSketch ? 0.97 : 0.999) * listed) {
      std::fprintf(stderr, "bench_attention: %d of %d selected blocks are the reference's\n", common, listed);
      return false;
    }
    want.ids_ = got.ids_;
    for (const bool list : {false, true}) {
      got.Attend(0, kFrom, kTokens, list);
      want.Attend(0, kFrom, kTokens, list);
      float worst = 0;
      for (size_t i = 0; i < got.out_.size(); ++i) worst = std::max(worst, std::fabs(got.out_[i] - want.out_[i]));
      if (!(worst <= 2e-5f)) {
        std::fprintf(stderr, "bench_attention: %s attention is off by %.3g\n", InfoOf(t).name,
                     static_cast<double>(worst));
        return false;
      }
    }
    return true;
  }

  // One token of all layers a call: every layer has its own pages, as in a decode step.
  void Decode(DType t, const SummaryView& s, int depth) {
    const bool sketch = s.kind == SummaryKind::kSketch;
    const std::string select = Name("select", t, 1, depth) +
                               (sketch ? "/summary:sketch/bits:" + std::to_string(s.bits) : "/summary:pooled") +
                               "/blocks:24";
    const bool first = sketch && s.bits == 2;
    const std::string dense = Name("attend", t, 1, depth) + "/blocks:all";
    const std::string sparse = Name("attend", t, 1, depth) + "/blocks:24";
    const std::string append = Name("append", t, 1, depth);
    if (!Wanted(select) && !(first && (Wanted(dense) || Wanted(sparse) || Wanted(append)))) return;
    Cache<CpuBackend> cache(*backend_, t, s, depth, kLayers);
    const auto layers = [&](auto&& fn) {
      return timer_.Median([&] {
        for (int l = 0; l < kLayers; ++l) fn(l);
      });
    };
    const double pages = kLayers * kKvHeads;
    if (Wanted(select)) {
      const double seconds = layers([&](int l) { cache.Select(l, depth - 1, depth); });
      Bytes(select, pages * cache.blocks() * cache.summary_bytes(), kLayers, seconds);
    }
    if (!first) return;
    if (Wanted(append)) {
      const double seconds = layers([&](int l) {
        cache.Append(l, depth - 1, depth);
        cache.Summarise(l, depth - 1, depth);
      });
      Bytes(append + "/with:sketch", pages * cache.page_bytes() / kBlock, kLayers, seconds);
    }
    if (Wanted(dense)) {
      const double seconds = layers([&](int l) { cache.Attend(l, depth - 1, depth, false); });
      Bytes(dense, pages * depth / kBlock * cache.page_bytes(), kLayers, seconds);
    }
    if (Wanted(sparse)) {
      cache.Select(0, depth - 1, depth);
      const double seconds = layers([&](int l) { cache.Attend(l, depth - 1, depth, true); });
      Bytes(sparse, pages * kTopK * cache.page_bytes(), kLayers, seconds);
    }
  }

  // One layer of a whole prompt in chunks.
  void Prefill(DType t, const SummaryView& s, int depth) {
    const bool sketch = s.kind == SummaryKind::kSketch;
    const std::string kind = sketch ? "/summary:sketch" : "/summary:pooled";
    const std::string select = Name("select", t, depth, depth) + kind + "/blocks:24";
    const std::string append = Name("append", t, depth, depth);
    const std::string summarise = Name("summarise", t, depth, depth) + kind;
    const std::string dense = Name("attend", t, depth, depth) + "/blocks:all";
    const std::string sparse = Name("attend", t, depth, depth) + "/blocks:24";
    if (!Wanted(select) && !Wanted(append) && !Wanted(summarise) && !Wanted(dense) && !Wanted(sparse)) return;
    Cache<CpuBackend> cache(*backend_, t, s, depth, 1);
    const auto chunks = [&](auto&& fn) {
      return timer_.Median([&] {
        for (int at = 0; at < depth; at += kChunk) fn(at, std::min(depth, at + kChunk));
      });
    };
    const double bytes = cache.blocks() * static_cast<double>(kKvHeads) * cache.page_bytes();
    const auto sum = chunks([&](int from, int to) { cache.Summarise(0, from, to); });
    if (Wanted(summarise)) Bytes(summarise, bytes / 2, 1, sum);
    double products = 0;  // of a query with a token's key: tokens visible to all rows, then tokens listed
    double listed = 0;
    for (int i = 0; i < depth; ++i) {
      products += i + 1;
      listed += std::min(i + 1, (kTopK - 1) * kBlock + i % kBlock + 1);
    }
    if (Wanted(select)) {
      const double scored = sketch ? products : products / 16;
      Flops(select, scored * kHeads * kDim * 2, chunks([&](int from, int to) { cache.Select(0, from, to); }));
    }
    if (!sketch) {
      if (Wanted(append)) Bytes(append, bytes, 1, chunks([&](int from, int to) { cache.Append(0, from, to); }));
      if (Wanted(dense)) {
        Flops(dense, products * kHeads * kDim * 4, chunks([&](int from, int to) { cache.Attend(0, from, to, false); }));
      }
      if (Wanted(sparse)) {
        cache.Select(0, 0, depth);
        Flops(sparse, listed * kHeads * kDim * 4, chunks([&](int from, int to) { cache.Attend(0, from, to, true); }));
      }
    }
  }
};

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::RunBench<farsight::Bench>("bench_attention", argc, argv); }
