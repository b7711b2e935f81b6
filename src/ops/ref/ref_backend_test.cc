// The oracle against golden values computed elsewhere in double (selection and attention of InfLLM-v2 on hashed data).
#include "ops/ref/ref_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/ref/ref_pages.h"

namespace farsight {
namespace {

// u in [-0.5, 0.5): all integer arithmetic modulo 2^32.
double Hash01(uint32_t i, uint32_t s) {
  uint32_t x = i * 2654435761u + s * 40503u + 12345u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x / 4294967296.0 - 0.5;
}

std::vector<float> HashTensor(size_t n, uint32_t s, double scale) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(scale * Hash01(static_cast<uint32_t>(i), s));
  return out;
}

class Golden : public ::testing::Test {
 protected:
  static constexpr int kTokens = 1200, kHeads = 8, kKvHeads = 2, kDim = 8, kBlocks = 19;

  void SetUp() override {
    kv_.dtype = DType::kF32;
    kv_.num_kv_heads = kKvHeads;
    kv_.block_heads = kKvHeads;
    kv_.head_dim = kDim;
    kv_.page_bytes = backend_.KvPageBytes(kv_);
    summary_.kind = SummaryKind::kPooledKeys;
    summary_.page_bytes = backend_.SummaryPageBytes(kv_, summary_);
    kv_pages_.resize(kv_.page_bytes * kKvHeads * kBlocks);
    summary_.head_bytes = summary_.page_bytes * kBlocks;
    summary_pages_.resize(summary_.page_bytes * kKvHeads * kBlocks);
    kv_.pages = kv_pages_.data();
    summary_.pages = summary_pages_.data();
    for (int b = 0; b < kBlocks; ++b) table_.push_back((b * 7 + 3) % kBlocks);  // any permutation will do
    k_ = HashTensor(kTokens * kKvHeads * kDim, 1, 2);
    v_ = HashTensor(kTokens * kKvHeads * kDim, 2, 2);
    q_ = HashTensor(kTokens * kHeads * kDim, 3, 2);
    for (int t = 0; t < kTokens; ++t) positions_.push_back(t);
    row_seq_.assign(kTokens, 0);
    rows_ = {kTokens, 1, kBlocks, nullptr, positions_.data(), row_seq_.data(), table_.data()};
    backend_.AppendKv({rows_, k_.data(), v_.data(), kKvHeads * kDim, kv_});
    backend_.Summarise({rows_, kv_, summary_});
  }

  SelectParams Select() {
    SelectParams p;
    p.rows = rows_;
    p.q = q_.data();
    p.q_stride = kHeads * kDim;
    p.num_heads = kHeads;
    p.scale = static_cast<float>(1 / std::sqrt(8.0));
    p.kv = kv_;
    p.summary = summary_;
    p.top_k = 14;
    p.init_blocks = 1;
    p.local_blocks = 4;
    return p;
  }

  std::vector<int32_t> Pick(int pos, int head) {
    return RefBackend::PickBlocks(backend_.BlockScores(Select(), pos, head), 14, 1, 4);
  }

