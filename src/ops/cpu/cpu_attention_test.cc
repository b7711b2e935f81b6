// Cache, summaries, selection and attention of the CPU backend: against the reference, and against themselves in every
// shape a row can be computed in.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

std::vector<Isa> Isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (IsaAvailable(isa)) out.push_back(isa);
  }
  return out;
}

struct Shape {
  int heads = 9, kv_heads = 3, dim = 64, block = 64;
  DType dtype = DType::kF32;
  SummaryView summary = {};
};

// One layer's cache on one backend, with several sequences in permuted physical blocks.
template <typename B>
class Layer {
 public:
  Layer(B& backend, const Shape& s, std::vector<int> lengths, int max_blocks = 0)
      : b_(backend), s_(s), lengths_(lengths) {
    for (const int n : lengths) max_blocks_ = std::max(max_blocks_, (n + s.block - 1) / s.block);
    max_blocks_ = std::max(max_blocks_, max_blocks);
    const int physical = max_blocks_ * static_cast<int>(lengths.size());
    kv.dtype = s.dtype;
    kv.block_tokens = s.block;
    kv.num_kv_heads = s.kv_heads;
    kv.block_heads = s.kv_heads;
    kv.head_dim = s.dim;
    kv.page_bytes = b_.KvPageBytes(kv);
    summary = s.summary;
    summary.page_bytes = b_.SummaryPageBytes(kv, summary);
    summary.head_bytes = static_cast<size_t>(physical) * summary.page_bytes;
    const auto pages = static_cast<size_t>(physical * s.kv_heads);
    pages_ = b_.Allocate(pages * kv.page_bytes).value();
    summaries_ = b_.Allocate(pages * summary.page_bytes + 64).value();
    kv.pages = pages_.data();
    summary.pages = summaries_.data();
    std::vector<int32_t> order(static_cast<size_t>(physical));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    table_ = order;
    OpLimits l;
    l.max_rows = 4096;
    l.max_seqs = static_cast<int>(lengths.size());
    l.max_blocks = max_blocks_;
    l.max_width = 64;
    l.num_heads = s.heads;
    l.num_kv_heads = s.kv_heads;
    l.head_dim = s.dim;
    l.block_tokens = s.block;
    EXPECT_TRUE(b_.Reserve(l).ok());
  }

