// Cache, summaries, selection and attention of the reference backend. Pages are token-major: K[B][D], then V[B][D].
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "ops/ref/ref_backend.h"
#include "ops/sketch.h"

namespace farsight {
namespace {

std::byte* Page(std::byte* pages, size_t page_bytes, int num_kv_heads, int32_t block, int head) {
  return pages +
         (static_cast<size_t>(block) * static_cast<size_t>(num_kv_heads) + static_cast<size_t>(head)) * page_bytes;
}

int32_t PhysicalBlock(const RowBatch& rows, int seq, int block) {
  FS_CHECK(block >= 0 && block < rows.max_blocks, "a logical block is inside the block table");
  const int32_t id = rows.block_tables[static_cast<int64_t>(seq) * rows.max_blocks + block];
  FS_CHECK(id >= 0, "a block that is read or written has a physical block");
  return id;
}

float LoadElem(DType dtype, const std::byte* base, int64_t i) {
  if (dtype == DType::kF32) {
    float f;
    std::memcpy(&f, base + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, base + 2 * i, 2);
  return dtype == DType::kF16 ? F16ToF32(h) : BF16ToF32(h);
}

void StoreElem(DType dtype, std::byte* base, int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(base + 4 * i, &value, 4);
    return;
  }
  const uint16_t h = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
  std::memcpy(base + 2 * i, &h, 2);
}

// Reads key or value `token` (absolute position) of a sequence's KV head.
struct KvReader {
  const KvView& kv;
  const RowBatch& rows;
  int seq;
  int head;

  const std::byte* PageOf(int token) const {
    return Page(kv.pages, kv.page_bytes, kv.num_kv_heads, PhysicalBlock(rows, seq, token / kv.block_tokens), head);
  }
  float K(int token, int d) const {
    return LoadElem(kv.dtype, PageOf(token), static_cast<int64_t>(token % kv.block_tokens) * kv.head_dim + d);
  }
  float V(int token, int d) const {
    return LoadElem(kv.dtype, PageOf(token),
                    static_cast<int64_t>(kv.block_tokens + token % kv.block_tokens) * kv.head_dim + d);
  }
};

float* PooledEntry(const SelectParams& p, int seq, int head, int entry) {
  const int per_block = p.kv.block_tokens / p.summary.stride;
  std::byte* page = Page(p.summary.pages, p.summary.page_bytes, p.kv.num_kv_heads,
                         PhysicalBlock(p.rows, seq, entry / per_block), head);
  return reinterpret_cast<float*>(page) + static_cast<int64_t>(entry % per_block) * p.kv.head_dim;
}

double Dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void SoftmaxInto(std::vector<double>* z) {
  const double m = *std::max_element(z->begin(), z->end());
  double sum = 0;
  for (double& v : *z) sum += v = std::exp(v - m);
  for (double& v : *z) v /= sum;
}

}  // namespace

size_t RefBackend::KvPageBytes(const KvView& kv) const {
  return BytesOf(kv.dtype,
                 static_cast<size_t>(2) * static_cast<size_t>(kv.block_tokens) * static_cast<size_t>(kv.head_dim));
}

size_t RefBackend::SummaryPageBytes(const KvView& kv, const SummaryView& s) const {
  switch (s.kind) {
    case SummaryKind::kNone:
      return 0;
    case SummaryKind::kPooledKeys:
      return static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim) * sizeof(float);
    case SummaryKind::kSketch:  // the centre, then per token one scale and D codes of one byte each
      return static_cast<size_t>(kv.head_dim) * sizeof(float) +
             static_cast<size_t>(kv.block_tokens) * (sizeof(float) + static_cast<size_t>(kv.head_dim));
  }
  return 0;
}

void RefBackend::AppendKv(const AppendKvParams& p) {
  const KvView& kv = p.kv;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int pos = p.rows.positions[t];
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      std::byte* page = Page(kv.pages, kv.page_bytes, kv.num_kv_heads,
                             PhysicalBlock(p.rows, p.rows.row_seq[t], pos / kv.block_tokens), h);
      const int64_t at = static_cast<int64_t>(pos % kv.block_tokens) * kv.head_dim;
      const int64_t v_at = static_cast<int64_t>(kv.block_tokens) * kv.head_dim + at;
      for (int d = 0; d < kv.head_dim; ++d) {
        const int64_t i = t * p.stride + static_cast<int64_t>(h) * kv.head_dim + d;
        StoreElem(kv.dtype, page, at + d, p.k[i]);
        StoreElem(kv.dtype, page, v_at + d, p.v[i]);
      }
    }
  }
}

