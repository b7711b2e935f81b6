// Key summaries and block selection of the reference backend.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ref/ref_backend.h"
#include "ops/ref/ref_pages.h"
#include "ops/sketch.h"

namespace farsight {
namespace {

// The summary's entry type: pooled keys are f32, compressed keys and values have the cache's.
DType EntryType(const KvView& kv, const SummaryView& s) {
  return s.kind == SummaryKind::kPooledKeys ? DType::kF32 : kv.dtype;
}

// Channel d of pooled key `entry` of a sequence; entries at `values` = B / stride further on are pooled values.
double LoadEntry(const SelectParams& p, int seq, int head, int entry, int d, int values = 0) {
  const int per_block = p.kv.block_tokens / p.summary.stride;
  const std::byte* page = p.summary.Page(PhysicalBlock(p.rows, seq, entry / per_block), head);
  return LoadElem(EntryType(p.kv, p.summary), page,
                  static_cast<int64_t>(values + entry % per_block) * p.kv.head_dim + d);
}

// Turns x [D] at a position forwards (+1) or back (-1).
void Turn(const SummaryView& s, int position, int direction, std::vector<double>* x) {
  for (int i = 0; i < s.half_dim; ++i) {
    const double c = s.cos[static_cast<int64_t>(position) * s.half_dim + i];
    const double n = static_cast<double>(s.sin[static_cast<int64_t>(position) * s.half_dim + i]) * direction;
    const double norm = direction < 0 ? c * c + n * n : 1;  // a scaled rotation is undone, scale and all
    double& a = (*x)[static_cast<size_t>(i)];
    double& b = (*x)[static_cast<size_t>(i + s.half_dim)];
    const double turned = (a * c - b * n) / norm;
    b = (b * c + a * n) / norm;
    a = turned;
  }
}

// The window that ends with token `pos`, if one does: entry (pos % B) / stride of that token's block.
void PoolWindow(const SummariseParams& p, int seq, int head, int pos) {
  const SummaryView& s = p.summary;
  const KvView& kv = p.kv;
  if ((pos + 1) % s.stride != 0 || pos + 1 < s.kernel) return;
  const KvReader reader{kv, p.rows, seq, head};
  std::byte* page = s.Page(PhysicalBlock(p.rows, seq, pos / kv.block_tokens), head);
  const int entry = (pos % kv.block_tokens) / s.stride;
  const int first = pos + 1 - s.kernel;
  const auto dim = static_cast<size_t>(kv.head_dim);
  const auto pool = [&](bool keys, const float* weights) {
    std::vector<double> out(dim, 0.0), x(dim);
    for (int r = 0; r < s.kernel; ++r) {
      for (size_t d = 0; d < dim; ++d) {
        x[d] = keys ? reader.K(first + r, static_cast<int>(d)) : reader.V(first + r, static_cast<int>(d));
      }
      if (keys && s.unrotate) Turn(s, first + r, -1, &x);
      for (size_t d = 0; d < dim; ++d) {
        const double w =
            weights == nullptr ? 1.0 / s.kernel : weights[(static_cast<size_t>(head * s.kernel + r)) * dim + d];
        out[d] += w * x[d];
      }
    }
    return out;
  };
  const auto store = [&](int at, const std::vector<double>& x) {
    for (size_t d = 0; d < dim; ++d) {
      StoreElem(EntryType(kv, s), page, at * kv.head_dim + static_cast<int>(d), static_cast<float>(x[d]));
    }
  };
  std::vector<double> key = pool(true, s.key_weights);
  if (s.rotate_start) Turn(s, first, 1, &key);
  store(entry, key);
  if (s.kind == SummaryKind::kCompressed) store(kv.block_tokens / s.stride + entry, pool(false, s.value_weights));
}

// The importance of the token at `pos`, and the mean of the window that ends with it, if one does.
void Weigh(const SummariseParams& p, int seq, int head, int pos) {
  const SummaryView& s = p.summary;
  const KvView& kv = p.kv;
  const auto page = [&](int position) {
    return ImportancePage(kv, s, PhysicalBlock(p.rows, seq, position / kv.block_tokens), head);
  };
  double x = s.importance_bias == nullptr ? 0 : s.importance_bias[head];
  for (int h = 0; h < kv.num_kv_heads; ++h) {
    const KvReader reader{kv, p.rows, seq, h};
    for (int d = 0; d < kv.head_dim; ++d) {
      const int64_t at = (static_cast<int64_t>(head) * kv.num_kv_heads + h) * kv.head_dim + d;
      x += static_cast<double>(s.importance_weight[at]) * reader.V(pos, d);
    }
  }
  const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  page(pos)[pos % kv.block_tokens] = static_cast<float>(s.importance_scale[head] * softplus);
  if ((pos + 1) % s.stride != 0 || pos + 1 < s.kernel) return;
  double sum = 0;
  for (int u = pos + 1 - s.kernel; u <= pos; ++u) sum += page(u)[u % kv.block_tokens];
  page(pos)[kv.block_tokens + pos % kv.block_tokens / s.stride] = static_cast<float>(sum / s.kernel);
}

void Sketch(const SummariseParams& p, int seq, int h, int pos) {
  const SummaryView& s = p.summary;
  const KvView& kv = p.kv;
  const KvReader reader{kv, p.rows, seq, h};
  std::byte* page = s.Page(PhysicalBlock(p.rows, seq, pos / kv.block_tokens), h);
  // Sketch: nothing until block 0 is full; then block 0 as a whole, afterwards token by token.
  if (pos < kv.block_tokens - 1) return;
  std::byte* first = s.Page(PhysicalBlock(p.rows, seq, 0), h);
  auto* centre = reinterpret_cast<float*>(first);
  const int from = pos == kv.block_tokens - 1 ? 0 : pos;
  if (from == 0) {
    for (int d = 0; d < kv.head_dim; ++d) {
      double sum = 0;
      for (int u = 1; u < kv.block_tokens; ++u) sum += reader.K(u, d);
      centre[d] = static_cast<float>(sum / (kv.block_tokens - 1));
    }
  }
  auto* scales = reinterpret_cast<float*>(page) + kv.head_dim;
  auto* codes = reinterpret_cast<int8_t*>(scales + kv.block_tokens);
  std::vector<float> x(static_cast<size_t>(kv.head_dim));
  for (int u = from; u <= pos; ++u) {
    for (int d = 0; d < kv.head_dim; ++d) x[static_cast<size_t>(d)] = reader.K(u, d) - centre[d];
    const int slot = u % kv.block_tokens;
    scales[slot] = SketchToken(x.data(), kv.head_dim, s.bits, codes + static_cast<int64_t>(slot) * kv.head_dim);
  }
}

int FirstLocal(const SelectParams& p, int row) {
  return std::max(0, p.rows.positions[row] / p.kv.block_tokens - p.local_blocks);
}

}  // namespace

size_t RefBackend::SummaryPageBytes(const KvView& kv, const SummaryView& s) const {
  switch (s.kind) {
    case SummaryKind::kNone:
      return 0;
    case SummaryKind::kPooledKeys:
      return (static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim) +
              (s.HasImportance() ? static_cast<size_t>(kv.block_tokens + kv.block_tokens / s.stride) : 0)) *
             sizeof(float);
    case SummaryKind::kCompressed:  // keys [B / stride][D], then values
      return BytesOf(kv.dtype, 2 * static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim));
    case SummaryKind::kSketch:  // the centre, then per token one scale and D codes of one byte each
      return static_cast<size_t>(kv.head_dim) * sizeof(float) +
             static_cast<size_t>(kv.block_tokens) * (sizeof(float) + static_cast<size_t>(kv.head_dim));
  }
  return 0;
}