  // Rows [from, to) of sequence `seq`, appended to the batch at hand.
  void AddRows(int seq, int from, int to) {
    for (int p = from; p < to; ++p) {
      positions_.push_back(p);
      row_seq_.push_back(seq);
      sparse_.push_back(1);
    }
  }
  void Clear() {
    positions_.clear();
    row_seq_.clear();
    sparse_.clear();
  }
  RowBatch Rows() const {
    return {static_cast<int>(positions_.size()),
            static_cast<int>(lengths_.size()),
            max_blocks_,
            nullptr,
            positions_.data(),
            row_seq_.data(),
            table_.data()};
  }
  // Keys, values and queries are functions of (sequence, position), so that any batch shows the same data.
  std::vector<float> Values(int width, uint32_t salt) const {
    std::vector<float> out;
    for (size_t t = 0; t < positions_.size(); ++t) {
      std::mt19937 rng(salt + 7919u * static_cast<uint32_t>(row_seq_[t]) +
                       104729u * static_cast<uint32_t>(positions_[t]));
      std::normal_distribution<float> normal;
      for (int i = 0; i < width; ++i) out.push_back(normal(rng) * (i % 7 == 0 ? 2.0f : 1.0f));
    }
    return out;
  }
  void Append() {
    const int width = s_.kv_heads * s_.dim;
    const auto k = Values(width, 1);
    const auto v = Values(width, 2);
    b_.AppendKv({Rows(), k.data(), v.data(), width, kv});
    b_.Summarise({Rows(), kv, summary});
  }
  SelectParams Selection(const std::vector<float>& q, int top_k, std::vector<int32_t>* ids,
                         std::vector<int32_t>* counts) {
    ids->assign(positions_.size() * static_cast<size_t>(s_.kv_heads * top_k), 0x7f7f7f7f);
    counts->assign(positions_.size() * static_cast<size_t>(s_.kv_heads), 0x7f7f7f7f);
    SelectParams p;
    p.rows = Rows();
    p.q = q.data();
    p.row_sparse = sparse_.data();
    p.q_stride = s_.heads * s_.dim;
    p.num_heads = s_.heads;
    p.scale = Scale();
    p.kv = kv;
    p.summary = summary;
    p.top_k = top_k;
    if (summary.HasImportance()) p.query_top_k = top_k - 3;
    p.init_blocks = 1;
    p.local_blocks = 2;
    p.ids = ids->data();
    p.counts = counts->data();
    return p;
  }
  // `ends`: of the parts before the last, in blocks; none is one call.
  std::vector<float> Attend(const std::vector<int32_t>* ids, const std::vector<int32_t>* counts, int top_k,
                            const std::vector<int>& ends = {}, int window = 0) {
    const auto q = Values(s_.heads * s_.dim, 3);
    std::vector<float> out(q.size(), -1.0f);
    AttendParams p;
    p.rows = Rows();
    p.q = q.data();
    p.out = out.data();
    p.q_stride = p.out_stride = s_.heads * s_.dim;
    p.num_heads = s_.heads;
    p.scale = Scale();
    p.kv = kv;
    if (ids != nullptr) {
      p.ids = ids->data();
      p.counts = counts->data();
      p.max_selected = top_k;
    }
    p.window = window;
    p.summary = summary;
    std::vector<double> carry(positions_.size() * b_.AttendCarryBytes(s_.heads, s_.dim) / sizeof(double) + 1, 1e30);
    p.carry = reinterpret_cast<std::byte*>(carry.data());
    for (const int end : ends) {
      p.end_block = end;
      b_.Attend(p);
      p.first_block = end;
    }
    p.end_block = std::numeric_limits<int>::max();
    b_.Attend(p);
    return out;
  }
  // From now on the pages lie elsewhere and are found by slots.
  void UseSlots() {
    if (!slots_.empty()) return;
    const size_t n = pages_.size() / kv.page_bytes;
    slots_.resize(n);
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), std::mt19937(9));
    Buffer moved = b_.Allocate(n * kv.page_bytes).value();
    for (size_t i = 0; i < n; ++i) {
      std::memcpy(moved.data() + static_cast<size_t>(slots_[i]) * kv.page_bytes, pages_.data() + i * kv.page_bytes,
                  kv.page_bytes);
    }
    pages_ = std::move(moved);
    kv.pages = pages_.data();
    kv.slots = slots_.data();
  }
  std::vector<float> SelectAndAttend(int top_k) {
    std::vector<int32_t> ids;
    std::vector<int32_t> counts;
    const auto q = Values(s_.heads * s_.dim, 3);
    b_.Select(Selection(q, top_k, &ids, &counts));
    return Attend(&ids, &counts, top_k);
  }
  float Scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(s_.dim))); }

  KvView kv;
  SummaryView summary;

 private:
  B& b_;
  Shape s_;
  std::vector<int> lengths_;
  int max_blocks_ = 0;
  Buffer pages_, summaries_;
  std::vector<int32_t> table_, positions_, row_seq_, slots_;
  std::vector<uint8_t> sparse_;
};

