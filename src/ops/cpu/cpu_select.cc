// Key summaries and block selection.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"
#include "ops/cpu/cpu_attention.h"
#include "ops/sketch.h"

namespace farsight {
namespace {

// Few rows are split over the sequence into this many tasks a thread, of so many blocks at least.
constexpr int64_t kSelectTasksPerThread = 4;
constexpr int64_t kMinRangeBlocks = 8;
constexpr float kLn2 = 0.693147181f;
constexpr float kLog2e = 1.44269504f;

// Blocks lie anywhere, so the processor does not guess which run comes next; one alone arrives too late.
constexpr int kBlocksAhead = 4;
void PrefetchRun(const float* run, int n) {
  for (int i = 0; i < n; i += 16) __builtin_prefetch(run + i);
}

// Scores that are no probabilities, and not scaled: one query serves the group, and a softmax would only keep their
// order.
bool ScoresRaw(const SelectParams& p) {
  return p.summary.kind == SummaryKind::kPooledKeys && p.num_heads == p.kv.num_kv_heads;
}
float LeastScore(const SelectParams& p) { return ScoresRaw(p) ? std::numeric_limits<float>::lowest() : 0.0f; }

// The largest mean importance of the windows that touch a block and are seen.
float BlockImportance(const SelectParams& p, int row, int head, int block) {
  const SummaryView& s = p.summary;
  const int per_block = p.kv.block_tokens / s.stride;
  const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
  int end = (p.rows.positions[row] + 1) / s.stride;
  if (p.skip_local) {
    const int local = std::max(0, p.rows.positions[row] / p.kv.block_tokens - p.local_blocks);
    end = std::min(end, local * per_block + skip);
  }
  float best = std::numeric_limits<float>::lowest();
  for (int e = std::max(per_block * block, skip); e < std::min(per_block * (block + 1) + skip, end); ++e) {
    const int32_t physical = PhysicalBlock(p.rows, p.rows.row_seq[row], e / per_block);
    // No number is no order; max keeps the first where the second is none.
    best = std::max(best, ImportancePage(p.kv, s, physical, head)[p.kv.block_tokens + e % per_block]);
  }
  return best;
}

// The tokens of a block are converted a channel at a time and added one by one, in ascending order.
void PoolWindow(const AttentionKernels& kernels, const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int64_t elem = ElemBytes(kv.dtype);
  auto* page = reinterpret_cast<float*>(s.Page(PhysicalBlock(p.rows, seq, pos / kv.block_tokens), head));
  float* out = page + static_cast<int64_t>(pos % kv.block_tokens / s.stride) * kv.head_dim;
  std::fill(out, out + kv.head_dim, 0.0f);
  for (int u = pos + 1 - s.kernel; u <= pos;) {
    const int block = u / kv.block_tokens;
    const int n = std::min((block + 1) * kv.block_tokens, pos + 1) - u;
    const std::byte* keys = kv.Page(PhysicalBlock(p.rows, seq, block), head) + u % kv.block_tokens * elem;
    for (int d = 0; d < kv.head_dim; ++d) {
      float x[kMaxBlockTokens];
      kernels.widen[TypeIndex(kv.dtype)](keys + d * elem * kv.block_tokens, n, x);
      for (int t = 0; t < n; ++t) out[d] += x[t];
    }
    u += n;
  }
  for (int d = 0; d < kv.head_dim; ++d) out[d] /= static_cast<float>(s.kernel);
}

// The key of one token as f32.
void LoadKey(const AttentionKernels& kernels, const KvView& kv, const std::byte* keys, int slot, float* x) {
  if (kv.dtype == DType::kF32) {
    for (int d = 0; d < kv.head_dim; ++d)
      x[d] = LoadKv(kv.dtype, keys, static_cast<int64_t>(d) * kv.block_tokens + slot);
    return;
  }
  uint16_t halves[kMaxHeadDim];
  const auto* from = reinterpret_cast<const uint16_t*>(keys) + slot;
  for (int d = 0; d < kv.head_dim; ++d) halves[d] = from[static_cast<int64_t>(d) * kv.block_tokens];
  kernels.widen[TypeIndex(kv.dtype)](reinterpret_cast<const std::byte*>(halves), kv.head_dim, x);
}

void WriteCodes(const SketchPage& page, int slot, int dim, int bits, const int8_t* codes) {
  const int channels = 8 / bits;
  const int bytes = SketchTokenBytes(dim, bits);
  uint8_t* to = page.codes + slot / kSketchGroup * bytes * kSketchGroup + SketchLane(slot);
  for (int j = 0; j < bytes; ++j, codes += channels, to += kSketchGroup) {
    uint32_t byte = 0;
    for (int i = 0; i < channels; ++i) byte |= static_cast<uint32_t>(codes[i]) << (i * bits);
    *to = static_cast<uint8_t>(byte);
  }
}

// What a channel adds with code c, in steps of a table: |q| * c, counted from the end where it adds least.
float CodeValue(float step, int c, int top) {
  return step < 0 ? -step * static_cast<float>(top - c) : step * static_cast<float>(c);
}

// A query for codes of four bits, with room for dim factors.
SketchQuery MakeSketchFactors(const float* q, int dim, int8_t* channels) {
  constexpr float kTop = 127;
  constexpr float kMiddle = 7.5f;  // the code whose level is zero
  float range = 0;
  for (int d = 0; d < dim; ++d) range = std::max(range, std::fabs(q[d]));
  const float inverse = range > 1e-30f && range < 1e30f ? kTop / range : 0.0f;
  int total = 0;
  for (int d = 0; d < dim; ++d) {
    const float x = q[d] * inverse;
    const int factor = std::fabs(x) <= kTop ? static_cast<int>(x < 0 ? x - 0.5f : x + 0.5f) : 0;  // NaN gives 0
    channels[d / 8 * 8 + d % 2 * 4 + d % 8 / 2] = static_cast<int8_t>(factor);
    total += factor;
  }
  SketchQuery out;
  out.channels = channels;
  out.unit = range / kTop;
  out.bias = kMiddle * out.unit * static_cast<float>(total);
  return out;
}

// The tables of a query [half bytes][16] for one or two bits. An entry is the sum of one value of its lower and one of
// its upper two bits, each rounded: at most kTop steps for all channels of a half byte, plus two halves.
SketchQuery MakeSketchTables(const float* q, int dim, int bits, uint8_t* tables) {
  constexpr float kTop = 126;
  const int channels = 4 / bits;
  const int top = (1 << bits) - 1;
  float range = 0;
  float total = 0;
  for (int d = 0; d < dim; d += channels) {
    float sum = 0;
    for (int i = 0; i < channels; ++i) sum += std::fabs(q[d + i]);
    range = std::max(range, sum);
    total += sum;
  }
  range *= static_cast<float>(top);
  const float inverse = range > 1e-30f && range < 1e30f ? kTop / range : 0.0f;
  for (int d = 0; d < dim; d += channels, tables += 16) {
    uint8_t half[2][4];  // of each value of the lower, then the upper two bits
    for (int h = 0; h < 2; ++h) {
      for (int c = 0; c < 4; ++c) {
        float x = 0.5f;
        if (bits == 1) {
          x += CodeValue(q[d + 2 * h] * inverse, c & 1, top) + CodeValue(q[d + 2 * h + 1] * inverse, c >> 1, top);
        } else {
          x += CodeValue(q[d + h] * inverse, c, top);
        }
        half[h][c] = static_cast<uint8_t>(x > 0 ? static_cast<int>(x) : 0);  // NaN: no undefined conversion
      }
    }
    uint32_t lower;
    std::memcpy(&lower, half[0], 4);
    for (int c = 0; c < 4; ++c) {
      const uint32_t four = lower + 0x01010101u * half[1][c];
      std::memcpy(tables + 4 * c, &four, 4);
    }
  }
  SketchQuery out;
  out.tables = tables - dim / channels * 16;
  out.unit = range / kTop;
  out.bias = 0.5f * static_cast<float>(top) * total;
  return out;
}

void SketchPosition(const AttentionKernels& kernels, const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  if (pos < kv.block_tokens - 1) return;  // the centre is not known before block 0 is full
  const int32_t first = PhysicalBlock(p.rows, seq, 0);
  float* centre = SketchPageAt(kv, p.summary, first, head).centre;
  const int block = pos / kv.block_tokens;
  const bool fixes_centre = pos == kv.block_tokens - 1;
  const std::byte* keys = kv.Page(PhysicalBlock(p.rows, seq, block), head);
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
    float x[kMaxHeadDim];
    int8_t codes[kMaxHeadDim];
    LoadKey(kernels, kv, keys, slot, x);
    for (int d = 0; d < kv.head_dim; ++d) x[d] -= centre[d];
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
      return (static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim) +
              (s.HasImportance() ? static_cast<size_t>(kv.block_tokens + kv.block_tokens / s.stride) : 0)) *
             sizeof(float);
    case SummaryKind::kCompressed:
      return static_cast<size_t>(2 * (kv.block_tokens / s.stride) * PaddedDim(kv.head_dim) * ElemBytes(kv.dtype));
    case SummaryKind::kSketch:
      return static_cast<size_t>(kv.head_dim + kv.block_tokens) * sizeof(float) +
             static_cast<size_t>((kv.block_tokens + kSketchGroup - 1) / kSketchGroup * kSketchGroup) *
                 static_cast<size_t>(SketchTokenBytes(kv.head_dim, s.bits));
  }
  return 0;
}