void RefBackend::Summarise(const SummariseParams& p) {
  const SummaryView& s = p.summary;
  const KvView& kv = p.kv;
  if (s.kind == SummaryKind::kNone) return;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int pos = p.rows.positions[t];
    const int seq = p.rows.row_seq[t];
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      const KvReader reader{kv, p.rows, seq, h};
      std::byte* page =
          Page(s.pages, s.page_bytes, kv.num_kv_heads, PhysicalBlock(p.rows, seq, pos / kv.block_tokens), h);
      if (s.kind == SummaryKind::kPooledKeys) {
        // Window j ends with token (j + kernel/stride) * stride - 1; entry i = j + kernel/stride - 1.
        if ((pos + 1) % s.stride != 0 || pos + 1 < s.kernel) continue;
        const int entry = (pos % kv.block_tokens) / s.stride;
        float* out = reinterpret_cast<float*>(page) + static_cast<int64_t>(entry) * kv.head_dim;
        for (int d = 0; d < kv.head_dim; ++d) {
          double sum = 0;
          for (int u = pos + 1 - s.kernel; u <= pos; ++u) sum += reader.K(u, d);
          out[d] = static_cast<float>(sum / s.kernel);
        }
        continue;
      }
      // Sketch: nothing until block 0 is full; then block 0 as a whole, afterwards token by token.
      if (pos < kv.block_tokens - 1) continue;
      std::byte* first = Page(s.pages, s.page_bytes, kv.num_kv_heads, PhysicalBlock(p.rows, seq, 0), h);
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
  }
}

