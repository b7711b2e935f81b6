// NSA on the CPU: compressed keys and values, the compressed branch with the block scores that come out of it, and the
// gates. Also the pooled keys that have to be turned back to before RoPE.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"
#include "ops/cpu/cpu_attention.h"

namespace farsight {
namespace {

constexpr int kMaxDim = 256;
constexpr int kHotQueries = 24;
constexpr int kParts = 20;                      // of a tile's scratch, at most
constexpr int kMaxReach = 2 * kMaxBlockTokens;  // units that a block shares with windows
constexpr float kLog2e = 1.44269504f;
constexpr float kMasked = -1e30f;  // a score far below any other

// Turns x at a position: forwards, or back with the table's magnitude taken out.
void Turn(const SummaryView& s, int position, bool back, float* x) {
  const float* cos = s.cos + static_cast<int64_t>(position) * s.half_dim;
  const float* sin = s.sin + static_cast<int64_t>(position) * s.half_dim;
  for (int i = 0; i < s.half_dim; ++i) {
    const float norm = back ? 1.0f / (cos[i] * cos[i] + sin[i] * sin[i]) : 1.0f;
    const float c = cos[i] * norm;
    const float n = back ? -sin[i] * norm : sin[i];
    const float a = x[i];
    const float b = x[i + s.half_dim];
    x[i] = a * c - b * n;
    x[i + s.half_dim] = b * c + a * n;
  }
}

// Floats in whole lines of 64 bytes.
int64_t Lines(int64_t floats) { return (floats + 15) / 16 * 16; }

// How many stride-long units a window shares with a block when it starts `offset` units after it.
int SharedUnits(int offset, int per_block, int units) {
  return std::max(0, std::min(units - 1, per_block - 1 - offset) - std::max(0, -offset) + 1);
}

}  // namespace

// The window whose last token is at `pos`.
void CpuAttention::CompressWindow(const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  const int first = pos + 1 - s.kernel;
  float keys[kMaxDim] = {};
  float values[kMaxDim] = {};
  const bool with_values = s.kind == SummaryKind::kCompressed;
  const float mean = 1.0f / static_cast<float>(s.kernel);
  for (int u = first; u <= pos; ++u) {
    const std::byte* page = kv.Page(PhysicalBlock(p.rows, seq, u / kv.block_tokens), head);
    const int slot = u % kv.block_tokens;
    const int64_t weights_at = (static_cast<int64_t>(head) * s.kernel + (u - first)) * d;
    float x[kMaxDim];
    for (int i = 0; i < d; ++i) x[i] = LoadKv(kv.dtype, page, static_cast<int64_t>(i) * kv.block_tokens + slot);
    if (s.unrotate) Turn(s, u, true, x);
    const float* w = s.key_weights == nullptr ? nullptr : s.key_weights + weights_at;
    for (int i = 0; i < d; ++i) keys[i] += (w == nullptr ? mean : w[i]) * x[i];
    if (!with_values) continue;
    const int64_t at = static_cast<int64_t>(d) * kv.block_tokens + static_cast<int64_t>(slot) * padded;
    w = s.value_weights == nullptr ? nullptr : s.value_weights + weights_at;
    for (int i = 0; i < d; ++i) values[i] += (w == nullptr ? mean : w[i]) * LoadKv(kv.dtype, page, at + i);
  }
  if (s.rotate_start) Turn(s, first, false, keys);
  std::byte* page = s.Page(PhysicalBlock(p.rows, seq, pos / kv.block_tokens), head);
  const int entry = pos % kv.block_tokens / s.stride;
  if (!with_values) {
    std::copy_n(keys, d, reinterpret_cast<float*>(page) + static_cast<int64_t>(entry) * d);
    return;
  }
  const int per_block = kv.block_tokens / s.stride;
  for (int i = 0; i < padded; ++i) {
    StoreKv(kv.dtype, page, static_cast<int64_t>(i) * per_block + entry, i < d ? keys[i] : 0.0f);
    StoreKv(kv.dtype, page, static_cast<int64_t>(per_block + entry) * padded + i, i < d ? values[i] : 0.0f);
  }
}

// Compressed branch and block choice of a tile and KV head, one pass over the compressed keys and values in groups of
// kPooledBlocks blocks, with a softmax that runs over the groups as attention's does over blocks; so a row's result
// does not depend on the tile. Entry e of block b, counted through, is window b * (B / stride) + e - skip, as in
// PooledProducts.
//
// What a block is worth to a row is the sum over its heads of the weights of the windows that reach into it, each by
// the units that both share.
//
// Scratch: weights [groups][queries][entries of a group], then as BlockScratch, then what `take` hands out.
void CpuAttention::CompressedTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  const int group = p.num_heads / kv.num_kv_heads;
  const int queries = tile.num_rows * group;
  const int per_block = kv.block_tokens / s.stride;
  const int skip = s.kernel / s.stride - 1;
  const int seq = p.rows.row_seq[tile.first_row];
  const int chunk = kPooledBlocks * per_block;  // entries of a group of blocks
  const auto windows_of = [&](int row) { return std::max(0, (p.rows.positions[row] + 1) / s.stride - skip); };
  const int most = windows_of(tile.first_row + tile.num_rows - 1);
  const int entries = most == 0 ? 0 : most + skip;
  const int chunks = (entries + chunk - 1) / chunk;

