// Cache pages and attention. A tile of neighbouring rows (times the heads of a group) walks the union of its rows'
// block lists in ascending order; each page is read once for the tile, and only the rows that own it compute. Per row
// the arithmetic is the same sequence whatever the tile: scores, block softmax, output, and a merge every
// kAttendSplitTokens positions. So tiles, chunks, batches and threads cannot change a result.
#include "ops/cpu/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"

namespace farsight {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kNone = -std::numeric_limits<float>::infinity();
// A score far below any other: its weight vanishes in the sum of a row.
constexpr float kMasked = -1e30f;
// Rows times query heads below which a tile is split over the sequence, so that few rows still use all threads.
constexpr int kSplitQueries = 128;

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

const AttentionKernels& AttentionKernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512 || isa == Isa::kAmx) return Avx512AttentionKernels();
  if (isa == Isa::kAvx2) return Avx2AttentionKernels();
#endif
  FS_CHECK(isa != Isa::kBest, "the instruction set is concrete");
  return ScalarAttentionKernels();
}

// One thread's state for the query vectors of a tile; query i is row i / group, head i % group of the KV head.
struct CpuAttention::TileWork {
  float *q, *s, *o, *total;    // [queries][D], [queries][B], [queries][Dp], [queries][Dp]
  float *m, *l, *max_, *sum_;  // [queries]: of the split at hand, and of all splits before it
  float* keep;                 // [queries]: of the outputs before a block, what goes on
  float* packed;               // [B][max(D, Dp)] keys or values of a block in f32
  const float** a;             // [queries] argument lists of a product
  float** c;
  int32_t* next;  // [rows] position in each row's list
  int32_t* want;  // [rows] the block there
  int* owner;     // [queries] those that compute a block
  int* visible;   // [queries] tokens of the block that each sees
  int* hidden;    // [queries] of these, the first that its window no longer reaches

  static int64_t Floats(int64_t queries, int64_t dim, int64_t padded, int64_t block) {
    return queries * (dim + block + 2 * padded + 5 + 2 * 2 + 5) + block * padded + 64;
  }
  TileWork(float* at, int64_t queries, int64_t dim, int64_t padded, int64_t block) {
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    a = reinterpret_cast<const float**>(take(2 * queries));
    c = reinterpret_cast<float**>(take(2 * queries));
    s = take(queries * block);
    o = take(queries * padded);
    total = take(queries * padded);
    packed = take(block * padded);
    q = take(queries * dim);
    m = take(queries);
    l = take(queries);
    keep = take(queries);
    max_ = take(queries);
    sum_ = take(queries);
    next = reinterpret_cast<int32_t*>(take(queries));
    want = reinterpret_cast<int32_t*>(take(queries));
    owner = reinterpret_cast<int*>(take(queries));
    visible = reinterpret_cast<int*>(take(queries));
    hidden = reinterpret_cast<int*>(take(queries));
  }
  void Reset(int queries, int padded) {
    std::fill(m, m + queries, kNone);
    std::fill(l, l + queries, 0.0f);
    std::fill(max_, max_ + queries, kNone);
    std::fill(sum_, sum_ + queries, 0.0f);
    std::fill(o, o + static_cast<int64_t>(queries) * padded, 0.0f);
    std::fill(total, total + static_cast<int64_t>(queries) * padded, 0.0f);
  }
};

CpuAttention::CpuAttention(ThreadPool* pool, Isa isa) : pool_(pool), kernels_(&AttentionKernelsFor(isa)) {}

void CpuAttention::SetPool(ThreadPool* pool) {
  pool_ = pool;
  if (limits_.max_rows > 0 && pool->num_threads() > scratch_threads_) {
    const Status s = Reserve(limits_);
    FS_CHECK(s.ok(), "there is memory for the scratch of more threads");
  }
}

