// Key summaries and block selection.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"
#include "ops/cpu/cpu_attention.h"
#include "ops/sketch.h"

namespace farsight {
namespace {

// A block with its score, best first, ties to the lower id.
struct Candidate {
  float score;
  int32_t block;
};
bool Before(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.block < b.block;
}

void PoolWindow(const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  auto* page = reinterpret_cast<float*>(SummaryPage(kv, s, PhysicalBlock(p.rows, seq, pos / kv.block_tokens), head));
  float* out = page + static_cast<int64_t>(pos % kv.block_tokens / s.stride) * kv.head_dim;
  for (int d = 0; d < kv.head_dim; ++d) out[d] = 0;
  for (int u = pos + 1 - s.kernel; u <= pos;) {
    const int block = u / kv.block_tokens;
    const int end = std::min((block + 1) * kv.block_tokens, pos + 1);
    const std::byte* keys = KvPage(kv, PhysicalBlock(p.rows, seq, block), head);
    for (int d = 0; d < kv.head_dim; ++d) {
      for (int t = u; t < end; ++t)
        out[d] += LoadKv(kv.dtype, keys, static_cast<int64_t>(d) * kv.block_tokens + t % kv.block_tokens);
    }
    u = end;
  }
  for (int d = 0; d < kv.head_dim; ++d) out[d] /= static_cast<float>(s.kernel);
}

void WriteCodes(const SketchPage& page, int slot, int dim, int bits, const int8_t* codes) {
  const int chunks = SketchChunks(dim, bits);
  const int channels = 32 / bits;
  uint8_t* octet = page.codes + static_cast<int64_t>(slot / 8) * chunks * 32 + slot % 8 * 4;
  for (int c = 0; c < chunks; ++c) {
    for (int i = 0; i < 4; ++i) {
      uint32_t byte = 0;
      for (int j = 0; j < 8 / bits; ++j) {
        const int d = c * channels + 4 * j + i;
        if (d < dim) byte |= static_cast<uint32_t>(codes[d]) << (j * bits);
      }
      octet[c * 32 + i] = static_cast<uint8_t>(byte);
    }
  }
}

void SketchPosition(const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  if (pos < kv.block_tokens - 1) return;  // the centre is not known before block 0 is full
  const int32_t first = PhysicalBlock(p.rows, seq, 0);
  float* centre = SketchPageAt(kv, p.summary, first, head).centre;
  const int block = pos / kv.block_tokens;
  const bool fixes_centre = pos == kv.block_tokens - 1;
  const std::byte* keys = KvPage(kv, PhysicalBlock(p.rows, seq, block), head);
  if (fixes_centre) {
    for (int d = 0; d < kv.head_dim; ++d) {
      float sum = 0;
      for (int t = 1; t < kv.block_tokens; ++t)
        sum += LoadKv(kv.dtype, keys, static_cast<int64_t>(d) * kv.block_tokens + t);
      centre[d] = sum / static_cast<float>(kv.block_tokens - 1);
    }
  }
  const SketchPage page = SketchPageAt(kv, p.summary, PhysicalBlock(p.rows, seq, block), head);
  const int slot_end = pos % kv.block_tokens;
  for (int slot = fixes_centre ? 0 : slot_end; slot <= slot_end; ++slot) {
    float x[256];
    int8_t codes[256];
    for (int d = 0; d < kv.head_dim; ++d)
      x[d] = LoadKv(kv.dtype, keys, static_cast<int64_t>(d) * kv.block_tokens + slot) - centre[d];
    page.scales[slot] = SketchToken(x, kv.head_dim, p.summary.bits, codes);
    WriteCodes(page, slot, kv.head_dim, p.summary.bits, codes);
  }
}

}  // namespace

size_t CpuAttention::SummaryPageBytes(const KvView& kv, const SummaryView& s) const {
  switch (s.kind) {
    case SummaryKind::kNone:
      return 0;
    case SummaryKind::kPooledKeys:
      return static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim) * sizeof(float);
    case SummaryKind::kCompressed:
      return static_cast<size_t>(2 * (kv.block_tokens / s.stride) * PaddedDim(kv.head_dim) * ElemBytes(kv.dtype));
    case SummaryKind::kSketch:
      return static_cast<size_t>(kv.head_dim + kv.block_tokens) * sizeof(float) +
             static_cast<size_t>(kv.block_tokens) / 8 * static_cast<size_t>(SketchChunks(kv.head_dim, s.bits)) * 32;
  }
  return 0;
}

