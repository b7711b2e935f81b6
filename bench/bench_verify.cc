// Times the three branches of a layer of native sparse attention over the rows of a draft: each row alone against rows
// that load blocks together. The shape is 32 query heads, 8 KV heads of 64 channels, windows of 32 every 16, 16 blocks
// of 64, a window of 512. Block lists are made, with a wanted share of blocks in common between neighbouring rows; what
// it came to is printed. Results of both ways are compared, bit for bit, before anything is timed.
//   bench_verify [threads] [isa] [seconds per case] [substring of the cases wanted]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "measure.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/cpu_backend.h"

namespace farsight {
namespace {

constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 64;
constexpr int kBlock = 64;
constexpr int kTopK = 16;
constexpr int kWindow = 512;
constexpr int kWidth = kHeads * kDim;
constexpr int kMaxRows = 64;
// Together the layers' keys and values are far larger than any cache.
constexpr double kBytes = 400e6;

// The keys, values and compressed keys of several layers.
class Layers {
 public:
  Layers(CpuBackend& backend, int tokens) : b_(backend), tokens_(tokens), blocks_((tokens + kBlock - 1) / kBlock) {
    kv_.dtype = DType::kF16;
    kv_.block_tokens = kBlock;
    kv_.num_kv_heads = kv_.block_heads = kKvHeads;
    kv_.head_dim = kDim;
    kv_.page_bytes = b_.KvPageBytes(kv_);
    summary_.kind = SummaryKind::kCompressed;
    summary_.page_bytes = b_.SummaryPageBytes(kv_, summary_);
    summary_.head_bytes = static_cast<size_t>(blocks_) * summary_.page_bytes;
    table_.resize(static_cast<size_t>(blocks_));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(5));
    positions_.resize(static_cast<size_t>(tokens));
    std::iota(positions_.begin(), positions_.end(), 0);
    row_seq_.assign(positions_.size(), 0);
    sparse_.assign(positions_.size(), 1);
    OpLimits limits;
    limits.max_rows = 512;
    limits.max_seqs = 1;
    limits.max_blocks = blocks_;
    limits.max_width = kWidth;
    limits.num_heads = kHeads;
    limits.num_kv_heads = kKvHeads;
    limits.head_dim = kDim;
    ok_ = b_.Reserve(limits).ok();
    const auto pages = static_cast<size_t>(blocks_) * kKvHeads;
    const auto layers = std::max(2, static_cast<int>(kBytes / static_cast<double>(pages * kv_.page_bytes)));
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<float> x(size_t{512} * kKvHeads * kDim + 4096);
    for (float& f : x) f = normal(rng);
    for (int l = 0; l < layers && ok_; ++l) {
      pages_.push_back(b_.Allocate(pages * kv_.page_bytes).value());
      summaries_.push_back(b_.Allocate(pages * summary_.page_bytes).value());
      Use(l);
      for (int at = 0; at < tokens; at += 512) {
        const RowBatch rows = Rows(at, std::min(tokens, at + 512), 0);
        const size_t shift = rng() % 2048;
        b_.AppendKv({rows, x.data() + shift, x.data() + 2048 + shift - shift % 7, kKvHeads * kDim, kv_});
        b_.Summarise({rows, kv_, summary_});
      }
    }
    q_.resize(size_t{kMaxRows} * kWidth);
    for (float& f : q_) f = normal(rng);
    out_.resize(q_.size() * 3);
    ids_.resize(size_t{kMaxRows} * kKvHeads * kTopK);
    counts_.resize(size_t{kMaxRows} * kKvHeads);
    own_ids_ = ids_;
    own_counts_ = counts_;
  }

  bool ok() const { return ok_; }
  int layers() const { return static_cast<int>(pages_.size()); }
  const std::vector<float>& out() const { return out_; }