  RefBackend backend_;
  KvView kv_;
  SummaryView summary_;
  std::vector<std::byte> kv_pages_, summary_pages_;
  std::vector<float> k_, v_, q_;
  std::vector<int32_t> table_, positions_, row_seq_;
  RowBatch rows_;
};

TEST_F(Golden, HashedDataMatchesThePublishedConstants) {
  EXPECT_NEAR(Hash01(0, 1), 0.2552486251, 1e-9);
  EXPECT_NEAR(Hash01(1, 1), 0.4735094609, 1e-9);
  EXPECT_NEAR(k_[0], 0.51049725, 1e-7);
  EXPECT_NEAR(k_[(5 * 2 + 1) * 8 + 3], -0.42499791, 1e-7);
}

TEST_F(Golden, CompressedKey) {
  // Window 7 ends with token 143, in block 2, as that block's entry 0.
  const auto* page = reinterpret_cast<const float*>(summary_.Page(table_[2], 1));
  EXPECT_NEAR(page[2], -0.01537804, 1e-7);
}

TEST_F(Golden, SelectionListsOfTheQueryPath) {
  using V = std::vector<int32_t>;
  EXPECT_EQ(Pick(30, 0), (V{0}));
  EXPECT_EQ(Pick(500, 1), (V{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Pick(1100, 0), (V{0, 2, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17}));
  EXPECT_EQ(Pick(1100, 1), (V{0, 1, 2, 3, 4, 7, 9, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(Pick(1199, 0), (V{0, 1, 3, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(Pick(1199, 1), (V{0, 1, 2, 5, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
}

TEST_F(Golden, AttentionOverTheForecastLists) {
  const std::vector<std::vector<int32_t>> lists = {{0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18},
                                                   {0, 1, 2, 3, 4, 7, 8, 10, 12, 14, 15, 16, 17, 18}};
  std::vector<int32_t> ids;
  for (const auto& l : lists) ids.insert(ids.end(), l.begin(), l.end());
  const std::vector<int32_t> counts = {14, 14};
  std::vector<float> out(kHeads * kDim);
  AttendParams p;
  p.rows = rows_;
  p.rows.num_rows = 1;
  p.rows.positions = positions_.data() + 1199;
  p.q = q_.data() + 1199 * kHeads * kDim;
  p.out = out.data();
  p.q_stride = p.out_stride = kHeads * kDim;
  p.num_heads = kHeads;
  p.scale = static_cast<float>(1 / std::sqrt(8.0));
  p.kv = kv_;
  p.ids = ids.data();
  p.counts = counts.data();
  p.max_selected = 14;
  backend_.Attend(p);
  const float head0[] = {0.01254534f, -0.03235465f, -0.01189699f, -0.00420988f};
  const float head7[] = {-0.02820592f, -0.00715756f, 0.01284033f, 0.04335491f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(out[static_cast<size_t>(i)], head0[i], 1e-7);
    EXPECT_NEAR(out[static_cast<size_t>(7 * kDim + i)], head7[i], 1e-7);
  }
}

// Published importances stand in for those that Summarise makes of values.
TEST_F(Golden, TwoQuotasAndTheBiasOfImportances) {
  const std::vector<float> c = HashTensor(kTokens * kKvHeads, 5, 6);
  const std::vector<float> some(kKvHeads * kKvHeads * kDim, 0.5f);
  summary_.importance_scale = summary_.importance_weight = some.data();
  summary_.page_bytes = backend_.SummaryPageBytes(kv_, summary_);
  summary_.head_bytes = summary_.page_bytes * kBlocks;
  summary_pages_.assign(summary_.page_bytes * kKvHeads * kBlocks, std::byte{0});
  summary_.pages = summary_pages_.data();
  backend_.Summarise({rows_, kv_, summary_});
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) {
      float* page = ImportancePage(kv_, summary_, table_[static_cast<size_t>(t / 64)], h);
      page[t % 64] = c[static_cast<size_t>(t * kKvHeads + h)];
      if (t < 31 || (t + 1) % 16 != 0) continue;
      double sum = 0;
      for (int u = t - 31; u <= t; ++u) sum += c[static_cast<size_t>(u * kKvHeads + h)];
      page[64 + t % 64 / 16] = static_cast<float>(sum / 32);
    }
  }
  using V = std::vector<int32_t>;
  EXPECT_EQ(RefBackend::PickBlocks(backend_.BlockScores(Select(), 1100, 0), 9, 1, 4),
            (V{0, 5, 8, 11, 13, 14, 15, 16, 17}));
  EXPECT_EQ(RefBackend::PickBlocks(backend_.BlockScores(Select(), 1199, 1), 9, 1, 4),
            (V{0, 1, 2, 10, 14, 15, 16, 17, 18}));
  const std::vector<uint8_t> sparse(kTokens, 1);
  std::vector<int32_t> ids(kTokens * kKvHeads * 14), counts(kTokens * kKvHeads);
  SelectParams p = Select();
  p.row_sparse = sparse.data();
  p.query_top_k = 9;
  p.ids = ids.data();
  p.counts = counts.data();
  const auto list = [&](int row, int head) {
    const auto first = ids.begin() + (row * kKvHeads + head) * 14;
    return V(first, first + counts[static_cast<size_t>(row * kKvHeads + head)]);
  };
  backend_.Select(p);
  EXPECT_EQ(list(30, 0), (V{0}));
  EXPECT_EQ(list(500, 1), (V{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(list(1100, 0), (V{0, 2, 3, 4, 5, 8, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(list(1100, 1), (V{0, 1, 2, 4, 5, 6, 8, 10, 11, 13, 14, 15, 16, 17}));
  EXPECT_EQ(list(1199, 0), (V{0, 2, 3, 4, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(list(1199, 1), (V{0, 1, 2, 4, 5, 6, 10, 11, 13, 14, 15, 16, 17, 18}));
  std::vector<float> out(kTokens * kHeads * kDim);
  AttendParams a;
  a.rows = rows_;
  a.q = q_.data();
  a.out = out.data();
  a.q_stride = a.out_stride = kHeads * kDim;
  a.num_heads = kHeads;
  a.scale = p.scale;
  a.kv = kv_;
  a.ids = ids.data();
  a.counts = counts.data();
  a.max_selected = 14;
  a.summary = summary_;
  backend_.Attend(a);
  const float head0[] = {0.01917808f, -0.03554972f, -0.02247543f, 0.00643041f};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(out[static_cast<size_t>(1199 * kHeads * kDim + i)], head0[i], 1e-7);
}

TEST(PickBlocks, ForcedBlocksWinAndTiesGoToTheLowerId) {
  using V = std::vector<int32_t>;
  const std::vector<double> equal(10, 0.0);
  EXPECT_EQ(RefBackend::PickBlocks(equal, 5, 1, 1), (V{0, 1, 2, 8, 9}));
  EXPECT_EQ(RefBackend::PickBlocks({5, 1, 9, 1, 1, 1}, 3, 1, 0), (V{0, 2, 5}));
  // A budget below the forced blocks keeps the newest, the row's own block always.
  EXPECT_EQ(RefBackend::PickBlocks(equal, 2, 1, 3), (V{8, 9}));
  EXPECT_EQ(RefBackend::PickBlocks({1.0}, 4, 1, 2), (V{0}));
}

}  // namespace
}  // namespace farsight