void CpuAttention::Summarise(const SummariseParams& p) {
  if (p.summary.kind == SummaryKind::kNone) return;
  const KvView& kv = p.kv;
  // Rows of a sequence in order within a head: block 0's centre comes before the codes that need it.
  const auto summarise = [&](int64_t head, int) {
    for (int t = 0; t < p.rows.num_rows; ++t) {
      const int pos = p.rows.positions[t];
      const int seq = p.rows.row_seq[t];
      if (p.summary.kind == SummaryKind::kSketch) {
        SketchPosition(p, seq, static_cast<int>(head), pos);
      } else if ((pos + 1) % p.summary.stride == 0 && pos + 1 >= p.summary.kernel) {
        if (p.summary.kind == SummaryKind::kCompressed || p.summary.unrotate) {
          CompressWindow(p, seq, static_cast<int>(head), pos);
        } else {
          PoolWindow(p, seq, static_cast<int>(head), pos);
        }
      }
    }
  };
  if (p.rows.num_rows < 16) {
    for (int h = 0; h < kv.num_kv_heads; ++h) summarise(h, 0);
  } else {
    pool_->ParallelFor(kv.num_kv_heads, summarise);
  }
}

// Floats between the window scores of two queries.
int64_t CpuAttention::PooledStride(const SelectParams& p) const {
  return (static_cast<int64_t>(limits_.max_blocks) * (p.kv.block_tokens / p.summary.stride) + 15) / 16 * 16;
}

// Behind the token or window scores: [blocks] scores, then 3 * [blocks] for the candidates, then the queries.
float* CpuAttention::BlockScratch(int group, int block_tokens, float* scratch) const {
  return scratch + static_cast<int64_t>(group) * limits_.max_blocks * block_tokens;
}

// Scores of the pooled windows of a tile of rows: each group of blocks is packed once and meets all queries. Entry e of
// block b, counted through, is window b * (B / stride) + e - skip; entries before the first window are never used.
void CpuAttention::PooledProducts(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  const int group = p.num_heads / kv.num_kv_heads;
  const int queries = tile.num_rows * group;
  const int per_block = kv.block_tokens / p.summary.stride;
  const int seq = p.rows.row_seq[tile.first_row];
  const int num_blocks = p.rows.positions[tile.first_row + tile.num_rows - 1] / kv.block_tokens + 1;
  const int64_t stride = PooledStride(p);
  float* at = BlockScratch(group, kv.block_tokens, scratch) + 4 * static_cast<int64_t>(limits_.max_blocks);
  auto** a = reinterpret_cast<const float**>(at);
  auto** c = reinterpret_cast<float**>(at + 2 * static_cast<int64_t>(queries));
  float* q = at + 4 * static_cast<int64_t>(queries);
  float* panels = q + static_cast<int64_t>(queries) * d;
  for (int i = 0; i < queries; ++i) {
    const float* from =
        p.q + (tile.first_row + i / group) * p.q_stride + static_cast<int64_t>(head * group + i % group) * d;
    for (int j = 0; j < d; ++j) q[static_cast<int64_t>(i) * d + j] = from[j] * p.scale;
    a[i] = q + static_cast<int64_t>(i) * d;
  }
  for (int first = 0; first < num_blocks; first += kPooledBlocks) {
    const int blocks = std::min(kPooledBlocks, num_blocks - first);
    const int columns = (blocks * per_block + 15) / 16 * 16;
    if (columns > blocks * per_block) std::fill(panels, panels + static_cast<int64_t>(columns) * d, 0.0f);
    for (int e = 0; e < blocks * per_block; ++e) {
      const int block = first + e / per_block;
      const auto* page =
          reinterpret_cast<const float*>(SummaryPage(kv, p.summary, PhysicalBlock(p.rows, seq, block), head));
      const float* from = page + static_cast<int64_t>(e % per_block) * d;
      float* to = panels + static_cast<int64_t>(e / 16) * 16 * d + e % 16;
      for (int j = 0; j < d; ++j) to[j * 16] = from[j];
    }
    for (int i = 0; i < queries; ++i) c[i] = scratch + i * stride + static_cast<int64_t>(first) * per_block;
    kernels_->product(a, c, queries, panels, columns, d, false);
  }
}