  // Lists of `rows` rows that keep each free block of the row before with a chance of `keep`, and take others that are
  // likelier the nearer to the end they are.
  void MakeLists(int rows, double keep, uint32_t seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<double> uniform;
    for (int h = 0; h < kKvHeads; ++h) {
      std::vector<int32_t> free;
      for (int r = 0; r < rows; ++r) {
        const int own = (tokens_ - rows + r) / kBlock;
        std::erase_if(free, [&](int32_t b) { return b >= own - 1 || uniform(rng) >= keep; });
        while (free.size() < kTopK - 3) {
          const auto block = static_cast<int32_t>(1 + (own - 2) * (1 - uniform(rng) * uniform(rng)));
          if (block >= 1 && block < own - 1 && std::find(free.begin(), free.end(), block) == free.end()) {
            free.push_back(block);
          }
        }
        std::vector<int32_t> list = free;
        for (const int32_t b : {0, own - 1, own}) list.push_back(b);
        std::sort(list.begin(), list.end());
        const size_t pair = static_cast<size_t>(r) * kKvHeads + static_cast<size_t>(h);
        std::copy(list.begin(), list.end(), ids_.begin() + static_cast<std::ptrdiff_t>(pair * kTopK));
        counts_[pair] = kTopK;
      }
    }
  }
  // Blocks in the union of the rows' lists, summed over KV heads, and the share in common with the row before.
  double Union(int rows, double* overlap) const {
    double blocks = 0, common = 0;
    const auto list = [&](int r, int h) {
      const auto at = (static_cast<size_t>(r) * kKvHeads + static_cast<size_t>(h)) * kTopK;
      return std::span(ids_).subspan(at, kTopK);
    };
    for (int h = 0; h < kKvHeads; ++h) {
      std::vector<int32_t> all;
      for (int r = 0; r < rows; ++r) {
        all.insert(all.end(), list(r, h).begin(), list(r, h).end());
        if (r == 0) continue;
        for (const int32_t b : list(r, h)) common += std::ranges::binary_search(list(r - 1, h), b) ? 1 : 0;
      }
      std::sort(all.begin(), all.end());
      blocks += static_cast<double>(std::unique(all.begin(), all.end()) - all.begin());
    }
    *overlap = common / (kKvHeads * kTopK * std::max(1, rows - 1));
    return blocks;
  }

  void Compressed(int layer, int rows, int group) {
    Use(layer);
    SelectParams s;
    s.rows = Rows(tokens_ - rows, tokens_, group);
    s.q = q_.data();
    s.row_sparse = sparse_.data();
    s.q_stride = s.out_stride = kWidth;
    s.num_heads = kHeads;
    s.scale = 0.125f;
    s.kv = kv_;
    s.summary = summary_;
    s.top_k = kTopK;
    s.local_blocks = 1;
    s.ids = own_ids_.data();
    s.counts = own_counts_.data();
    s.out = out_.data();
    b_.Select(s);
  }
  void Selected(int layer, int rows, int group) { Attend(layer, rows, group, true); }
  void Window(int layer, int rows, int group) { Attend(layer, rows, group, false); }

  double page_bytes() const { return static_cast<double>(kv_.page_bytes); }
  double summary_bytes() const { return static_cast<double>(summary_.page_bytes) * blocks_ * kKvHeads; }

 private:
  void Attend(int layer, int rows, int group, bool listed) {
    Use(layer);
    AttendParams a;
    a.rows = Rows(tokens_ - rows, tokens_, group);
    a.q = q_.data();
    a.out = out_.data() + q_.size() * (listed ? 1 : 2);
    a.q_stride = a.out_stride = kWidth;
    a.num_heads = kHeads;
    a.scale = 0.125f;
    a.kv = kv_;
    if (listed) {
      a.ids = ids_.data();
      a.counts = counts_.data();
      a.max_selected = kTopK;
    } else {
      a.window = kWindow;
    }
    b_.Attend(a);
  }
  void Use(int layer) {
    kv_.pages = pages_[static_cast<size_t>(layer)].data();
    summary_.pages = summaries_[static_cast<size_t>(layer)].data();
  }
  RowBatch Rows(int from, int to, int group) const {
    return {to - from, 1, blocks_, nullptr, positions_.data() + from, row_seq_.data(), table_.data(), group};
  }

  CpuBackend& b_;
  int tokens_, blocks_;
  bool ok_ = false;
  KvView kv_;
  SummaryView summary_;
  std::vector<Buffer> pages_, summaries_;
  std::vector<int32_t> table_, positions_, row_seq_, ids_, counts_, own_ids_, own_counts_;
  std::vector<uint8_t> sparse_;
  std::vector<float> q_, out_;
};

class Bench : KernelBench {
 public:
  explicit Bench(BenchArgs args) : KernelBench(std::move(args)) {}