void RefBackend::Summarise(const SummariseParams& p) {
  if (p.summary.kind == SummaryKind::kNone) return;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    for (int h = 0; h < p.kv.num_kv_heads; ++h) {
      if (p.summary.kind == SummaryKind::kSketch) {
        Sketch(p, p.rows.row_seq[t], h, p.rows.positions[t]);
      } else {
        PoolWindow(p, p.rows.row_seq[t], h, p.rows.positions[t]);
        if (p.summary.HasImportance()) Weigh(p, p.rows.row_seq[t], h, p.rows.positions[t]);
      }
    }
  }
}

std::vector<double> RefBackend::WindowShares(const SelectParams& p, int row, int head) const {
  const SummaryView& s = p.summary;
  const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
  int num_windows = std::max(0, (p.rows.positions[row] + 1) / s.stride - skip);
  if (p.skip_local) num_windows = std::min(num_windows, FirstLocal(p, row) * (p.kv.block_tokens / s.stride));
  std::vector<double> z(static_cast<size_t>(num_windows));
  if (num_windows == 0) return z;
  const float* q = p.q + row * p.q_stride + static_cast<int64_t>(head) * p.kv.head_dim;
  const int kv_head = head / (p.num_heads / p.kv.num_kv_heads);
  for (int j = 0; j < num_windows; ++j) {
    double sum = 0;
    for (int d = 0; d < p.kv.head_dim; ++d) {
      sum += static_cast<double>(q[d]) * LoadEntry(p, p.rows.row_seq[row], kv_head, j + skip, d);
    }
    z[static_cast<size_t>(j)] = p.scale * sum;
  }
  SoftmaxInto(&z);
  return z;
}