// The importance of the token at `pos`, and the mean of the window that ends with it, if one does.
void CpuAttention::Weigh(const SummariseParams& p, int seq, int head, int pos) {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const auto importance = [&](int position) {
    return ImportancePage(kv, s, PhysicalBlock(p.rows, seq, position / kv.block_tokens), head);
  };
  const int slot = pos % kv.block_tokens;
  const int64_t at =
      static_cast<int64_t>(kv.head_dim) * kv.block_tokens + static_cast<int64_t>(slot) * PaddedDim(kv.head_dim);
  float x = s.importance_bias == nullptr ? 0 : s.importance_bias[head];
  for (int h = 0; h < kv.num_kv_heads; ++h) {
    const std::byte* page = kv.Page(PhysicalBlock(p.rows, seq, pos / kv.block_tokens), h);
    const float* w = s.importance_weight + (static_cast<int64_t>(head) * kv.num_kv_heads + h) * kv.head_dim;
    for (int d = 0; d < kv.head_dim; ++d) x += w[d] * LoadKv(kv.dtype, page, at + d);
  }
  const float softplus = std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
  importance(pos)[slot] = s.importance_scale[head] * softplus;
  if ((pos + 1) % s.stride != 0 || pos + 1 < s.kernel) return;
  float sum = 0;
  for (int u = pos + 1 - s.kernel; u <= pos; ++u) sum += importance(u)[u % kv.block_tokens];
  importance(pos)[kv.block_tokens + slot / s.stride] = sum / static_cast<float>(s.kernel);
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
        SketchPosition(*kernels_, p, seq, static_cast<int>(head), pos);
        continue;
      }
      if (p.summary.HasImportance()) Weigh(p, seq, static_cast<int>(head), pos);
      if ((pos + 1) % p.summary.stride == 0 && pos + 1 >= p.summary.kernel) {
        if (p.summary.kind == SummaryKind::kCompressed || p.summary.unrotate) {
          CompressWindow(p, seq, static_cast<int>(head), pos);
        } else {
          PoolWindow(*kernels_, p, seq, static_cast<int>(head), pos);
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
  return WholePools(limits_.max_blocks) * (p.kv.block_tokens / p.summary.stride);
}

// Behind the token or window scores: [blocks] scores, then 3 * [blocks] for the choice, then the queries.
float* CpuAttention::BlockScratch(int block_tokens, float* scratch) const {
  return scratch + limits_.num_heads * WholePools(limits_.max_blocks) * block_tokens;
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
  float* at = BlockScratch(kv.block_tokens, scratch) + 4 * static_cast<int64_t>(limits_.max_blocks);
  auto** a = reinterpret_cast<const float**>(at);
  auto** c = reinterpret_cast<float**>(at + 2 * static_cast<int64_t>(queries));
  float* q = at + 4 * static_cast<int64_t>(queries);
  float* panels = q + static_cast<int64_t>(queries) * d;
  for (int i = 0; i < queries; ++i) {
    const float* from =
        p.q + (tile.first_row + i / group) * p.q_stride + static_cast<int64_t>(head * group + i % group) * d;
    const float scale = ScoresRaw(p) ? 1.0f : p.scale;
    for (int j = 0; j < d; ++j) q[static_cast<int64_t>(i) * d + j] = from[j] * scale;
    a[i] = q + static_cast<int64_t>(i) * d;
  }
  const auto page_of = [&](int block) {
    return reinterpret_cast<const float*>(p.summary.Page(PhysicalBlock(p.rows, seq, block), head));
  };
  for (int first = 0; first < num_blocks; first += kPooledBlocks) {
    const int blocks = std::min(kPooledBlocks, num_blocks - first);
    const int entries = blocks * per_block;
    const int columns = (entries + 15) / 16 * 16;
    const float* entry[16];
    for (int e = 0; e < columns; ++e) {
      const int b = first + e / per_block;
      if (e % per_block == 0 && b + kBlocksAhead < num_blocks) PrefetchRun(page_of(b + kBlocksAhead), per_block * d);
      // Columns that there are no entries for are never used.
      entry[e % 16] = e < entries ? page_of(b) + static_cast<int64_t>(e % per_block) * d : entry[0];
      if (e % 16 == 15) kernels_->turn(entry, 0, d, panels + static_cast<int64_t>(e / 16) * 16 * d);
    }
    for (int i = 0; i < queries; ++i) c[i] = scratch + i * stride + static_cast<int64_t>(first) * per_block;
    kernels_->product(a, c, queries, {panels, 16, 16 * int64_t{d}}, columns, d, false, nullptr);
  }
}

// Floats between the block scores of two rows of PooledTops.
int64_t CpuAttention::TopsStride() const { return WholePools(limits_.max_blocks) + 16; }

// Are blocks chosen by their best windows' scores alone, and by windows that every row sees?
bool CpuAttention::OnlyTops(const SelectParams& p) {
  return ScoresRaw(p) && p.skip_local && p.scores == nullptr && p.local_blocks > 0 &&
         p.summary.kernel - p.summary.stride <= p.kv.block_tokens;
}

// Scores of blocks from those of their windows at once, while these are near: tops [rows][TopsStride] behind a number
// that is not used, right for the blocks that are not local to their row. A tile has many rows, for each group of
// blocks is turned into panels once: panel e has entry e of each of the 16 blocks, so that a block's best is that of a
// lane.
void CpuAttention::PooledTops(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  const int per_block = kv.block_tokens / p.summary.stride;
  const int skip = p.summary.kernel / p.summary.stride - 1;
  const int seq = p.rows.row_seq[tile.first_row];
  const int num_blocks = ScoredBlocks(p, tile.first_row + tile.num_rows - 1) + 1;  // with that of their last windows
  const int columns = 16 * per_block;
  const int64_t panel = 16 * int64_t{d};
  float* at = BlockScratch(kv.block_tokens, scratch) + 4 * static_cast<int64_t>(limits_.max_blocks);
  auto** a = reinterpret_cast<const float**>(at);
  auto** c = reinterpret_cast<float**>(at + 2 * kTileQueries);
  float* panels = at + 4 * kTileQueries;
  float* z = panels + per_block * panel;
  const int part = std::min(kTileQueries, 2 * PaddedDim(d));  // rows whose scores have room, see PooledFloats
  for (int i = 0; i < part; ++i) c[i] = z + static_cast<int64_t>(i) * columns;
  const auto page_of = [&](int block) {
    return reinterpret_cast<const float*>(p.summary.Page(PhysicalBlock(p.rows, seq, block), head));
  };
  for (int first = 0; first < num_blocks; first += 16) {
    const float* pages[16];
    for (int b = 0; b < 16; ++b) pages[b] = page_of(std::min(first + b, num_blocks - 1));
    for (int e = 0; e < per_block; ++e) {
      for (int b = first + 16; b < std::min(first + 32, num_blocks); ++b) PrefetchRun(page_of(b) + e * d, d);
      kernels_->turn(pages, static_cast<int64_t>(e) * d, d, panels + e * panel);
    }
    for (int row = 0; row < tile.num_rows; row += part) {
      const int rows = std::min(part, tile.num_rows - row);
      for (int i = 0; i < rows; ++i)
        a[i] = p.q + (tile.first_row + row + i) * p.q_stride + static_cast<int64_t>(head) * d;
      kernels_->product(a, c, rows, {panels, 16, panel}, columns, d, false, nullptr);
      for (int e = 0; first == 0 && e < skip; ++e) {  // before the first window
        for (int i = 0; i < rows; ++i) c[i][16 * e] = LeastScore(p);
      }
      kernels_->block_tops(c, rows, per_block, skip, LeastScore(p), Tops(scratch, row) + first, TopsStride());
    }
  }
}

// Block scores of one row from its query scores z [G][PooledStride].
void CpuAttention::PooledScores(const SelectParams& p, int row, int head, float* z, float* scores) const {
  const SummaryView& s = p.summary;
  const int pos = p.rows.positions[row];
  const int group = p.num_heads / p.kv.num_kv_heads;
  const int num_blocks = pos / p.kv.block_tokens + 1;
  const int per_block = p.kv.block_tokens / s.stride;
  const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
  int windows = std::max(0, (pos + 1) / s.stride - skip);
  if (p.skip_local) windows = std::min(windows, ScoredBlocks(p, row) * per_block);
  z += skip;
  if (!ScoresRaw(p) && windows > 0) {
    for (int g = 0; g < group; ++g) {
      float* row_z = z + g * PooledStride(p);
      const float inverse = 1.0f / kernels_->exp_sum(row_z, windows, kernels_->max(row_z, windows));
      for (int w = 0; w < windows; ++w) z[w] = (g == 0 ? 0.0f : z[w]) + row_z[w] * inverse;  // g 0 normalises itself
    }
  }
  kernels_->block_max(z, windows, per_block, skip, num_blocks, LeastScore(p), scores);
  if (!ScoresRaw(p) || p.scores == nullptr || windows == 0) return;
  // Whoever asks for scores asks for probabilities.
  float* shares = p.scores + (static_cast<int64_t>(row) * p.kv.num_kv_heads + head) * p.rows.max_blocks;
  for (int b = 0; b < num_blocks; ++b) shares[b] = scores[b] * p.scale;
  for (int w = 0; w < windows; ++w) z[w] *= p.scale;
  const float top = kernels_->max(z, windows);
  const float inverse = 1.0f / kernels_->exp_sum(z, windows, top);
  kernels_->exp_sum(shares, num_blocks, top);
  for (int b = 0; b < num_blocks; ++b) shares[b] *= inverse;
}

// Softmax parts of blocks [begin, end) by token sketches: parts [G][largest score, sum of exp(score - largest)][blocks]
// of the row's query heads. A block's parts do not depend on the range. The tables go to `room`.
void CpuAttention::SketchParts(const SelectParams& p, int row, int head, int begin, int end, float* parts,
                               float* room) const {
  const KvView& kv = p.kv;
  const int pos = p.rows.positions[row];
  const int seq = p.rows.row_seq[row];
  const int group = p.num_heads / kv.num_kv_heads;
  const int num_blocks = ScoredBlocks(p, row);
  const int bytes = SketchTokenBytes(kv.head_dim, p.summary.bits);
  for (int first = 0; first < group; first += kMaxSketchQueries) {
    const int num = std::min(kMaxSketchQueries, group - first);
    SketchQuery queries[kMaxSketchQueries];
    for (int i = 0; i < num; ++i) {
      const float* q = p.q + row * p.q_stride + static_cast<int64_t>(head * group + first + i) * kv.head_dim;
      auto* at = reinterpret_cast<uint8_t*>(room) + i * bytes * 32;
      queries[i] = p.summary.bits == 4 ? MakeSketchFactors(q, kv.head_dim, reinterpret_cast<int8_t*>(at))
                                       : MakeSketchTables(q, kv.head_dim, p.summary.bits, at);
      queries[i].scale = p.scale * kLog2e;
    }
    float* max = parts + static_cast<int64_t>(first) * 2 * num_blocks;
    for (int b = begin; b < end; ++b) {
      const SketchPage page = SketchPageAt(kv, p.summary, PhysicalBlock(p.rows, seq, b), head);
      const SketchPage next = SketchPageAt(kv, p.summary, PhysicalBlock(p.rows, seq, std::min(b + 2, end - 1)), head);
      Prefetch(reinterpret_cast<const std::byte*>(next.scales), static_cast<size_t>(kv.block_tokens) * sizeof(float));
      const int tokens = std::min(kv.block_tokens, pos + 1 - b * kv.block_tokens);
      kernels_->sketch_block(page.codes, page.scales, tokens, bytes, queries, num, max + b, max + num_blocks + b,
                             2 * num_blocks, next.codes);
    }
  }
}

// Block scores from the parts, which are used up: the probability that falls on a block, summed over the group.
void CpuAttention::SketchScores(float* parts, int group, int num_blocks, float* scores) const {
  std::fill(scores, scores + num_blocks, 0.0f);
  for (int g = 0; g < group; ++g) {
    float* weight = parts + static_cast<int64_t>(g) * 2 * num_blocks;
    const float* sum = weight + num_blocks;
    for (int b = 0; b < num_blocks; ++b) weight[b] *= kLn2;
    kernels_->exp_sum(weight, num_blocks, kernels_->max(weight, num_blocks));
    float total = 0;
    for (int b = 0; b < num_blocks; ++b) total += weight[b] * sum[b];
    const float inverse = 1.0f / total;
    for (int b = 0; b < num_blocks; ++b) scores[b] += weight[b] * sum[b] * inverse;
  }
}

bool CpuAttention::NeedsScores(const SelectParams& p, int row) {
  return p.ids != nullptr && p.row_sparse[row] != 0 && p.rows.positions[row] / p.kv.block_tokens + 1 > p.top_k;
}

// Blocks whose own tokens or windows are scored: without the local ones where they are skipped.
int CpuAttention::ScoredBlocks(const SelectParams& p, int row) {
  const int own = p.rows.positions[row] / p.kv.block_tokens;
  return p.skip_local ? std::max(0, own - p.local_blocks) : own + 1;
}

// The choice of one row and KV head; scores [blocks] where NeedsScores, with room [3, blocks] behind them.
void CpuAttention::PickBlocks(const SelectParams& p, int row, int head, const float* scores, float* room) const {
  if (p.ids == nullptr) return;
  const int64_t at = static_cast<int64_t>(row) * p.kv.num_kv_heads + head;
  if (p.row_sparse[row] == 0) {
    p.counts[at] = -1;
    return;
  }
  const int num_blocks = p.rows.positions[row] / p.kv.block_tokens + 1;
  if (p.scores != nullptr && (num_blocks <= p.top_k || !ScoresRaw(p))) {
    float* to = p.scores + at * p.rows.max_blocks;
    if (num_blocks <= p.top_k) {
      std::fill(to, to + num_blocks, 0.0f);
    } else {
      std::copy(scores, scores + num_blocks, to);
    }
  }
  int32_t* ids = p.ids + at * p.top_k;
  if (num_blocks <= p.top_k) {  // everything is chosen, whatever the scores
    p.counts[at] = num_blocks;
    for (int b = 0; b < num_blocks; ++b) ids[b] = b;
    return;
  }
  // Forced blocks: the newest first, then the initial ones.
  const int local_begin = std::max(0, num_blocks - 1 - p.local_blocks);
  const int local = std::min(num_blocks - local_begin, p.top_k);
  const int init = std::max(0, std::min({p.init_blocks, local_begin, p.top_k - local}));
  int n = 0;
  for (; n < init; ++n) ids[n] = n;
  const int first = p.init_blocks;
  const int num_free = std::max(0, local_begin - first);
  const int free = p.top_k - local - init;
  if (free > 0 && num_free > 0) {
    const float least = LeastScore(p);
    const float* some = scores + first;
    if (p.summary.kind != SummaryKind::kPooledKeys) {  // whose scores are maxima of numbers
      // One that is no number would leave no order.
      for (int b = 0; b < num_free; ++b) room[b] = some[b] > least ? some[b] : least;
      some = room;
    }
    const int by_query = p.query_top_k > 0 ? std::max(0, p.query_top_k - local - init) : free;
    int found = kernels_->take_best(some, num_free, std::min(free, by_query), least, ids + n);
    for (int i = 0; i < found; ++i) ids[n + i] += first;
    if (found < free && p.query_top_k > 0) found += PickImportant(p, row, head, free - found, found, ids + n, room);
    n += found;
  }
  for (int i = 0; i < local; ++i) ids[n++] = num_blocks - local + i;
  p.counts[at] = n;
}

// The `want` most important blocks that may be chosen and are not among the `found` ids, to them, in order.
int CpuAttention::PickImportant(const SelectParams& p, int row, int head, int want, int found, int32_t* ids,
                                float* room) const {
  const int end = std::max(0, p.rows.positions[row] / p.kv.block_tokens - p.local_blocks);
  auto* blocks = reinterpret_cast<int32_t*>(room + limits_.max_blocks);
  int num = 0;
  for (int b = p.init_blocks, next = 0; b < end; ++b) {
    if (next < found && ids[next] == b) {
      ++next;
      continue;
    }
    room[num] = BlockImportance(p, row, head, b);
    blocks[num++] = b;
  }
  const int more = kernels_->take_best(room, num, want, std::numeric_limits<float>::lowest(), ids + found);
  for (int i = found; i < found + more; ++i) ids[i] = blocks[ids[i]];
  std::sort(ids, ids + found + more);
  return more;
}

void CpuAttention::SelectTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const {
  if (p.summary.kind == SummaryKind::kCompressed) return CompressedTile(p, tile, head, scratch);
  const int group = p.num_heads / p.kv.num_kv_heads;
  const int end = tile.first_row + tile.num_rows;
  const bool pooled = p.summary.kind == SummaryKind::kPooledKeys;
  bool any = false;
  for (int t = tile.first_row; t < end; ++t) any = any || NeedsScores(p, t);
  const bool tops = pooled && OnlyTops(p);
  if (tops && any) PooledTops(p, tile, head, scratch);
  if (pooled && !tops && any) PooledProducts(p, tile, head, scratch);
  float* own = BlockScratch(p.kv.block_tokens, scratch);
  for (int t = tile.first_row; t < end; ++t) {
    float* scores = tops ? Tops(scratch, t - tile.first_row) : own;
    if (NeedsScores(p, t) && !tops) {
      if (pooled) {
        PooledScores(p, t, head, scratch + static_cast<int64_t>(t - tile.first_row) * group * PooledStride(p), scores);
      } else {
        const int num_blocks = ScoredBlocks(p, t);
        SketchParts(p, t, head, 0, num_blocks, scratch, scores + 4 * static_cast<int64_t>(limits_.max_blocks));
        SketchScores(scratch, group, num_blocks, scores);
      }
    }
    PickBlocks(p, t, head, scores, own + limits_.max_blocks);
  }
}

// A few rows by token sketches: a task is a range of blocks of one row and KV head, so that all threads have work.
// False: there are rows enough, or no room.
bool CpuAttention::SelectBySplitSketch(const SelectParams& p) {
  const int heads = p.kv.num_kv_heads;
  const int group = p.num_heads / heads;
  const int64_t tasks = static_cast<int64_t>(p.rows.num_rows) * heads;
  int64_t stride = 0;  // floats of parts of a task
  for (int t = 0; t < p.rows.num_rows; ++t) {
    if (NeedsScores(p, t)) {
      stride = std::max<int64_t>(stride, static_cast<int64_t>(ScoredBlocks(p, t)) * 2 * group);
    }
  }
  const int64_t ranges = (pool_->num_threads() * kSelectTasksPerThread + tasks - 1) / std::max<int64_t>(tasks, 1);
  if (p.summary.kind != SummaryKind::kSketch || pool_->num_threads() == 1 || ranges < 2 ||
      stride < int64_t{2} * group * ranges * kMinRangeBlocks ||
      static_cast<size_t>(tasks * stride) * sizeof(float) > partials_.size()) {
    return false;
  }
  auto* parts = partials_.as<float>();
  const auto room = [&](int thread) { return BlockScratch(p.kv.block_tokens, Scratch(thread)); };
  const int64_t tables = 4 * static_cast<int64_t>(limits_.max_blocks);
  pool_->ParallelFor(tasks * ranges, [&](int64_t i, int thread) {
    const auto row = static_cast<int>(i / ranges / heads);
    if (!NeedsScores(p, row)) return;
    const int64_t num_blocks = ScoredBlocks(p, row);
    SketchParts(p, row, static_cast<int>(i / ranges % heads), static_cast<int>(num_blocks * (i % ranges) / ranges),
                static_cast<int>(num_blocks * (i % ranges + 1) / ranges), parts + i / ranges * stride,
                room(thread) + tables);
  });
  pool_->ParallelFor(tasks, [&](int64_t i, int thread) {
    const auto row = static_cast<int>(i / heads);
    float* scores = room(thread);
    if (NeedsScores(p, row)) {
      SketchScores(parts + i * stride, group, ScoredBlocks(p, row), scores);
    }
    PickBlocks(p, row, static_cast<int>(i % heads), scores, scores + limits_.max_blocks);
  });
  return true;
}

void CpuAttention::Select(const SelectParams& p) {
  if (SelectBySplitSketch(p)) return;
  const int heads = p.kv.num_kv_heads;
  const int group = p.num_heads / heads;
  int rows_per_tile = 1;
  if (p.summary.kind == SummaryKind::kPooledKeys && OnlyTops(p)) {
    // All threads get rows, and as many as fit in the room of one row's token scores.
    const int fit = limits_.num_heads * p.kv.block_tokens / 2;
    const int share = (p.rows.num_rows * heads + 2 * pool_->num_threads() - 1) / (2 * pool_->num_threads());
    rows_per_tile = std::min(fit, std::max(share, kTileQueries / 2));
  } else if (p.summary.kind != SummaryKind::kSketch) {
    // As many rows as their scores fit in the room of one row's token scores, of all heads for pooled keys.
    const int64_t wide = p.summary.kind == SummaryKind::kPooledKeys ? limits_.num_heads / group : 1;
    const int64_t fit = p.summary.stride * wide;
    rows_per_tile = static_cast<int>(std::clamp<int64_t>(fit, 1, std::max(1, kTileQueries / group)));
  }
  auto* tiles = tiles_.as<Tile>();
  const int64_t tasks = static_cast<int64_t>(NumTiles(p.rows, rows_per_tile, false, tiles)) * heads;
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