std::vector<double> RefBackend::BlockScores(const SelectParams& p, int row, int kv_head) const {
  const KvView& kv = p.kv;
  const SummaryView& s = p.summary;
  const int pos = p.rows.positions[row];
  const int seq = p.rows.row_seq[row];
  const int group = p.num_heads / kv.num_kv_heads;
  const int num_blocks = pos / kv.block_tokens + 1;
  std::vector<double> scores(static_cast<size_t>(num_blocks), 0.0);
  const auto query = [&](int g) {
    return p.q + row * p.q_stride + static_cast<int64_t>(kv_head * group + g) * kv.head_dim;
  };

  if (s.kind == SummaryKind::kPooledKeys) {
    const int skip = s.kernel / s.stride - 1;  // entries before the first whole window
    const int num_windows = std::max(0, (pos + 1) / s.stride - skip);
    if (num_windows == 0) return scores;
    std::vector<double> mass(static_cast<size_t>(num_windows), 0.0);
    for (int g = 0; g < group; ++g) {
      std::vector<double> z(static_cast<size_t>(num_windows));
      for (int j = 0; j < num_windows; ++j) {
        z[static_cast<size_t>(j)] = p.scale * Dot(query(g), PooledEntry(p, seq, kv_head, j + skip), kv.head_dim);
      }
      SoftmaxInto(&z);
      for (size_t j = 0; j < z.size(); ++j) mass[j] += z[j];
    }
    const int per_block = kv.block_tokens / s.stride;
    for (int b = 0; b < num_blocks; ++b) {
      const int first = std::max(per_block * b - skip, 0);
      const int last = std::min(per_block * (b + 1) - 1, num_windows - 1);
      for (int j = first; j <= last; ++j) {
        scores[static_cast<size_t>(b)] = std::max(scores[static_cast<size_t>(b)], mass[static_cast<size_t>(j)]);
      }
    }
    return scores;
  }

  FS_CHECK(s.kind == SummaryKind::kSketch, "selection needs a summary");
  if (pos < kv.block_tokens - 1) return scores;
  for (int g = 0; g < group; ++g) {
    std::vector<double> z(static_cast<size_t>(pos) + 1);
    for (int u = 0; u <= pos; ++u) {
      const std::byte* page =
          Page(s.pages, s.page_bytes, kv.num_kv_heads, PhysicalBlock(p.rows, seq, u / kv.block_tokens), kv_head);
      const auto* scales = reinterpret_cast<const float*>(page) + kv.head_dim;
      const auto* codes = reinterpret_cast<const int8_t*>(scales + kv.block_tokens);
      const int slot = u % kv.block_tokens;
      double sum = 0;
      for (int d = 0; d < kv.head_dim; ++d) {
        sum +=
            static_cast<double>(query(g)[d]) * SketchLevel(codes[static_cast<int64_t>(slot) * kv.head_dim + d], s.bits);
      }
      z[static_cast<size_t>(u)] = p.scale * scales[slot] * sum;  // the centre adds the same to every token
    }
    SoftmaxInto(&z);
    for (int u = 0; u <= pos; ++u) scores[static_cast<size_t>(u / kv.block_tokens)] += z[static_cast<size_t>(u)];
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

void RefBackend::Select(const SelectParams& p) {
  for (int t = 0; t < p.rows.num_rows; ++t) {
    for (int h = 0; h < p.kv.num_kv_heads; ++h) {
      const int64_t at = static_cast<int64_t>(t) * p.kv.num_kv_heads + h;
      if (p.row_sparse[t] == 0) {
        p.counts[at] = -1;
        continue;
      }
      const auto ids = PickBlocks(BlockScores(p, t, h), p.top_k, p.init_blocks, p.local_blocks);
      p.counts[at] = static_cast<int32_t>(ids.size());
      std::copy(ids.begin(), ids.end(), p.ids + at * p.top_k);
    }
  }
}

void RefBackend::Attend(const AttendParams& p) {
  const KvView& kv = p.kv;
  const int group = p.num_heads / kv.num_kv_heads;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int pos = p.rows.positions[t];
    for (int h = 0; h < p.num_heads; ++h) {
      const int kv_head = h / group;
      const int64_t at = static_cast<int64_t>(t) * kv.num_kv_heads + kv_head;
      const KvReader reader{kv, p.rows, p.rows.row_seq[t], kv_head};
      std::vector<int> tokens;
      const auto add_block = [&](int b) {
        for (int u = b * kv.block_tokens; u <= std::min((b + 1) * kv.block_tokens - 1, pos); ++u) tokens.push_back(u);
      };
      if (p.ids == nullptr || p.counts[at] < 0) {
        for (int b = 0; b <= pos / kv.block_tokens; ++b) add_block(b);
      } else {
        for (int i = 0; i < p.counts[at]; ++i) add_block(p.ids[at * p.max_selected + i]);
      }
      float* out = p.out + t * p.out_stride + static_cast<int64_t>(h) * kv.head_dim;
      std::fill(out, out + kv.head_dim, 0.0f);
      if (tokens.empty()) continue;
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(h) * kv.head_dim;
      std::vector<double> z(tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        double sum = 0;
        for (int d = 0; d < kv.head_dim; ++d) sum += static_cast<double>(q[d]) * reader.K(tokens[i], d);
        z[i] = p.scale * sum;
      }
      SoftmaxInto(&z);
      for (int d = 0; d < kv.head_dim; ++d) {
        double sum = 0;
        for (size_t i = 0; i < tokens.size(); ++i) sum += z[i] * reader.V(tokens[i], d);
        out[d] = static_cast<float>(sum);
      }
    }
  }
}

void RefBackend::CopyBlock(const CopyBlockParams& p) {
  for (int h = 0; h < p.kv.num_kv_heads; ++h) {
    std::memcpy(Page(p.kv.pages, p.kv.page_bytes, p.kv.num_kv_heads, p.to, h),
                Page(p.kv.pages, p.kv.page_bytes, p.kv.num_kv_heads, p.from, h), p.kv.page_bytes);
    if (p.summary.kind == SummaryKind::kNone) continue;
    std::memcpy(Page(p.summary.pages, p.summary.page_bytes, p.kv.num_kv_heads, p.to, h),
                Page(p.summary.pages, p.summary.page_bytes, p.kv.num_kv_heads, p.from, h), p.summary.page_bytes);
  }
}

}  // namespace farsight