Status CpuAttention::Reserve(const OpLimits& wanted) {
  OpLimits& l = limits_;
  l.max_rows = std::max(l.max_rows, wanted.max_rows);
  l.max_seqs = std::max(l.max_seqs, wanted.max_seqs);
  l.max_blocks = std::max(l.max_blocks, wanted.max_blocks);
  l.num_heads = std::max(l.num_heads, wanted.num_heads);
  l.num_kv_heads = std::max(l.num_kv_heads, wanted.num_kv_heads);
  l.head_dim = std::max(l.head_dim, wanted.head_dim);
  l.block_tokens = std::max(l.block_tokens, wanted.block_tokens);
  const int64_t padded = PaddedDim(l.head_dim);
  const int64_t queries = std::max(kTileQueries, l.num_heads);
  const int64_t tile = TileWork::Floats(queries, l.head_dim, padded, l.block_tokens);
  // Selection: for each query of a group the scores of every token, then blocks and an order, then the queries in 8
  // bits or those of a tile with the pooled keys that meet them.
  const int64_t tokens = WholePools(l.max_blocks) * l.block_tokens;
  const int64_t select = tokens * l.num_heads + 4 * static_cast<int64_t>(l.max_blocks) +
                         std::max(l.num_heads * (padded + 64), PooledFloats(l)) + 64;
  scratch_floats_ = static_cast<size_t>(RoundUp(std::max(tile, select), 16));
  scratch_threads_ = pool_->num_threads();
  FS_ASSIGN_OR_RETURN(scratch_, AllocateHost(scratch_floats_ * sizeof(float) * static_cast<size_t>(scratch_threads_)));
  FS_ASSIGN_OR_RETURN(tiles_, AllocateHost(static_cast<size_t>(l.max_rows) * sizeof(Tile)));
  const int64_t splits = tokens / kAttendSplitTokens + 2;
  const int64_t partial_queries = std::max(kSplitQueries, l.num_heads);
  FS_ASSIGN_OR_RETURN(partials_,
                      AllocateHost(static_cast<size_t>(splits * partial_queries * (padded + 2)) * sizeof(float)));
  return OkStatus();
}

size_t CpuAttention::KvPageBytes(const KvView& kv) const {
  return static_cast<size_t>(kv.block_tokens) * static_cast<size_t>(kv.head_dim + PaddedDim(kv.head_dim)) *
         static_cast<size_t>(ElemBytes(kv.dtype));
}

void CpuAttention::AppendKv(const AppendKvParams& p) {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  const int64_t elem = ElemBytes(kv.dtype);
  const int type = TypeIndex(kv.dtype);
  const int64_t column = elem * kv.block_tokens;
  const auto page_of = [&](int t, int h) {
    return kv.Page(PhysicalBlock(p.rows, p.rows.row_seq[t], p.rows.positions[t] / kv.block_tokens), h);
  };
  const auto line_of = [&](int t) { return elem * (p.rows.positions[t] % kv.block_tokens) / 64 * 64; };
  // A key is a value in each of D lines that the last step's reading has evicted: they are asked for all at once. Rows
  // that follow each other have them in common.
  const auto ask = [&](int h, int t, bool first) {
    std::byte* page = page_of(t, h);
    if (!first && t > 0 && page_of(t - 1, h) == page && line_of(t - 1) == line_of(t)) return;
    for (int i = 0; i < d; ++i) __builtin_prefetch(page + i * column + line_of(t), 1, 3);
  };
  const auto append = [&](int h, int t) {
    const int slot = p.rows.positions[t] % kv.block_tokens;
    std::byte* page = page_of(t, h);
    const float* k = p.k + t * p.stride + static_cast<int64_t>(h) * d;
    const float* v = p.v + t * p.stride + static_cast<int64_t>(h) * d;
    std::byte key[kMaxHeadDim * 4];
    kernels_->narrow[type](k, d, key);
    if (elem == 2) {
      for (int i = 0; i < d; ++i) std::memcpy(page + i * column + 2 * slot, key + 2 * i, 2);
    } else {
      for (int i = 0; i < d; ++i) std::memcpy(page + i * column + 4 * slot, key + 4 * i, 4);
    }
    std::byte* values = page + d * column + elem * slot * padded;
    kernels_->narrow[type](v, d, values);
    if (d < padded) std::memset(values + elem * d, 0, static_cast<size_t>(elem * (padded - d)));
  };
  // Head after head, so that threads seldom write to one line.
  const int64_t rows = p.rows.num_rows;
  const int64_t tasks = rows * kv.num_kv_heads;
  const auto append_all = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ask(static_cast<int>(i / rows), static_cast<int>(i % rows), i == begin);
    for (int64_t i = begin; i < end; ++i) append(static_cast<int>(i / rows), static_cast<int>(i % rows));
  };
  if (tasks < 8) return append_all(0, tasks);  // worth sharing out early
  const int64_t groups = pool_->num_threads() * (rows > kv.block_tokens ? 4 : 1);
  pool_->ParallelFor(groups, [&](int64_t g, int) { append_all(tasks * g / groups, tasks * (g + 1) / groups); });
}

void CpuAttention::CopyBlock(const CopyBlockParams& p) {
  for (int h = 0; h < p.kv.num_kv_heads; ++h) {
    std::memcpy(p.kv.Page(p.to, h), p.kv.Page(p.from, h), p.kv.page_bytes);
    if (p.summary.kind == SummaryKind::kNone) continue;
    std::memcpy(p.summary.Page(p.to, h), p.summary.Page(p.from, h), p.summary.page_bytes);
  }
}