std::vector<double> RefBackend::BlockImportances(const SelectParams& p, int row, int kv_head) const {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int per_block = kv.block_tokens / s.stride;
  const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
  int windows = std::max(0, (p.rows.positions[row] + 1) / s.stride - skip);
  if (p.skip_local) windows = std::min(windows, FirstLocal(p, row) * per_block);
  std::vector<double> out(static_cast<size_t>(p.rows.positions[row] / kv.block_tokens + 1),
                          -std::numeric_limits<double>::infinity());
  for (int b = 0; b < static_cast<int>(out.size()); ++b) {
    for (int j = std::max(per_block * b - skip, 0); j < std::min(per_block * (b + 1), windows); ++j) {
      const int entry = j + skip;
      const int32_t block = PhysicalBlock(p.rows, p.rows.row_seq[row], entry / per_block);
      const double mean = ImportancePage(kv, s, block, kv_head)[kv.block_tokens + entry % per_block];
      out[static_cast<size_t>(b)] = std::max(out[static_cast<size_t>(b)], mean);
    }
  }
  return out;
}

std::vector<double> RefBackend::BlockScores(const SelectParams& p, int row, int kv_head) const {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int pos = p.rows.positions[row];
  const int seq = p.rows.row_seq[row];
  const int group = p.num_heads / kv.num_kv_heads;
  const int num_blocks = pos / kv.block_tokens + 1;
  std::vector<double> scores(static_cast<size_t>(num_blocks), 0.0);

  if (s.kind == SummaryKind::kPooledKeys || s.kind == SummaryKind::kCompressed) {
    std::vector<double> mass = WindowShares(p, row, kv_head * group);
    for (int g = 1; g < group; ++g) {
      const std::vector<double> more = WindowShares(p, row, kv_head * group + g);
      for (size_t j = 0; j < mass.size(); ++j) mass[j] += more[j];
    }
    const int per_block = kv.block_tokens / s.stride;
    const int units = s.kernel / s.stride;
    const auto windows = static_cast<int>(mass.size());
    for (int b = 0; b < num_blocks; ++b) {
      double& score = scores[static_cast<size_t>(b)];
      for (int m = 0; m < per_block; ++m) {
        for (int n = 0; n < units; ++n) {
          const int j = b * per_block + m - n;
          if (j < 0 || j >= windows) continue;
          const double share = mass[static_cast<size_t>(j)];
          score = s.kind == SummaryKind::kCompressed ? score + share : std::max(score, share);
        }
      }
    }
    return scores;
  }
  FS_CHECK(s.kind == SummaryKind::kSketch, "selection needs a summary");
  if (pos < kv.block_tokens - 1) return scores;
  const int tokens = p.skip_local ? FirstLocal(p, row) * kv.block_tokens : pos + 1;
  if (tokens == 0) return scores;
  for (int g = 0; g < group; ++g) {
    const float* query = p.q + row * p.q_stride + static_cast<int64_t>(kv_head * group + g) * kv.head_dim;
    std::vector<double> z(static_cast<size_t>(tokens));
    for (int u = 0; u < tokens; ++u) {
      const std::byte* page = s.Page(PhysicalBlock(p.rows, seq, u / kv.block_tokens), kv_head);
      const auto* scales = reinterpret_cast<const float*>(page) + kv.head_dim;
      const auto* codes = reinterpret_cast<const int8_t*>(scales + kv.block_tokens);
      const int slot = u % kv.block_tokens;
      double sum = 0;
      for (int d = 0; d < kv.head_dim; ++d) {
        sum += static_cast<double>(query[d]) * SketchLevel(codes[static_cast<int64_t>(slot) * kv.head_dim + d], s.bits);
      }
      z[static_cast<size_t>(u)] = p.scale * scales[slot] * sum;  // the centre adds the same to every token
    }
    SoftmaxInto(&z);
    for (int u = 0; u < tokens; ++u) scores[static_cast<size_t>(u / kv.block_tokens)] += z[static_cast<size_t>(u)];
  }
  return scores;
}