double MaxError(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

SummaryView Pooled(int kernel = 32, int stride = 16) {
  return {nullptr, 0, 0, SummaryKind::kPooledKeys, kernel, stride, 2};
}
SummaryView Sketch(int bits) { return {nullptr, 0, 0, SummaryKind::kSketch, 32, 16, bits}; }

// Values where rounding is delicate: ties, halves below the normal range, the largest, and what rounds to infinity.
std::vector<float> Hard(size_t n) {
  const float some[] = {0.0f,     -0.0f,      1.0f + 0x1p-11f, 1.0f + 0x1p-8f, 1.0f + 0x3p-11f, -0x1p-24f,
                        0x1p-25f, 0x1.8p-25f, 0x1.ffcp-15f,    65504.0f,       65519.0f,        -65520.0f,
                        1e9f,     0x1.01p0f};
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = rng() % 2 == 0 ? some[rng() % std::size(some)] : normal(rng);
  return out;
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  std::unique_ptr<CpuBackend> Cpu(int threads = 2) { return CpuBackend::Create(threads, GetParam()).value(); }
};

TEST_P(AttentionTest, MatchesTheReferenceForEveryShape) {
  std::vector<Shape> shapes;
  for (const DType t : {DType::kF32, DType::kF16, DType::kBF16}) shapes.push_back({9, 3, 64, 64, t, {}});
  for (const int g : {1, 2, 4, 7, 8, 16, 32}) shapes.push_back({2 * g, 2, 64, 64, DType::kF16, {}});
  for (const int d : {8, 72, 80, 96, 128, 256}) shapes.push_back({4, 2, d, 64, DType::kF16, {}});
  for (const int b : {16, 32, 128, 256}) shapes.push_back({3, 1, 64, b, DType::kF16, {}});
  auto cpu = Cpu();
  RefBackend ref;
  for (const Shape& s : shapes) {
    const std::vector<int> lengths = {1, 64, 65, 300};
    Layer<CpuBackend> a(*cpu, s, lengths);
    Layer<RefBackend> b(ref, s, lengths);
    const auto all = [&](auto& layer) {
      for (int q = 0; q < 4; ++q) layer.AddRows(q, 0, lengths[static_cast<size_t>(q)]);
      layer.Append();
      return layer.Attend(nullptr, nullptr, 0);
    };
    EXPECT_LT(MaxError(all(a), all(b)), 2e-5) << "heads " << s.heads << "/" << s.kv_heads << " dim " << s.dim
                                              << " block " << s.block << " type " << InfoOf(s.dtype).name;
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnChunksBatchesOrThreads) {
  const Shape s{6, 2, 64, 64, DType::kF16, Pooled()};
  const std::vector<int> lengths = {1500, 200};
  const auto cpu = Cpu();
  Layer<CpuBackend> whole(*cpu, s, lengths);
  whole.AddRows(0, 0, 1500);
  whole.Append();
  const auto dense = whole.Attend(nullptr, nullptr, 0);
  const auto sparse = whole.SelectAndAttend(9);
  for (const int threads : {1, 3}) {
    for (const int chunk : {1, 2, 3, 5, 8, 17, 64, 700}) {
      auto other = Cpu(threads);
      Layer<CpuBackend> layer(*other, s, lengths);
      const int first = chunk < 8 ? 1400 : 0;  // small chunks over a cache that is there already
      if (first > 0) {
        layer.AddRows(0, 0, first);
        layer.Append();
        layer.Clear();
      }
      const size_t width = 6 * 64;
      for (int at = first; at < 1500; at += chunk) {
        layer.Clear();
        layer.AddRows(1, at / 10, at / 10 + 1);  // another sequence beside it
        layer.AddRows(0, at, std::min(1500, at + chunk));
        layer.Append();
        const auto d = layer.Attend(nullptr, nullptr, 0);
        const auto sp = layer.SelectAndAttend(9);
        const size_t bytes = (d.size() - width) * sizeof(float);
        ASSERT_EQ(std::memcmp(d.data() + width, dense.data() + static_cast<size_t>(at) * width, bytes), 0)
            << chunk << " at " << at;
        ASSERT_EQ(std::memcmp(sp.data() + width, sparse.data() + static_cast<size_t>(at) * width, bytes), 0)
            << chunk << " at " << at;
      }
    }
  }
}

// Pages found by slots, and attention in parts: with and without lists, many rows and few, windows too.
template <typename B>
void ExpectPartsAndSlotsChangeNothing(B& b, const Shape& s, int tokens, int first) {
  Layer<B> layer(b, s, {tokens, 90});
  layer.AddRows(0, 0, first);
  layer.AddRows(1, 0, 90);
  layer.Append();
  layer.Clear();
  for (const int rows : {tokens - first, 1}) {
    layer.Clear();
    layer.AddRows(0, tokens - rows, tokens);
    layer.Append();
    layer.AddRows(1, 89, 90);
    std::vector<int32_t> ids, counts;
    const auto q = layer.Values(s.heads * s.dim, 3);
    b.Select(layer.Selection(q, 7, &ids, &counts));
    const int split = kAttendSplitTokens / s.block;
    const int last = (tokens - 1) / kAttendSplitTokens;
    std::vector<int> each;
    for (int i = 1; i <= last; ++i) each.push_back(i * split);
    const auto dense = layer.Attend(nullptr, nullptr, 0);
    const auto sparse = layer.Attend(&ids, &counts, 7);
    const auto windowed = layer.Attend(nullptr, nullptr, 0, {}, 1100);
    layer.UseSlots();
    for (const auto& ends : {std::vector<int>{}, each, std::vector<int>{split}, std::vector<int>{last * split}}) {
      EXPECT_EQ(layer.Attend(nullptr, nullptr, 0, ends), dense) << rows;
      EXPECT_EQ(layer.Attend(&ids, &counts, 7, ends), sparse) << rows;
      EXPECT_EQ(layer.Attend(nullptr, nullptr, 0, ends, 1100), windowed) << rows;
    }
  }
}

TEST_P(AttentionTest, PartsAndSlotsGiveTheSameBits) {
  for (const int threads : {1, 3}) {
    ExpectPartsAndSlotsChangeNothing(*Cpu(threads), {6, 2, 64, 64, DType::kF16, Pooled()}, 3300, 3200);
  }
  RefBackend ref;
  ExpectPartsAndSlotsChangeNothing(ref, {2, 1, 8, 256, DType::kF32, Pooled()}, 2100, 2090);
}

// A selection that skips the local blocks chooses the same before and after the row's own keys are summarised.
TEST_P(AttentionTest, SkippingLocalBlocksNeedsNothingNew) {
  auto cpu = Cpu();
  const std::pair<SummaryView, int> cases[] = {{Pooled(), 64},       {Pooled(16, 8), 80},  {Pooled(64, 64), 8},
                                               {Pooled(4, 1), 16},   {Pooled(80, 16), 10}, {Pooled(128, 16), 64},
                                               {Pooled(96, 32), 64}, {Sketch(2), 64}};
  for (const auto& [summary, dim] : cases) {
    const Shape s{2, 2, dim, 64, DType::kF16, summary};
    Layer<CpuBackend> layer(*cpu, s, {1400});
    for (int at = 0; at < 1400; at += at < 1300 ? 1300 : 1) {
      std::vector<int32_t> early, late, usual, counts;
      layer.Clear();
      layer.AddRows(0, at, at == 0 ? 1300 : at + 1);
      const auto q = layer.Values(s.heads * s.dim, 3);
      const auto select = [&](bool skip, std::vector<int32_t>* ids) {
        SelectParams p = layer.Selection(q, 8, ids, &counts);
        p.skip_local = skip;
        cpu->Select(p);
      };
      if (at > 0) select(true, &early);
      layer.Append();
      select(true, &late);
      select(false, &usual);
      if (at > 0) {
        ASSERT_EQ(early, late) << at;
      }
      ASSERT_EQ(late, usual) << at << ", windows of " << summary.kernel << " every " << summary.stride;
    }
  }
}

TEST_P(AttentionTest, ImportancesMatchTheReferenceInChunksOfAnySize) {
  const int dim = 40, kv_heads = 2, tokens = 1300;
  const std::vector<float> scale = {0.7f, -1.5f};
  const std::vector<float> bias = {0.2f, -0.4f};
  std::vector<float> weight(static_cast<size_t>(kv_heads * kv_heads * dim));
  std::mt19937 rng(8);
  std::normal_distribution<float> normal(0, 0.1f);
  for (float& w : weight) w = normal(rng);
  SummaryView summary = Pooled();
  summary.importance_scale = scale.data();
  summary.importance_weight = weight.data();
  summary.importance_bias = bias.data();
  const Shape s{6, kv_heads, dim, 64, DType::kF16, summary};
  RefBackend ref;
  Layer<RefBackend> b(ref, s, {tokens});
  b.AddRows(0, 0, tokens);
  b.Append();
  std::vector<int32_t> ids, counts, ref_ids, ref_counts;
  const auto q = b.Values(s.heads * dim, 3);
  ref.Select(b.Selection(q, 9, &ref_ids, &ref_counts));
  const auto reference = b.Attend(&ref_ids, &ref_counts, 9);
  auto cpu = Cpu();
  Layer<CpuBackend> a(*cpu, s, {tokens});
  a.AddRows(0, 0, tokens);
  a.Append();
  cpu->Select(a.Selection(q, 9, &ids, &counts));
  EXPECT_EQ(counts, ref_counts);
  size_t same = 0;
  for (size_t i = 0; i < ids.size(); ++i) same += ids[i] == ref_ids[i] ? 1 : 0;
  EXPECT_GT(same, ids.size() * 999 / 1000) << "but for near ties";
  const auto whole = a.Attend(&ids, &counts, 9);
  EXPECT_LT(MaxError(a.Attend(&ref_ids, &ref_counts, 9), reference), 2e-5);
  EXPECT_LT(MaxError(a.Attend(nullptr, nullptr, 0), b.Attend(nullptr, nullptr, 0)), 2e-5);
  for (const int chunk : {1, 17}) {
    Layer<CpuBackend> layer(*cpu, s, {tokens});
    layer.AddRows(0, 0, 1000);
    layer.Append();
    for (int at = 1000; at < tokens; at += chunk) {
      layer.Clear();
      layer.AddRows(0, at, std::min(tokens, at + chunk));
      layer.Append();
      const auto part = layer.SelectAndAttend(9);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(at) * 6 * dim))
          << chunk << " at " << at;
    }
  }
}