int CpuAttention::NumTiles(const RowBatch& rows, int rows_per_tile, bool across, Tile* tiles) {
  const int most = rows.group_rows > 0 ? std::min(rows_per_tile, rows.group_rows) : rows_per_tile;
  const auto table = [&](int row) { return rows.block_tables + int64_t{rows.row_seq[row]} * rows.max_blocks; };
  int n = 0;
  for (int t = 0; t < rows.num_rows;) {
    int end = t + 1;
    while (end < rows.num_rows && end - t < most &&
           (rows.row_seq[end] == rows.row_seq[t] || (across && *table(end) == *table(t)))) {
      ++end;
    }
    tiles[n++] = {t, end - t};
    t = end;
  }
  return n;
}

// Adds blocks [first_block, end_block) of one tile and KV head to work.total, max_ and sum_.
void CpuAttention::AttendBlocks(const AttendParams& p, const Tile& tile, int head, int first_block, int end_block,
                                TileWork& work) const {
  const KvView& kv = p.kv;
  const int group = p.num_heads / kv.num_kv_heads;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  const int block_tokens = kv.block_tokens;
  const int queries = tile.num_rows * group;
  const int64_t elem = ElemBytes(kv.dtype);
  const int type = TypeIndex(kv.dtype);
  const auto multiply = [&](int m, const std::byte* b, int64_t ldb, int n, int k, const float* keep,
                            const std::byte* next) {
    const std::byte* soon = next == nullptr ? b : next;
    kernels_->product_stored[type]({work.a, work.c, m, b, ldb, n, k, keep, &soon, k, work.packed});
  };
  constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();

  const float scale = p.scale * kLog2e;  // the softmax is one of powers of two
  for (int i = 0; i < queries; ++i) {
    const int row = tile.first_row + i / group;
    const float* q = p.q + row * p.q_stride + static_cast<int64_t>(head * group + i % group) * d;
    for (int j = 0; j < d; ++j) work.q[static_cast<int64_t>(i) * d + j] = q[j] * scale;
  }
  // The next block of a row's list at or after its place in it; a row without a list has every visible block.
  const auto dense = [&](int row) {
    return p.ids == nullptr || p.counts[static_cast<int64_t>(row) * kv.num_kv_heads + head] < 0;
  };
  const auto block_of = [&](int r) -> int32_t {
    const int row = tile.first_row + r;
    const int own = p.rows.positions[row] / block_tokens;
    int32_t block;
    if (dense(row)) {
      block = work.next[r];
    } else {
      const int64_t at = static_cast<int64_t>(row) * kv.num_kv_heads + head;
      if (work.next[r] >= p.counts[at]) return kEnd;
      block = p.ids[at * p.max_selected + work.next[r]];
    }
    return block > own || block >= end_block ? kEnd : block;
  };
  // The oldest token a row sees.
  const auto oldest = [&](int row) { return p.window > 0 ? std::max(0, p.rows.positions[row] - p.window + 1) : 0; };
  for (int r = 0; r < tile.num_rows; ++r) {
    const int row = tile.first_row + r;
    work.next[r] = dense(row) ? std::max(first_block, oldest(row) / block_tokens) : 0;
    while (block_of(r) < first_block) ++work.next[r];
    work.want[r] = block_of(r);
  }

  int split = first_block * block_tokens / kAttendSplitTokens;
  const auto close_split = [&] {
    kernels_->merge_parts({work.m, work.l, work.o}, {work.max_, work.sum_, work.total}, queries, padded);
  };
  const auto page_of = [&](int r, int32_t block) {
    return kv.Page(PhysicalBlock(p.rows, p.rows.row_seq[tile.first_row + r], block), head);
  };
  // The lowest block that a row still wants, and the first row that wants it.
  struct Next {
    int32_t block;
    int row;
  };
  const auto next_block = [&] {
    Next next{kEnd, 0};
    for (int r = 0; r < tile.num_rows; ++r) next.block = std::min(next.block, work.want[r]);
    while (work.want[next.row] != next.block) ++next.row;
    return next;
  };
  for (Next next = next_block(), following; next.block != kEnd; next = following) {
    const int32_t block = next.block;
    if (block * block_tokens / kAttendSplitTokens != split) {
      close_split();
      split = block * block_tokens / kAttendSplitTokens;
    }
    int owners = 0;
    int longest = 0;
    const std::byte* page = page_of(next.row, block);
    const int32_t seq = p.rows.row_seq[tile.first_row + next.row];
    for (int r = next.row; r < tile.num_rows; ++r) {
      if (work.want[r] != block) continue;
      // Rows of other tables may have another page at this place: they are served by the next turn.
      if (p.rows.row_seq[tile.first_row + r] != seq && page_of(r, block) != page) continue;
      ++work.next[r];
      work.want[r] = block_of(r);
      const int visible = std::min(block_tokens, p.rows.positions[tile.first_row + r] - block * block_tokens + 1);
      longest = std::max(longest, visible);
      for (int g = 0; g < group; ++g, ++owners) {
        work.owner[owners] = r * group + g;
        work.visible[owners] = visible;
        work.hidden[owners] = std::max(0, oldest(tile.first_row + r) - block * block_tokens);
      }
    }
    following = next_block();
    const std::byte* next_page = following.block == kEnd ? nullptr : page_of(following.row, following.block);
    const int64_t key_bytes = elem * d * block_tokens;
    const int columns = static_cast<int>(RoundUp(longest, 16));
    for (int i = 0; i < owners; ++i) {
      work.a[i] = work.q + static_cast<int64_t>(work.owner[i]) * d;
      work.c[i] = work.s + static_cast<int64_t>(i) * block_tokens;
    }
    multiply(owners, page, block_tokens, columns, d, nullptr, next_page);
    if (p.summary.HasImportance()) {
      const int32_t physical = PhysicalBlock(p.rows, p.rows.row_seq[tile.first_row + next.row], block);
      const float* importance = ImportancePage(kv, p.summary, physical, head);
      for (int i = 0; i < owners; ++i) {
        for (int t = 0; t < work.visible[i]; ++t) work.c[i][t] += kLog2e * importance[t];
      }
    }
    // Only a window hides the beginning of a block.
    const int masked = p.window > 0 ? owners : 0;
    for (int i = 0; i < masked; ++i) std::fill(work.c[i], work.c[i] + work.hidden[i], kMasked);
    kernels_->softmax_rows({work.c, work.visible, work.owner, owners, columns, work.m, work.l, work.keep});
    for (int i = 0; i < masked; ++i) std::fill(work.c[i], work.c[i] + work.hidden[i], 0.0f);
    for (int i = 0; i < owners; ++i) {
      work.a[i] = work.c[i];
      work.c[i] = work.o + static_cast<int64_t>(work.owner[i]) * padded;
    }
    multiply(owners, page + key_bytes, padded, padded, longest, work.keep,
             next_page == nullptr ? nullptr : next_page + key_bytes);
  }
  close_split();
}