// Block scores of one row from its query scores z [G][PooledStride].
const float* CpuAttention::PooledScores(const SelectParams& p, int row, float* z, float* scores) const {
  const SummaryView& s = p.summary;
  const int pos = p.rows.positions[row];
  const int group = p.num_heads / p.kv.num_kv_heads;
  const int num_blocks = pos / p.kv.block_tokens + 1;
  const int per_block = p.kv.block_tokens / s.stride;
  const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
  const int windows = std::max(0, (pos + 1) / s.stride - skip);
  std::fill(scores, scores + num_blocks, 0.0f);
  if (windows == 0) return scores;
  z += skip;
  for (int g = 0; g < group; ++g) {
    float* row_z = z + g * PooledStride(p);
    const float inverse = 1.0f / kernels_->exp_sum(row_z, windows, kernels_->max(row_z, windows));
    for (int w = 0; w < windows; ++w) z[w] = (g == 0 ? 0.0f : z[w]) + row_z[w] * inverse;  // g 0 normalises itself
  }
  for (int b = 0; b < num_blocks; ++b) {
    const int first = std::max(per_block * b - skip, 0);
    const int last = std::min(per_block * (b + 1) - 1, windows - 1);
    for (int w = first; w <= last; ++w) scores[b] = std::max(scores[b], z[w]);
  }
  return scores;
}

// Block scores by token sketches; scratch as above with [G][tokens], and the queries in 8 bits behind.
const float* CpuAttention::SketchScores(const SelectParams& p, int row, int head, float* scratch) const {
  const KvView& kv = p.kv;
  const int pos = p.rows.positions[row];
  const int seq = p.rows.row_seq[row];
  const int group = p.num_heads / kv.num_kv_heads;
  const int d = kv.head_dim;
  const int bits = p.summary.bits;
  const int num_blocks = pos / kv.block_tokens + 1;
  const int64_t stride = static_cast<int64_t>(num_blocks) * kv.block_tokens;
  float* scores = BlockScratch(group, kv.block_tokens, scratch);
  std::fill(scores, scores + num_blocks, 0.0f);
  if (pos < kv.block_tokens - 1) return scores;
  const int chunks = SketchChunks(d, bits);
  const int coded = chunks * 32 / bits;
  auto* codes = reinterpret_cast<int8_t*>(scores + 4 * static_cast<int64_t>(limits_.max_blocks));
  const float half = 0.5f * static_cast<float>((1 << bits) - 1);
  for (int g0 = 0; g0 < group; g0 += kMaxSketchQueries) {
    const int num = std::min(kMaxSketchQueries, group - g0);
    SketchQuery queries[kMaxSketchQueries];
    for (int i = 0; i < num; ++i) {
      const float* q = p.q + row * p.q_stride + static_cast<int64_t>(head * group + g0 + i) * d;
      float top = 0;
      for (int j = 0; j < d; ++j) top = std::max(top, std::fabs(q[j]));
      const float inverse = top > 0 ? 127.0f / top : 0.0f;
      int8_t* out = codes + static_cast<int64_t>(i) * coded;
      int sum = 0;
      for (int j = 0; j < coded; ++j) {
        out[j] = j < d ? static_cast<int8_t>(std::lrintf(q[j] * inverse)) : int8_t{0};
        sum += out[j];
      }
      queries[i] = {out, half * static_cast<float>(sum), p.scale * top / 127.0f, nullptr};
    }
    for (int block = 0; block < num_blocks; ++block) {
      if (block + 2 < num_blocks) {
        Prefetch(SummaryPage(kv, p.summary, PhysicalBlock(p.rows, seq, block + 2), head), p.summary.page_bytes);
      }
      const SketchPage page = SketchPageAt(kv, p.summary, PhysicalBlock(p.rows, seq, block), head);
      for (int i = 0; i < num; ++i)
        queries[i].out = scratch + (g0 + i) * stride + static_cast<int64_t>(block) * kv.block_tokens;
      kernels_->sketch_scores(page.codes, page.scales, kv.block_tokens, chunks, bits, queries, num);
    }
  }
  for (int g = 0; g < group; ++g) {
    float* z = scratch + g * stride;
    const float inverse = 1.0f / kernels_->exp_sum(z, pos + 1, kernels_->max(z, pos + 1));
    for (int b = 0; b < num_blocks; ++b) {
      const int n = std::min(kv.block_tokens, pos + 1 - b * kv.block_tokens);
      scores[b] += inverse * kernels_->sum(z + static_cast<int64_t>(b) * kv.block_tokens, n);
    }
  }
  return scores;
}