TEST_P(AttentionTest, AListOfAllBlocksEqualsNoListBitForBit) {
  const Shape s{9, 3, 64, 64, DType::kF16, Sketch(2)};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {2100});
  layer.AddRows(0, 0, 2100);
  layer.Append();
  const auto dense = layer.Attend(nullptr, nullptr, 0);
  EXPECT_EQ(layer.SelectAndAttend(33), dense);
  layer.Clear();
  layer.AddRows(0, 2099, 2100);
  const auto last = layer.SelectAndAttend(33);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), dense.end() - static_cast<std::ptrdiff_t>(last.size())));
  EXPECT_NE(layer.SelectAndAttend(8), last);
}

TEST_P(AttentionTest, AnEmptyListGivesZeros) {
  const Shape s{2, 1, 64, 64, DType::kF16, {}};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {10});
  layer.AddRows(0, 0, 10);
  layer.Append();
  const std::vector<int32_t> ids(40, 0x7f7f7f7f);
  const std::vector<int32_t> counts(10, 0);
  for (const float x : layer.Attend(&ids, &counts, 4)) EXPECT_EQ(x, 0.0f);
}

TEST_P(AttentionTest, SelectionMatchesTheReferenceUpToNearTies) {
  for (const auto& [summary, tolerance] : std::vector<std::pair<SummaryView, double>>{{Pooled(), 1e-5},
                                                                                      {Pooled(16, 8), 1e-5},
                                                                                      {Pooled(64, 64), 1e-5},
                                                                                      {Pooled(4, 1), 1e-5},
                                                                                      {Sketch(1), 0.02},
                                                                                      {Sketch(2), 0.02},
                                                                                      {Sketch(4), 0.02}}) {
    for (const int dim : {8, 64, 80}) {
      const Shape s{6, 2, dim, 64, DType::kF16, summary};
      auto cpu = Cpu();
      RefBackend ref;
      Layer<CpuBackend> a(*cpu, s, {1500});
      Layer<RefBackend> b(ref, s, {1500});
      std::vector<int32_t> ids_a, counts_a, ids_b, counts_b;
      a.AddRows(0, 0, 1500);
      b.AddRows(0, 0, 1500);
      a.Append();
      b.Append();
      const auto q = a.Values(6 * dim, 3);
      cpu->Select(a.Selection(q, 9, &ids_a, &counts_a));
      const SelectParams reference = b.Selection(q, 9, &ids_b, &counts_b);
      for (int row : {0, 63, 64, 500, 640, 703, 1000, 1499}) {
        for (int h = 0; h < 2; ++h) {
          const auto scores = ref.BlockScores(reference, row, h);
          const auto want = RefBackend::PickBlocks(scores, 9, 1, 2);
          const size_t at = static_cast<size_t>(row * 2 + h);
          ASSERT_EQ(counts_a[at], static_cast<int32_t>(want.size()));
          const std::vector<int32_t> got(ids_a.begin() + static_cast<std::ptrdiff_t>(at * 9),
                                         ids_a.begin() + static_cast<std::ptrdiff_t>(at * 9 + want.size()));
          EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
          // Whatever differs must be within the tolerance of the weakest chosen block.
          double weakest = 1e9;
          for (const int32_t id : want) weakest = std::min(weakest, scores[static_cast<size_t>(id)]);
          double total = 0;
          for (const double x : scores) total += x;
          for (const int32_t id : got) {
            if (std::find(want.begin(), want.end(), id) == want.end()) {
              EXPECT_GT(scores[static_cast<size_t>(id)], weakest - tolerance * total)
                  << "row " << row << " block " << id;
            }
          }
        }
      }
    }
  }
}