size_t CpuAttention::AttendCarryBytes(int num_heads, int head_dim) {
  return static_cast<size_t>(num_heads) * static_cast<size_t>(PaddedDim(head_dim) + 2) * sizeof(float);
}

void CpuAttention::Attend(const AttendParams& p) {
  const KvView& kv = p.kv;
  const int group = p.num_heads / kv.num_kv_heads;
  const int d = kv.head_dim;
  const int padded = PaddedDim(d);
  auto* tiles = tiles_.as<Tile>();
  // Large tiles share the conversion of a page, as long as there are enough of them for all threads.
  const int64_t full = static_cast<int64_t>(p.rows.num_rows) * p.num_heads / kTileQueries;
  const int tile_queries = full < 4 * pool_->num_threads() ? kTileQueries / 2 : kTileQueries;
  const int num_tiles = NumTiles(p.rows, std::max(1, tile_queries / group), true, tiles);
  const int64_t queries_max = std::max(kTileQueries, group);
  const auto work_of = [&](int thread) { return TileWork(Scratch(thread), queries_max, d, padded, kv.block_tokens); };
  // Query i of a tile whose first row is `row`: what the parts before found, and what is left for the next or is the
  // result.
  const int64_t record = padded + 2;  // max, sum, out
  const auto carry = [&](int row, int query_head) {
    return reinterpret_cast<float*>(p.carry) + (static_cast<int64_t>(row) * p.num_heads + query_head) * record;
  };
  const auto begin = [&](int row, int head, int queries, TileWork& work) {
    work.Reset(queries, padded);
    if (p.first_block == 0) return;
    for (int i = 0; i < queries; ++i) {
      const float* from = carry(row + i / group, head * group + i % group);
      work.max_[i] = from[0];
      work.sum_[i] = from[1];
      std::copy_n(from + 2, padded, work.total + static_cast<int64_t>(i) * padded);
    }
  };
  const auto finish = [&](int row, int head, int g, const float* total, float max, float sum) {
    if (p.end_block < p.rows.max_blocks) {
      float* to = carry(row, head * group + g);
      to[0] = max;
      to[1] = sum;
      std::copy_n(total, padded, to + 2);
      return;
    }
    float* out = p.out + row * p.out_stride + static_cast<int64_t>(head * group + g) * d;
    const float inverse = sum > 0 || std::isnan(sum) ? 1.0f / sum : 0.0f;
    for (int j = 0; j < d; ++j) out[j] = total[j] * inverse;
  };
  int max_position = 0;
  for (int t = 0; t < p.rows.num_rows; ++t) max_position = std::max(max_position, p.rows.positions[t]);
  const int blocks_per_split = kAttendSplitTokens / kv.block_tokens;
  const int end_block = std::min(p.end_block, p.rows.max_blocks);
  const int first_split = p.first_block / blocks_per_split;
  const int splits =
      std::min(max_position / kAttendSplitTokens + 1, (end_block + blocks_per_split - 1) / blocks_per_split) -
      first_split;
  const int64_t queries = static_cast<int64_t>(p.rows.num_rows) * p.num_heads;
  const int64_t tasks = static_cast<int64_t>(num_tiles) * kv.num_kv_heads;

  // Many tiles, one thread or a short sequence: a task is a tile and walks all of its splits. So it does with lists
  // that the threads can share evenly: a list is short, and merging its splits would take longer than they differ.
  const bool even = p.ids != nullptr && tasks % pool_->num_threads() == 0;
  const bool split = p.window == 0 && queries <= std::max(kSplitQueries, limits_.num_heads) && splits > 1 && !even &&
                     pool_->num_threads() > 1 && tasks < 4 * pool_->num_threads();
  if (!split) {
    const auto run = [&](int64_t task, int thread) {
      // The last tiles see the most blocks: start with them, so that the threads end together.
      const Tile& tile = tiles[num_tiles - 1 - static_cast<int>(task / kv.num_kv_heads)];
      const int head = static_cast<int>(task % kv.num_kv_heads);
      TileWork work = work_of(thread);
      begin(tile.first_row, head, tile.num_rows * group, work);
      AttendBlocks(p, tile, head, p.first_block, end_block, work);
      for (int i = 0; i < tile.num_rows * group; ++i) {
        finish(tile.first_row + i / group, head, i % group, work.total + static_cast<int64_t>(i) * padded, work.max_[i],
               work.sum_[i]);
      }
    };
    if (queries * (max_position + 1) < 4096) {
      for (int64_t t = 0; t < tasks; ++t) run(t, 0);
    } else {
      pool_->ParallelFor(tasks, run);
    }
    return;
  }

  // A task is a tile and one split; its (max, sum, out) goes to partials [split][query of the batch].
  auto* partials = partials_.as<float>();
  const auto partial = [&](int s, int row, int head, int g) {
    const int64_t q = static_cast<int64_t>(row) * p.num_heads + head * group + g;
    return partials + (static_cast<int64_t>(s) * queries + q) * record;
  };
  pool_->ParallelFor(tasks * splits, [&](int64_t task, int thread) {
    const int s = static_cast<int>(task / tasks);
    const Tile& tile = tiles[task % tasks / kv.num_kv_heads];
    const int head = static_cast<int>(task % kv.num_kv_heads);
    TileWork work = work_of(thread);
    const int first = (first_split + s) * blocks_per_split;
    work.Reset(tile.num_rows * group, padded);
    AttendBlocks(p, tile, head, first, std::min(first + blocks_per_split, end_block), work);
    for (int i = 0; i < tile.num_rows * group; ++i) {
      float* out = partial(s, tile.first_row + i / group, head, i % group);
      out[0] = work.max_[i];
      out[1] = work.sum_[i];
      std::copy_n(work.total + static_cast<int64_t>(i) * padded, padded, out + 2);
    }
  });
  TileWork work = work_of(0);
  for (int t = 0; t < p.rows.num_rows; ++t) {
    for (int h = 0; h < p.num_heads; ++h) {
      work.Reset(1, padded);
      if (p.first_block > 0) {
        const float* from = carry(t, h);
        work.max_[0] = from[0];
        work.sum_[0] = from[1];
        std::copy_n(from + 2, padded, work.total);
      }
      for (int s = 0; s < splits; ++s) {
        float* part = partial(s, t, h / group, h % group);
        kernels_->merge_parts({part, part + 1, part + 2}, {work.max_, work.sum_, work.total}, 1, padded);
      }
      finish(t, h / group, h % group, work.total, work.max_[0], work.sum_[0]);
    }
  }
}

}  // namespace farsight
