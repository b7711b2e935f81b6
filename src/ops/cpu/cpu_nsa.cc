// NSA on the CPU: compressed keys and values, the compressed branch with the block scores that come out of it, and the
// gates. Also the pooled keys that have to be turned back to before RoPE.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"
#include "ops/cpu/cpu_attention.h"

namespace farsight {
namespace {

constexpr int kMaxDim = 256;

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
  std::byte* page = SummaryPage(kv, s, PhysicalBlock(p.rows, seq, pos / kv.block_tokens), head);
  const int entry = pos % kv.block_tokens / s.stride;
  if (!with_values) {
    std::copy_n(keys, d, reinterpret_cast<float*>(page) + static_cast<int64_t>(entry) * d);
    return;
  }
  const int per_block = kv.block_tokens / s.stride;
  for (int i = 0; i < padded; ++i) {
    StoreKv(kv.dtype, page, static_cast<int64_t>(entry) * padded + i, i < d ? keys[i] : 0.0f);
    StoreKv(kv.dtype, page, static_cast<int64_t>(per_block + entry) * padded + i, i < d ? values[i] : 0.0f);
  }
}

// Compressed branch and block choice of a tile and KV head. Entry e of block b, counted through, is window
// b * (B / stride) + e - skip, as in PooledProducts. Scratch: window scores [queries][PooledStride], then as
// BlockScratch, then queries, outputs and a group of blocks' values.
void CpuAttention::CompressedTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  const int group = p.num_heads / kv.num_kv_heads;
  const int queries = tile.num_rows * group;
  const int per_block = kv.block_tokens / s.stride;
  const int units = s.kernel / s.stride;
  const int skip = units - 1;
  const int seq = p.rows.row_seq[tile.first_row];
  const int64_t stride = PooledStride(p);
  const int64_t elem = ElemBytes(kv.dtype);
  const int type = TypeIndex(kv.dtype);
  const auto windows_of = [&](int row) { return std::max(0, (p.rows.positions[row] + 1) / s.stride - skip); };
  const int entries = windows_of(tile.first_row + tile.num_rows - 1) + skip;
  const int num_blocks = entries == skip ? 0 : (entries + per_block - 1) / per_block;

  float* scores = BlockScratch(group, kv.block_tokens, scratch);
  float* at = scores + 4 * static_cast<int64_t>(limits_.max_blocks);
  auto** a = reinterpret_cast<const float**>(at);
  auto** c = reinterpret_cast<float**>(at + 2 * static_cast<int64_t>(queries));
  float* q = at + 4 * static_cast<int64_t>(queries);
  float* o = q + static_cast<int64_t>(queries) * padded;
  float* panels = o + static_cast<int64_t>(queries) * padded;
  auto* rows = reinterpret_cast<std::byte*>(panels + static_cast<int64_t>(kPooledBlocks) * per_block * padded);

  for (int i = 0; i < queries; ++i) {
    const float* from =
        p.q + (tile.first_row + i / group) * p.q_stride + static_cast<int64_t>(head * group + i % group) * d;
    float* to = q + static_cast<int64_t>(i) * padded;
    for (int j = 0; j < padded; ++j) to[j] = j < d ? from[j] * p.scale : 0.0f;
    a[i] = to;
  }
  const auto page_of = [&](int block) { return SummaryPage(kv, s, PhysicalBlock(p.rows, seq, block), head); };
  for (int block = 0; block < num_blocks; ++block) {
    if (block + 2 < num_blocks) Prefetch(page_of(block + 2), s.page_bytes);
    const int at_entry = block * per_block;
    for (int i = 0; i < queries; ++i) c[i] = scratch + i * stride + at_entry;
    // Entries that no window ends in yet hold whatever was there; they are behind every row's windows.
    kernels_->dot_rows[type](a, c, queries, page_of(block), std::min(per_block, entries - at_entry), padded);
  }
  // Softmax of each query; what a row does not see becomes zero, so that one product serves the tile.
  for (int i = 0; i < queries; ++i) {
    const int windows = windows_of(tile.first_row + i / group);
    float* z = scratch + i * stride;
    float* share = z + skip;
    const float sum = windows == 0 ? 1.0f : kernels_->exp_sum(share, windows, kernels_->max(share, windows));
    const float inverse = 1.0f / sum;
    for (int w = 0; w < windows; ++w) share[w] *= inverse;
    std::fill(z, share, 0.0f);
    if (entries > windows + skip) std::fill(share + windows, z + entries, 0.0f);
  }
  std::fill(o, o + static_cast<int64_t>(queries) * padded, 0.0f);
  for (int first = 0; first < num_blocks; first += kPooledBlocks) {
    const int blocks = std::min(kPooledBlocks, num_blocks - first);
    // The first `skip` entries of a sequence are never windows and were never written.
    const int from = first == 0 ? skip : first * per_block;
    const int to = std::min((first + blocks) * per_block, entries);
    for (int b = first; b < first + blocks; ++b) {
      const int begin = std::max(from, b * per_block);
      const int end = std::min(to, (b + 1) * per_block);
      if (begin >= end) continue;
      std::memcpy(rows + (begin - from) * padded * elem,
                  page_of(b) + static_cast<int64_t>(per_block + begin % per_block) * padded * elem,
                  static_cast<size_t>((end - begin) * padded * elem));
    }
    kernels_->pack[type](rows, padded, padded, to - from, panels);
    for (int i = 0; i < queries; ++i) {
      a[i] = scratch + i * stride + from;
      c[i] = o + static_cast<int64_t>(i) * padded;
    }
    kernels_->product(a, c, queries, panels, padded, to - from, true, nullptr);
  }
  for (int i = 0; i < queries; ++i) {
    float* out =
        p.out + (tile.first_row + i / group) * p.out_stride + static_cast<int64_t>(head * group + i % group) * d;
    std::copy_n(o + static_cast<int64_t>(i) * padded, d, out);
  }
  for (int r = 0; r < tile.num_rows; ++r) {
    const int row = tile.first_row + r;
    if (NeedsScores(p, row)) {
      const int windows = windows_of(row);
      const int row_blocks = p.rows.positions[row] / kv.block_tokens + 1;
      float* mass = scratch + static_cast<int64_t>(r) * group * stride + skip;
      for (int g = 1; g < group; ++g) {
        const float* more = mass + g * stride;
        for (int w = 0; w < windows; ++w) mass[w] += more[w];
      }
      for (int b = 0; b < row_blocks; ++b) {
        float sum = 0;
        for (int offset = -skip; offset < per_block; ++offset) {
          const int w = b * per_block + offset;
          if (w < 0 || w >= windows) continue;
          sum += static_cast<float>(SharedUnits(offset, per_block, units)) * mass[w];
        }
        scores[b] = sum;
      }
    }
    PickBlocks(p, row, head, scores, scores + limits_.max_blocks);
  }
}

// Floats that CompressedTile and PooledProducts need behind the block scores.
int64_t CpuAttention::PooledFloats(const OpLimits& l) {
  const int64_t queries = std::max(kTileQueries, l.num_heads);
  const int64_t padded = PaddedDim(l.head_dim);
  const int64_t entries = static_cast<int64_t>(kPooledBlocks) * l.block_tokens;
  return queries * (2 * padded + 4) + 2 * entries * padded;
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