std::vector<int32_t> RefBackend::PickBlocks(const std::vector<double>& scores, int top_k, int init_blocks,
                                            int local_blocks) {
  const auto num_blocks = static_cast<int32_t>(scores.size());
  const int32_t own = num_blocks - 1;
  const auto forced_rank = [&](int32_t b) -> int {  // lower comes first; unforced blocks compare by score
    if (b >= own - local_blocks) return own - b;
    if (b < init_blocks) return local_blocks + 1 + b;
    return std::numeric_limits<int>::max();
  };
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int ra = forced_rank(a);
    const int rb = forced_rank(b);
    if (ra != rb) return ra < rb;
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(top_k)));
  std::sort(order.begin(), order.end());
  return order;
}

// Output of NSA's compressed branch.
void RefBackend::AttendCompressed(const SelectParams& p) const {
  const int d_head = p.kv.head_dim;
  const int skip = p.summary.kernel / p.summary.stride - 1;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    for (int h = 0; h < p.num_heads; ++h) {
      const std::vector<double> share = WindowShares(p, t, h);
      for (int d = 0; d < d_head; ++d) {
        double sum = 0;
        for (size_t j = 0; j < share.size(); ++j) {
          sum += share[j] * LoadEntry(p, p.rows.row_seq[t], h / (p.num_heads / p.kv.num_kv_heads),
                                      static_cast<int>(j) + skip, d, p.kv.block_tokens / p.summary.stride);
        }
        p.out[t * p.out_stride + static_cast<int64_t>(h) * d_head + d] = static_cast<float>(sum);
      }
    }
  }
}

void RefBackend::Select(const SelectParams& p) {
  if (p.summary.kind == SummaryKind::kCompressed) AttendCompressed(p);
  if (p.ids == nullptr) return;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    for (int h = 0; h < p.kv.num_kv_heads; ++h) {
      const int64_t at = static_cast<int64_t>(t) * p.kv.num_kv_heads + h;
      if (p.row_sparse[t] == 0) {
        p.counts[at] = -1;
        continue;
      }
      const std::vector<double> scores = BlockScores(p, t, h);
      for (size_t b = 0; p.scores != nullptr && b < scores.size(); ++b) {
        const bool all = static_cast<int>(scores.size()) <= p.top_k;
        p.scores[at * p.rows.max_blocks + static_cast<int64_t>(b)] = all ? 0.0f : static_cast<float>(scores[b]);
      }
      auto ids = PickBlocks(scores, p.query_top_k > 0 ? p.query_top_k : p.top_k, p.init_blocks, p.local_blocks);
      if (p.query_top_k > 0) {
        std::vector<double> importances = BlockImportances(p, t, h);
        for (const int32_t b : ids) importances[static_cast<size_t>(b)] = std::numeric_limits<double>::infinity();
        ids = PickBlocks(importances, p.top_k, p.init_blocks, p.local_blocks);
      }
      p.counts[at] = static_cast<int32_t>(ids.size());
      std::copy(ids.begin(), ids.end(), p.ids + at * p.top_k);
    }
  }
}

}  // namespace farsight