bool CpuAttention::NeedsScores(const SelectParams& p, int row) {
  return p.row_sparse[row] != 0 && p.rows.positions[row] / p.kv.block_tokens + 1 > p.top_k;
}

// The choice of one row and KV head; scores [blocks] where NeedsScores, with room for the candidates behind them.
void CpuAttention::PickBlocks(const SelectParams& p, int row, int head, const float* scores, float* room) {
  const int64_t at = static_cast<int64_t>(row) * p.kv.num_kv_heads + head;
  if (p.row_sparse[row] == 0) {
    p.counts[at] = -1;
    return;
  }
  const int num_blocks = p.rows.positions[row] / p.kv.block_tokens + 1;
  int32_t* ids = p.ids + at * p.top_k;
  if (num_blocks <= p.top_k) {  // everything is chosen, whatever the scores
    p.counts[at] = num_blocks;
    for (int b = 0; b < num_blocks; ++b) ids[b] = b;
    return;
  }
  const int own = num_blocks - 1;
  int n = 0;
  // Forced blocks: the newest first, then the initial ones.
  for (int b = own; b >= std::max(0, own - p.local_blocks) && n < p.top_k; --b) ids[n++] = b;
  for (int b = 0; b < std::min(p.init_blocks, own - p.local_blocks) && n < p.top_k; ++b) ids[n++] = b;
  if (n < p.top_k) {
    auto* free = reinterpret_cast<Candidate*>(room);
    int num_free = 0;
    for (int b = p.init_blocks; b < own - p.local_blocks; ++b) free[num_free++] = {scores[b], b};
    const int want = std::min(p.top_k - n, num_free);
    std::nth_element(free, free + want, free + num_free, Before);
    for (int i = 0; i < want; ++i) ids[n++] = free[i].block;
  }
  std::sort(ids, ids + n);
  p.counts[at] = n;
}

void CpuAttention::SelectTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  if (p.summary.kind == SummaryKind::kCompressed) return CompressedTile(p, tile, head, scratch);
  const int group = p.num_heads / p.kv.num_kv_heads;
  const int end = tile.first_row + tile.num_rows;
  const bool pooled = p.summary.kind == SummaryKind::kPooledKeys;
  bool any = false;
  for (int t = tile.first_row; t < end; ++t) any = any || NeedsScores(p, t);
  if (pooled && any) PooledProducts(p, tile, head, scratch);
  float* scores = BlockScratch(group, p.kv.block_tokens, scratch);
  for (int t = tile.first_row; t < end; ++t) {
    if (NeedsScores(p, t)) {
      if (pooled) {
        PooledScores(p, t, scratch + static_cast<int64_t>(t - tile.first_row) * group * PooledStride(p), scores);
      } else {
        SketchScores(p, t, head, scratch);
      }
    }
    PickBlocks(p, t, head, scores, scores + limits_.max_blocks);
  }
}

void CpuAttention::Select(const SelectParams& p) {
  const int heads = p.kv.num_kv_heads;
  const int group = p.num_heads / heads;
  int rows_per_tile = 1;
  if (p.summary.kind != SummaryKind::kSketch) {
    // As many rows as their scores fit in the room of one row's token scores.
    const int64_t fit = static_cast<int64_t>(limits_.max_blocks) * p.kv.block_tokens / PooledStride(p);
    rows_per_tile = static_cast<int>(std::clamp<int64_t>(fit, 1, std::max(1, kTileQueries / group)));
  }
  auto* tiles = tiles_.as<Tile>();
  const int64_t tasks = static_cast<int64_t>(NumTiles(p.rows, rows_per_tile, tiles)) * heads;
  int64_t tokens = 0;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    tokens += p.summary.kind == SummaryKind::kCompressed || NeedsScores(p, t) ? p.rows.positions[t] + 1 : 0;
  }
  const auto run = [&](int64_t task, int thread) {
    SelectTile(p, tiles[task / heads], static_cast<int>(task % heads), Scratch(thread));
  };
  if (tokens * p.num_heads < 8192) {
    for (int64_t t = 0; t < tasks; ++t) run(t, 0);
  } else {
    pool_->ParallelFor(tasks, run);
  }
}

}  // namespace farsight