// One row is split over the sequence, many rows are not; block sizes below and above a group of sketched tokens.
TEST_P(AttentionTest, SketchSelectionDoesNotDependOnRowsOrThreads) {
  for (const int bits : {1, 2, 4}) {
    for (const auto& [dim, block] : std::vector<std::pair<int, int>>{{8, 16}, {64, 64}, {80, 32}, {256, 128}}) {
      const int tokens = 40 * block - 5;
      const Shape s{7, 1, dim, block, DType::kF16, Sketch(bits)};
      std::vector<int32_t> all;
      for (const int threads : {1, 2, 5}) {
        auto cpu = Cpu(threads);
        Layer<CpuBackend> layer(*cpu, s, {tokens});
        layer.AddRows(0, 0, tokens);
        layer.Append();
        std::vector<int32_t> counts;
        for (const int rows : {40, 3, 1}) {
          layer.Clear();
          layer.AddRows(0, tokens - rows, tokens);
          const auto q = layer.Values(7 * dim, 3);
          std::vector<int32_t> ids;
          cpu->Select(layer.Selection(q, 9, &ids, &counts));
          if (all.empty()) all = ids;
          EXPECT_TRUE(std::equal(ids.rbegin(), ids.rend(), all.rbegin()))
              << bits << " bits, dim " << dim << ", " << threads << " threads, " << rows << " rows";
        }
      }
    }
  }
}