  float* scores = BlockScratch(kv.block_tokens, scratch);
  // Every part begins with a line: a vector that lies in two costs two.
  float* free = scratch + Lines(scores - scratch + 4 * static_cast<int64_t>(limits_.max_blocks));
  const auto take = [&free](int64_t n) { return std::exchange(free, free + Lines(n)); };
  auto** a = reinterpret_cast<const float**>(take(2 * static_cast<int64_t>(queries)));
  auto** c = reinterpret_cast<float**>(take(2 * static_cast<int64_t>(queries)));
  auto** pages = reinterpret_cast<const std::byte**>(take(2 * int64_t{kPooledBlocks}));
  auto** next = reinterpret_cast<const std::byte**>(take(2 * int64_t{kPooledBlocks}));
  float* q = take(static_cast<int64_t>(queries) * padded);
  float* o = take(static_cast<int64_t>(queries) * padded);
  float* m = take(queries);
  float* l = take(queries);
  float* keep = take(queries);
  auto* owner = reinterpret_cast<int*>(take(queries));
  auto* count = reinterpret_cast<int*>(take(queries));
  float* tops = take(static_cast<int64_t>(chunks) * queries);  // the largest score known after each group
  // The masses of a row's windows, with zeros behind them as far as a block's sum may read.
  const int last_blocks = p.rows.positions[tile.first_row + tile.num_rows - 1] / kv.block_tokens + 1;
  const int reach = per_block + skip;
  const int64_t masses = WholePools(last_blocks) * per_block + reach;
  float* mass = take(masses);
  float* keys = take(static_cast<int64_t>(chunk) * padded);
  float* values = take(static_cast<int64_t>(chunk) * padded);
  auto* stored_keys = reinterpret_cast<std::byte*>(take(static_cast<int64_t>(chunk) * padded));
  auto* stored_values = reinterpret_cast<std::byte*>(take(static_cast<int64_t>(chunk) * padded));

