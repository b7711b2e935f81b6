// Golden values of native sparse attention with its real constants: windows of 32 every 16, 16 blocks of 64, of which
// the first and the two newest are forced. Weights P of the windows are given integers: a window's key is that of its
// last token, whose logit is log P.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

constexpr int kDim = 8;
constexpr int kKernel = 32;
constexpr int kStride = 16;
constexpr int kBlock = 64;
constexpr int kTopK = 16;
constexpr int64_t kTokens = 65536;

// (7919 i + 104729 salt) mod 100003
int64_t Weight(int64_t window, int64_t salt) { return (7919 * window + 104729 * salt) % 100003; }

template <typename B>
class Golden {
 public:
  explicit Golden(B& backend) : b_(backend) {
    kv_.dtype = DType::kF32;
    kv_.block_tokens = kBlock;
    kv_.num_kv_heads = kv_.block_heads = 1;
    kv_.head_dim = kDim;
    kv_.page_bytes = b_.KvPageBytes(kv_);
    summary_.kind = SummaryKind::kCompressed;
    summary_.page_bytes = b_.SummaryPageBytes(kv_, summary_);
    last_.assign(size_t{kKernel} * kDim, 0.0f);
    std::fill(last_.end() - kDim, last_.end(), 1.0f);  // the last token of a window is all of it
    summary_.key_weights = summary_.value_weights = last_.data();
    const auto blocks = static_cast<size_t>(kTokens / kBlock);
    pages_ = b_.Allocate(blocks * kv_.page_bytes).value();
    summaries_ = b_.Allocate(blocks * summary_.page_bytes).value();
    kv_.pages = pages_.data();
    summary_.pages = summaries_.data();
    table_.resize(blocks);
    std::iota(table_.begin(), table_.end(), 0);
    OpLimits limits;
    limits.max_rows = static_cast<int>(kTokens);
    limits.max_seqs = 1;
    limits.max_blocks = static_cast<int>(blocks);
    limits.max_width = kDim;
    limits.num_heads = limits.num_kv_heads = 1;
    limits.head_dim = kDim;
    EXPECT_TRUE(b_.Reserve(limits).ok());
    positions_.resize(static_cast<size_t>(kTokens));
    std::iota(positions_.begin(), positions_.end(), 0);
    seqs_.assign(positions_.size(), 0);
  }

  // Keys with the weights of `salt` in channel 0, values of 1 in channel 0 and the window's number in channel 1.
  void Fill(int64_t tokens, int64_t salt) {
    std::vector<float> k(static_cast<size_t>(tokens) * kDim);
    std::vector<float> v(k.size());
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t window = (t + 1 - kKernel) / kStride;
      const int64_t weight = t + 1 >= kKernel ? Weight(window, salt) : 0;
      const auto at = static_cast<size_t>(t) * kDim;
      k[at] = weight == 0 ? -60.0f : static_cast<float>(std::log(static_cast<double>(weight)));
      v[at] = 1;
      v[at + 1] = static_cast<float>(window);
    }
    const RowBatch rows = Rows(0, static_cast<int>(tokens));
    b_.AppendKv({rows, k.data(), v.data(), kDim, kv_});
    b_.Summarise({rows, kv_, summary_});
  }
  // `logit`: of the query with channel 0; 0 gives every window the same share.
  std::vector<int32_t> Select(int position, float logit, float* out) {
    const std::vector<float> q = {logit, 0, 0, 0, 0, 0, 0, 0};
    const uint8_t sparse = 1;
    int32_t ids[kTopK];
    int32_t count = 0;
    SelectParams s;
    s.rows = Rows(position, position + 1);
    s.q = q.data();
    s.row_sparse = &sparse;
    s.q_stride = s.out_stride = kDim;
    s.num_heads = 1;
    s.scale = 1;
    s.kv = kv_;
    s.summary = summary_;
    s.top_k = kTopK;
    s.local_blocks = 1;
    s.ids = ids;
    s.counts = &count;
    s.out = out;
    b_.Select(s);
    return {ids, ids + count};
  }

 private:
  RowBatch Rows(int from, int to) const {
    RowBatch r;
    r.num_rows = to - from;
    r.num_seqs = 1;
    r.max_blocks = static_cast<int>(table_.size());
    r.positions = positions_.data() + from;
    r.row_seq = seqs_.data();
    r.block_tables = table_.data();
    return r;
  }

  B& b_;
  KvView kv_;
  SummaryView summary_;
  Buffer pages_, summaries_;
  std::vector<float> last_;
  std::vector<int32_t> table_, positions_, seqs_;
};

using Ids = std::vector<int32_t>;

template <typename B>
void Check(B& backend, const std::string& what) {
  Golden<B> golden(backend);
  float out[kDim];
  golden.Fill(kTokens, 0);
  // Windows that a length of L tokens has: with equal shares the mean of their numbers tells how many there are.
  const std::pair<int, int> windows[] = {{1, 0},     {31, 0},    {32, 1},    {47, 1},      {48, 2},    {49, 2},
                                         {63, 2},    {64, 3},    {65, 3},    {1000, 61},   {1004, 61}, {1007, 61},
                                         {1008, 62}, {1012, 62}, {1013, 62}, {65536, 4095}};
  for (const auto& [length, count] : windows) {
    golden.Select(length - 1, 0, out);
    EXPECT_NEAR(out[0], count == 0 ? 0 : 1, 1e-4) << what << ", length " << length;
    EXPECT_NEAR(out[1], count == 0 ? 0 : (count - 1) / 2.0, 1e-4 * count) << what << ", length " << length;
  }
  const auto at = [&](int position) { return golden.Select(position, 1, out); };
  Ids first(16);
  std::iota(first.begin(), first.end(), 0);
  EXPECT_EQ(at(0), Ids({0})) << what;
  EXPECT_EQ(at(63), Ids({0})) << what;
  EXPECT_EQ(at(64), Ids({0, 1})) << what;
  EXPECT_EQ(at(127), Ids({0, 1})) << what;
  EXPECT_EQ(at(128), Ids({0, 1, 2})) << what;
  EXPECT_EQ(at(1023), first) << what;
  EXPECT_EQ(at(1088), Ids({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 16, 17})) << what;
  EXPECT_EQ(at(1500), Ids({0, 2, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 22, 23})) << what;
  const Ids even = {0, 2, 12, 15, 18, 21, 31, 34, 37, 40, 50, 53, 56, 59, 61, 62};
  EXPECT_EQ(at(4000), even) << what;
  EXPECT_EQ(at(65535), Ids({0, 15, 75, 135, 236, 296, 457, 517, 618, 678, 738, 839, 899, 1000, 1022, 1023})) << what;
  EXPECT_EQ(at(4002), even) << what;
  golden.Fill(4096, 1);
  const Ids odd = {0, 2, 5, 15, 18, 21, 24, 34, 37, 40, 43, 53, 56, 59, 61, 62};
  EXPECT_EQ(at(4001), odd) << what;
  EXPECT_EQ(at(4003), odd) << what;
  // Rows 4000 to 4003 with both in turn load 19 blocks together.
  Ids all;
  std::set_union(even.begin(), even.end(), odd.begin(), odd.end(), std::back_inserter(all));
  EXPECT_EQ(all.size(), 19u);
}

TEST(NsaGolden, Reference) {
  RefBackend backend;
  Check(backend, "reference");
}

TEST(NsaGolden, EveryInstructionSet) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!IsaAvailable(isa)) continue;
    const auto backend = CpuBackend::Create(2, isa).value();
    Check(*backend, IsaName(isa));
  }
}

}  // namespace
}  // namespace farsight