// What is no number spoils the scores, never the list.
TEST_P(AttentionTest, SketchSelectionOfAQueryThatIsNoNumber) {
  const Shape s{2, 1, 64, 64, DType::kF16, Sketch(2)};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {1500});
  layer.AddRows(0, 0, 1500);
  layer.Append();
  layer.Clear();
  layer.AddRows(0, 1499, 1500);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 3e38f, 1e-42f}) {
    std::vector<float> q = layer.Values(2 * 64, 3);
    q[5] = bad;
    std::vector<int32_t> ids, counts;
    cpu->Select(layer.Selection(q, 9, &ids, &counts));
    EXPECT_EQ(counts, std::vector<int32_t>{9});
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_TRUE(ids[i] >= 0 && ids[i] < 24 && (i == 0 || ids[i - 1] < ids[i])) << bad << " at " << i;
    }
  }
}

// Every set rounds what it stores as the plain conversion does, and lays it out alike.
TEST_P(AttentionTest, PagesAndSummariesHoldTheSameBytesOnEverySet) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int dim : {8, 72}) {
      const Shape s{1, 1, dim, 32, type, Pooled()};
      auto scalar = CpuBackend::Create(1, Isa::kScalar).value();
      auto cpu = Cpu();
      Layer<CpuBackend> want(*scalar, s, {100});
      Layer<CpuBackend> got(*cpu, s, {100});
      std::vector<float> x = Hard(static_cast<size_t>(100 * dim));
      for (auto* layer : {&want, &got}) {
        layer->AddRows(0, 0, 100);
        auto& backend = layer == &want ? scalar : cpu;
        backend->AppendKv({layer->Rows(), x.data(), x.data(), dim, layer->kv});
        backend->Summarise({layer->Rows(), layer->kv, layer->summary});
      }
      EXPECT_EQ(std::memcmp(got.kv.pages, want.kv.pages, 4 * want.kv.page_bytes), 0) << InfoOf(type).name << dim;
      EXPECT_EQ(std::memcmp(got.summary.pages, want.summary.pages, 4 * want.summary.page_bytes), 0)
          << InfoOf(type).name << dim;
    }
  }
}

TEST_P(AttentionTest, EqualScoresGoToTheLowerIdAndForcedBlocksStay) {
  const Shape s{2, 1, 64, 64, DType::kF16, Sketch(2)};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {640});
  layer.AddRows(0, 0, 640);
  layer.Append();
  layer.Clear();
  layer.AddRows(0, 639, 640);
  std::vector<int32_t> ids, counts;
  const std::vector<float> zero(2 * 64, 0.0f);  // every token scores the same
  cpu->Select(layer.Selection(zero, 5, &ids, &counts));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 7, 8, 9}));
  cpu->Select(layer.Selection(zero, 2, &ids, &counts));
  EXPECT_EQ(ids, (std::vector<int32_t>{8, 9})) << "a budget below the forced blocks keeps the newest";
}