  for (int i = 0; i < queries; ++i) {
    const float* from =
        p.q + (tile.first_row + i / group) * p.q_stride + static_cast<int64_t>(head * group + i % group) * d;
    float* to = q + static_cast<int64_t>(i) * padded;
    for (int j = 0; j < padded; ++j) to[j] = j < d ? from[j] * p.scale * kLog2e : 0.0f;
  }
  std::fill(o, o + static_cast<int64_t>(queries) * padded, 0.0f);
  std::fill(m, m + queries, -std::numeric_limits<float>::infinity());
  std::fill(l, l + queries, 0.0f);
  const int num_blocks = (entries + per_block - 1) / per_block;
  // Of a group of blocks; past the end of the sequence that of its last block.
  const auto pages_of = [&](int k, const std::byte** to) {
    for (int b = 0; b < kPooledBlocks; ++b) {
      to[b] = s.Page(PhysicalBlock(p.rows, seq, std::min(k * kPooledBlocks + b, num_blocks - 1)), head);
    }
  };
  if (chunks > 0) pages_of(0, next);
  for (int k = 0; k < chunks; ++k) {
    const int first = k * chunk;
    const int end = std::min(first + chunk, entries);
    // The first `skip` entries of a sequence are never windows and were never written.
    const int hidden = k == 0 ? skip : 0;
    int owners = 0;
    for (int r = 0; r < tile.num_rows; ++r) {
      const int visible = windows_of(tile.first_row + r) + skip - first;
      if (visible <= hidden) continue;
      for (int i = r * group; i < (r + 1) * group; ++i, ++owners) {
        a[owners] = q + static_cast<int64_t>(i) * padded;
        c[owners] = scratch + (static_cast<int64_t>(k) * queries + i) * chunk;
        owner[owners] = i;
        count[owners] = std::min(visible, chunk);
      }
    }
    // Entries that no window ends in yet hold whatever was there; they are behind every row's windows. So are those
    // that fill up the last sixteen.
    const int columns = (end - first + 15) / 16 * 16;
    std::swap(pages, next);
    pages_of(k + 1, next);
    const int type = TypeIndex(kv.dtype);
    const auto page_rows = [&](int width) { return static_cast<int>(s.page_bytes / (width * ElemBytes(kv.dtype))); };
    kernels_->weave_pooled[type]({pages, per_block, padded, hidden, end - first, stored_keys, stored_values});
    // The first queries convert what is stored, and if there are many write it down for the others.
    const auto multiply = [&](bool stored, int at, int n, const std::byte* b, float* wide, int width, int depth,
                              const float* by) {
      if (stored) {
        // With the keys half of the next pages are asked for, with the values the rest.
        const std::byte* const* soon = by == nullptr ? next : next + kPooledBlocks / 2;
        kernels_->product_stored[type]({a + at, c + at, n, b, width, width, depth, by, soon, page_rows(width), wide});
      } else {
        kernels_->product(a + at, c + at, n, {wide, width, 16}, width, depth, by != nullptr, by);
      }
    };
    // So many queries at a time that what belongs to them stays in the first cache.
    for (int i = 0; i < owners; i += kHotQueries) {
      const int n = std::min(kHotQueries, owners - i);
      multiply(i == 0, i, n, stored_keys, keys, columns, padded, nullptr);
      for (int j = i; j < i + n; ++j) std::fill(c[j], c[j] + hidden, kMasked);
      kernels_->softmax_rows({c + i, count + i, owner + i, n, columns, m, l, keep});
      for (int j = i; j < i + n; ++j) {
        a[j] = c[j] + hidden;
        c[j] = o + static_cast<int64_t>(owner[j]) * padded;
      }
      multiply(i == 0, i, n, stored_values, values, padded, end - first - hidden, keep);
    }
    std::copy_n(m, queries, tops + static_cast<int64_t>(k) * queries);
  }
  for (int i = 0; i < queries; ++i) {
    const float inverse = l[i] > 0 || std::isnan(l[i]) ? 1.0f / l[i] : 0.0f;
    const float* from = o + static_cast<int64_t>(i) * padded;
    float* out =
        p.out + (tile.first_row + i / group) * p.out_stride + static_cast<int64_t>(head * group + i % group) * d;
    for (int j = 0; j < d; ++j) out[j] = from[j] * inverse;
    l[i] = inverse;
  }
  float* shares = tops;  // of a group's weights in those of the whole
  for (int k = 0; k < chunks; ++k) kernels_->share_weights(tops + static_cast<int64_t>(k) * queries, m, l, queries);
  float factors[kMaxReach];
  FS_CHECK(reach <= kMaxReach, "a window is not many blocks long");
  for (int i = 0; i < reach; ++i) factors[i] = static_cast<float>(SharedUnits(i - skip, per_block, skip + 1));
  for (int r = 0; r < tile.num_rows; ++r) {
    const int row = tile.first_row + r;
    if (NeedsScores(p, row)) {
      const int seen = windows_of(row) == 0 ? 0 : windows_of(row) + skip;
      std::fill(mass, mass + masses, 0.0f);
      for (int k = 0; k * chunk < seen; ++k) {
        const int64_t at = static_cast<int64_t>(k) * queries + r * group;
        const int n = (std::min(chunk, seen - k * chunk) + 15) / 16 * 16;
        kernels_->mix_weights(scratch + at * chunk, chunk, shares + at, group, n,
                              mass + static_cast<int64_t>(k) * chunk);
      }
      std::fill(mass, mass + std::min(skip, seen), 0.0f);
      kernels_->block_sums(mass, factors, reach, per_block, p.rows.positions[row] / kv.block_tokens + 1, scores);
    }
    PickBlocks(p, row, head, scores, scores + limits_.max_blocks);
  }
}

// Floats that CompressedTile and PooledProducts need behind the block scores.
int64_t CpuAttention::PooledFloats(const OpLimits& l) {
  const int64_t queries = std::max(kTileQueries, l.num_heads);
  const int64_t padded = PaddedDim(l.head_dim);
  const int64_t entries = static_cast<int64_t>(kPooledBlocks) * l.block_tokens;
  const int64_t chunks = (l.max_blocks + kPooledBlocks - 1) / kPooledBlocks;
  return queries * (2 * padded + 9 + chunks) + chunks * entries + kMaxReach + entries * 4 * padded + 4 * kPooledBlocks +
         kParts * 16;
}

void CpuAttention::GateBranches(const GateBranchesParams& p) {
  const int64_t width = static_cast<int64_t>(p.num_heads) * p.head_dim;
  const auto run = [&](int64_t t, int) {
    for (int h = 0; h < p.num_heads; ++h) {
      float gate[GateBranchesParams::kBranches];
      const float* in[GateBranchesParams::kBranches];
      for (int b = 0; b < GateBranchesParams::kBranches; ++b) {
        gate[b] = 1.0f / (1.0f + std::exp(-p.gates[(t * GateBranchesParams::kBranches + b) * p.num_heads + h]));
        in[b] = p.branches[b] + t * width + static_cast<int64_t>(h) * p.head_dim;
      }
      float* out = p.out + t * width + static_cast<int64_t>(h) * p.head_dim;
      for (int d = 0; d < p.head_dim; ++d) out[d] = gate[0] * in[0][d] + gate[1] * in[1][d] + gate[2] * in[2][d];
    }
  };
  if (p.num_rows < 16) {
    for (int t = 0; t < p.num_rows; ++t) run(t, 0);
  } else {
    pool_->ParallelFor(p.num_rows, run);
  }
}

}  // namespace farsight