  int Main() {
    Limits(Arithmetic::kFloat);
    exp_seconds_ = ExponentialSeconds();
    std::printf("limit:exp threads:%d G/s:%.2f\n", pool_.num_threads(), 1e-9 / exp_seconds_);
    for (const int context : {16384, 32768, 65536}) {
      const std::string name = "/context:" + std::to_string(context);
      const size_t at = only_.find("/context:");
      if (at != std::string::npos && name != only_.substr(at, name.size())) continue;
      Layers layers(*backend_, context);
      if (!layers.ok()) return 1;
      for (const int rows : {4, 8, 16, 64}) {
        for (const double wanted : {0.5, 0.7, 0.9}) {
          if (!Case(layers, context, rows, wanted)) return 1;
        }
      }
    }
    return 0;
  }

 private:
  struct Branch {
    const char* name;
    void (Layers::*run)(int, int, int);
    double bytes, scores;  // of the rows together: each byte once, each score once
  };

  // Seconds of an exponential of a softmax on all threads, with reading its score and writing its weight.
  double ExponentialSeconds() {
    const AttentionKernels& kernels = AttentionKernelsFor(backend_->isa());
    constexpr int kScores = 1024;
    constexpr int kTimes = 64;
    const double s = timer_.Median([&] {
      pool_.RunOnAll([&](int) {
        float scores[kScores];
        for (float& x : scores) x = -3.25f;
        for (int i = 0; i < kTimes; ++i) kernels.exp_sum(scores, kScores, 1.5f);
      });
    });
    return s / (kScores * kTimes * pool_.num_threads());
  }

  // Seconds that bytes or products need at least, and bytes or products with the exponentials between them.
  struct Bounds {
    double products = 0, softmax = 0;
  };

  bool Case(Layers& layers, int context, int rows, double wanted) {
    const std::string name = "/context:" + std::to_string(context) + "/rows:" + std::to_string(rows) +
                             "/overlap:" + std::to_string(wanted).substr(0, 3);
    const auto wanted_here = [&](const std::string& branch) {
      return (branch + name).find(only_) != std::string::npos;
    };
    layers.MakeLists(rows, (wanted * kTopK - 3) / (kTopK - 3), 11);
    double overlap = 0;
    const double blocks = layers.Union(rows, &overlap);
    const double queries = static_cast<double>(kHeads) * rows;
    const double window_blocks = (kWindow + rows - 1.0) / kBlock;
    const Branch branches[] = {
        {"compressed", &Layers::Compressed, layers.summary_bytes(), queries * (context / 16.0)},
        {"selected", &Layers::Selected, blocks * layers.page_bytes(), queries * kTopK * kBlock},
        {"window", &Layers::Window, window_blocks * kKvHeads * layers.page_bytes(), queries * kWindow}};
    double alone_all = 0, together_all = 0;
    Bounds bounds_all;
    bool whole = true;
    for (const Branch& b : branches) {
      if (!wanted_here(b.name)) {
        whole = false;
        continue;
      }
      const auto run = [&](int group) {
        return timer_.Median([&] {
          for (int l = 0; l < layers.layers(); ++l) (layers.*b.run)(l, rows, group);
        }) / layers.layers();
      };
      (layers.*b.run)(0, rows, 1);
      const std::vector<float> want = layers.out();
      (layers.*b.run)(0, rows, 0);
      if (std::memcmp(want.data(), layers.out().data(), want.size() * sizeof(float)) != 0) {
        std::fprintf(stderr, "bench_verify: %s differs between rows alone and together\n", b.name);
        return false;
      }
      const double alone = run(1);
      const double together = run(0);
      // A multiplication and an addition a channel, with keys and with values.
      const double products = peak_gops_ > 0 ? b.scores * 4 * kDim / (peak_gops_ * 1e9) : 0;
      const double bytes = b.bytes / (read_gbs_ * 1e9);
      const Bounds bounds = {std::max(bytes, products), std::max(bytes, products + b.scores * exp_seconds_)};
      Print(b.name + name, overlap, alone, together, bounds);
      alone_all += alone, together_all += together;
      bounds_all.products += bounds.products, bounds_all.softmax += bounds.softmax;
    }
    if (whole) Print("all" + name, overlap, alone_all, together_all, bounds_all);
    return true;
  }

  void Print(const std::string& name, double overlap, double alone, double together, const Bounds& bounds) const {
    std::printf(
        "case:%s threads:%d overlap:%.2f alone_us:%.0f together_us:%.0f speedup:%.2f bound_share:%.2f "
        "with_exponentials:%.2f\n",
        name.c_str(), pool_.num_threads(), overlap, alone * 1e6, together * 1e6, alone / together,
        bounds.products / together, bounds.softmax / together);
    std::fflush(stdout);
  }

  double exp_seconds_ = 0;
};

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::RunBench<farsight::Bench>("bench_verify", argc, argv); }