TEST_P(AttentionTest, TruncatingAndAppendingAgainEqualsFresh) {
  for (const SummaryView& summary : {Pooled(), Sketch(2)}) {
    const Shape s{3, 1, 64, 64, DType::kF16, summary};
    auto cpu = Cpu();
    Layer<CpuBackend> fresh(*cpu, s, {400});
    fresh.AddRows(0, 0, 400);
    fresh.Append();
    for (const int keep : {1, 15, 16, 31, 32, 63, 64, 65, 128, 300}) {
      Layer<CpuBackend> other(*cpu, s, {400});
      other.AddRows(0, 0, 399);
      other.Append();
      other.Clear();
      other.AddRows(0, keep, 400);  // the tail is written again over what was there
      other.Append();
      const size_t pages = 7;
      EXPECT_EQ(std::memcmp(other.summary.pages, fresh.summary.pages, pages * fresh.summary.page_bytes), 0) << keep;
      EXPECT_EQ(std::memcmp(other.kv.pages, fresh.kv.pages, pages * fresh.kv.page_bytes), 0) << keep;
    }
  }
}

// u in [-0.5, 0.5) of an index and a salt, in integer arithmetic modulo 2^32; the golden lists are of such data.
float Hashed(size_t i, uint32_t salt) {
  uint32_t x = static_cast<uint32_t>(i) * 2654435761u + salt * 40503u + 12345u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<float>(2 * (x / 4294967296.0 - 0.5));
}
std::vector<float> HashedValues(size_t n, uint32_t salt) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = Hashed(i, salt);
  return out;
}

TEST_P(AttentionTest, GoldenListsAndOutputs) {
  constexpr int kTokens = 1200;
  const Shape s{8, 2, 8, 64, DType::kF32, Pooled()};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {kTokens});
  layer.AddRows(0, 0, kTokens);
  const auto k = HashedValues(kTokens * 2 * 8, 1);
  const auto v = HashedValues(kTokens * 2 * 8, 2);
  const auto q = HashedValues(kTokens * 8 * 8, 3);
  cpu->AppendKv({layer.Rows(), k.data(), v.data(), 16, layer.kv});
  cpu->Summarise({layer.Rows(), layer.kv, layer.summary});
  std::vector<int32_t> ids, counts;
  SelectParams select = layer.Selection(q, 14, &ids, &counts);
  select.local_blocks = 4;
  cpu->Select(select);
  const auto list = [&](int row, int head) {
    const auto at = static_cast<std::ptrdiff_t>(row * 2 + head);
    return std::vector<int32_t>(ids.begin() + at * 14, ids.begin() + at * 14 + counts[static_cast<size_t>(at)]);
  };
  using V = std::vector<int32_t>;
  EXPECT_EQ(list(30, 0), (V{0}));
  EXPECT_EQ(list(500, 1), (V{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(list(1100, 0), (V{0, 2, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17}));
  EXPECT_EQ(list(1100, 1), (V{0, 1, 2, 3, 4, 7, 9, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(list(1199, 0), (V{0, 1, 3, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(list(1199, 1), (V{0, 1, 2, 5, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18}));

  const V given = {0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,   // head 0
                   0, 1, 2, 3, 4, 7,  8,  10, 12, 14, 15, 16, 17, 18};  // head 1
  const V full = {14, 14};
  std::vector<float> out(64);
  layer.Clear();
  layer.AddRows(0, 1199, 1200);
  AttendParams p;
  p.rows = layer.Rows();
  p.q = q.data() + 1199 * 64;
  p.out = out.data();
  p.q_stride = p.out_stride = 64;
  p.num_heads = 8;
  p.scale = layer.Scale();
  p.kv = layer.kv;
  p.ids = given.data();
  p.counts = full.data();
  p.max_selected = 14;
  cpu->Attend(p);
  const float head0[] = {0.01254534f, -0.03235465f, -0.01189699f, -0.00420988f};
  const float head7[] = {-0.02820592f, -0.00715756f, 0.01284033f, 0.04335491f};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(out[i], head0[i], 1e-6);
    EXPECT_NEAR(out[56 + i], head7[i], 1e-6);
  }
}

TEST_P(AttentionTest, IdsPastTheCountAreNeverRead) {
  const Shape s{2, 1, 64, 64, DType::kF16, {}};
  auto cpu = Cpu();
  Layer<CpuBackend> layer(*cpu, s, {640});
  layer.AddRows(0, 0, 640);
  layer.Append();
  layer.Clear();
  layer.AddRows(0, 637, 640);
  const int32_t poison = 0x7f7f7f7f;
  const std::vector<int32_t> ids = {1, 9, poison, poison, poison, poison, poison, poison, 0, 4, 7, 8};
  const std::vector<int32_t> counts = {2, 0, 4};
  const std::vector<int32_t> clean = {1, 9, 0, 0, 0, 0, 0, 0, 0, 4, 7, 8};
  EXPECT_EQ(layer.Attend(&ids, &counts, 4), layer.Attend(&clean, &counts, 4));
}

// Pages of one huge mapping of which only a few are ever touched: offsets beyond 32 bits must stay exact.
TEST_P(AttentionTest, PagesPastTwoGigabytes) {
  const Shape s{4, 2, 128, 64, DType::kF16, Sketch(2)};
  auto cpu = Cpu();
  Layer<CpuBackend> near(*cpu, s, {320});
  const auto run = [&](RowBatch rows, const KvView& kv, const SummaryView& summary, std::vector<int32_t>* ids) {
    const auto k = near.Values(256, 1);
    const auto v = near.Values(256, 2);
    const auto q = near.Values(512, 3);
    cpu->AppendKv({rows, k.data(), v.data(), 256, kv});
    cpu->Summarise({rows, kv, summary});
    std::vector<int32_t> counts;
    SelectParams select = near.Selection(q, 4, ids, &counts);
    select.rows = rows;
    select.kv = kv;
    select.summary = summary;
    select.local_blocks = 0;
    cpu->Select(select);
    std::vector<float> out(q.size());
    AttendParams p;
    p.rows = rows;
    p.q = q.data();
    p.out = out.data();
    p.q_stride = p.out_stride = 512;
    p.num_heads = 4;
    p.scale = near.Scale();
    p.kv = kv;
    p.ids = ids->data();
    p.counts = counts.data();
    p.max_selected = 4;
    cpu->Attend(p);
    return out;
  };
  near.AddRows(0, 0, 320);
  std::vector<int32_t> near_ids, far_ids;
  const auto want = run(near.Rows(), near.kv, near.summary, &near_ids);

  KvView kv = near.kv;
  SummaryView summary = near.summary;
  constexpr int32_t kFar = 600000;  // times two heads of summaries of 2.8 KB: 3.4 GB
  // The address space is what is asked for; memory is given to touched pages alone.
  const auto map = [](size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  };
  const size_t kv_bytes = kv.page_bytes * 2 * kFar;
  const size_t summary_bytes = summary.page_bytes * 2 * kFar;
  kv.pages = map(kv_bytes);
  summary.pages = map(summary_bytes);
  summary.head_bytes = summary_bytes / 2;
  if (kv.pages != nullptr && summary.pages != nullptr) {
    const std::vector<int32_t> table = {kFar - 1, 7, kFar - 300, kFar / 2, kFar - 2};
    RowBatch rows = near.Rows();
    rows.block_tables = table.data();
    EXPECT_EQ(run(rows, kv, summary, &far_ids), want);
    EXPECT_EQ(far_ids, near_ids);
    EXPECT_GT(summary_bytes, size_t{1} << 31);
  }
  if (kv.pages != nullptr) munmap(kv.pages, kv_bytes);
  if (summary.pages != nullptr) munmap(summary.pages, summary_bytes);
}

TEST_P(AttentionTest, BlockEdgesMatchTheReference) {
  const Shape s{3, 1, 64, 64, DType::kF16, Pooled()};
  auto cpu = Cpu();
  RefBackend ref;
  Layer<CpuBackend> a(*cpu, s, {1100});
  Layer<RefBackend> b(ref, s, {1100});
  a.AddRows(0, 0, 1100);
  b.AddRows(0, 0, 1100);
  a.Append();
  b.Append();
  for (const int row : {0, 1, 15, 16, 62, 63, 64, 65, 127, 128, 1022, 1023, 1024, 1025, 1087, 1088, 1099}) {
    a.Clear();
    b.Clear();
    a.AddRows(0, row, row + 1);
    b.AddRows(0, row, row + 1);
    EXPECT_LT(MaxError(a.Attend(nullptr, nullptr, 0), b.Attend(nullptr, nullptr, 0)), 2e-5) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, ::testing::ValuesIn(Isas()),
                         [](const auto& tested) { return std::string(IsaName(tested.param)); });

}  // namespace
}  // namespace farsight
