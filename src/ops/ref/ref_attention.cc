// Cache and attention of the reference backend. Pages are token-major: K[B][D], then V[B][D].
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/ref/ref_backend.h"
#include "ops/ref/ref_pages.h"

namespace farsight {

size_t RefBackend::KvPageBytes(const KvView& kv) const {
  return BytesOf(kv.dtype,
                 static_cast<size_t>(2) * static_cast<size_t>(kv.block_tokens) * static_cast<size_t>(kv.head_dim));
}

void RefBackend::AppendKv(const AppendKvParams& p) {
  const KvView& kv = p.kv;
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int pos = p.rows.positions[t];
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      std::byte* page = kv.Page(PhysicalBlock(p.rows, p.rows.row_seq[t], pos / kv.block_tokens), h);
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

namespace {

// A softmax over some tokens: its largest score, the sum of exp(score - max), and as many weighted values.
struct Part {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double* out = nullptr;  // [D]

  void Add(double z, const KvReader& reader, int token) {
    const double top = std::max(max, z);
    const double keep = std::exp(max - top);
    const double weight = std::exp(z - top);
    for (int d = 0; d < reader.kv.head_dim; ++d) out[d] = out[d] * keep + weight * reader.V(token, d);
    sum = sum * keep + weight;
    max = top;
  }
};

}  // namespace

size_t RefBackend::AttendCarryBytes(int num_heads, int head_dim) {
  return static_cast<size_t>(num_heads) * static_cast<size_t>(head_dim + 2) * sizeof(double);
}

void RefBackend::Attend(const AttendParams& p) {
  const KvView& kv = p.kv;
  const int group = p.num_heads / kv.num_kv_heads;
  std::vector<double> sums(static_cast<size_t>(kv.head_dim));
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int pos = p.rows.positions[t];
    for (int h = 0; h < p.num_heads; ++h) {
      const int kv_head = h / group;
      const int64_t at = static_cast<int64_t>(t) * kv.num_kv_heads + kv_head;
      const KvReader reader{kv, p.rows, p.rows.row_seq[t], kv_head};
      double* carry = reinterpret_cast<double*>(p.carry) +
                      (static_cast<int64_t>(t) * p.num_heads + h) * (static_cast<int64_t>(kv.head_dim) + 2);
      Part part;
      part.out = sums.data();
      std::fill(sums.begin(), sums.end(), 0.0);
      if (p.first_block > 0) {
        part.max = carry[0];
        part.sum = carry[1];
        std::copy_n(carry + 2, kv.head_dim, part.out);
      }
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(h) * kv.head_dim;
      const auto importance = [&](int u) -> double {
        if (!p.summary.HasImportance()) return 0;
        const int32_t block = PhysicalBlock(p.rows, p.rows.row_seq[t], u / kv.block_tokens);
        return ImportancePage(kv, p.summary, block, kv_head)[u % kv.block_tokens];
      };
      const auto add_block = [&](int b) {
        if (b < p.first_block || b >= p.end_block) return;
        const int first = p.window > 0 ? std::max(0, pos - p.window + 1) : 0;
        const int last = std::min((b + 1) * kv.block_tokens - 1, pos);
        for (int u = std::max(b * kv.block_tokens, first); u <= last; ++u) {
          double sum = 0;
          for (int d = 0; d < kv.head_dim; ++d) sum += static_cast<double>(q[d]) * reader.K(u, d);
          part.Add(p.scale * sum + importance(u), reader, u);
        }
      };
      if (p.ids == nullptr || p.counts[at] < 0) {
        for (int b = 0; b <= pos / kv.block_tokens; ++b) add_block(b);
      } else {
        for (int i = 0; i < p.counts[at]; ++i) add_block(p.ids[at * p.max_selected + i]);
      }
      if (p.end_block < p.rows.max_blocks) {
        carry[0] = part.max;
        carry[1] = part.sum;
        std::copy_n(part.out, kv.head_dim, carry + 2);
        continue;
      }
      float* out = p.out + t * p.out_stride + static_cast<int64_t>(h) * kv.head_dim;
      for (int d = 0; d < kv.head_dim; ++d) {
        out[d] = static_cast<float>(part.sum == 0 ? 0.0 : part.out[d] / part.sum);
      }
    }
  }
}

void RefBackend::GateBranches(const GateBranchesParams& p) {
  const int64_t width = static_cast<int64_t>(p.num_heads) * p.head_dim;
  for (int t = 0; t < p.num_rows; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int b = 0; b < GateBranchesParams::kBranches; ++b) {
        const double gate =
            p.gates[(static_cast<int64_t>(t) * GateBranchesParams::kBranches + b) * p.num_heads + i / p.head_dim];
        sum += p.branches[b][t * width + i] / (1 + std::exp(-gate));
      }
      p.out[t * width + i] = static_cast<float>(sum);
    }
  }
}

void RefBackend::CopyBlock(const CopyBlockParams& p) {
  for (int h = 0; h < p.kv.num_kv_heads; ++h) {
    std::memcpy(p.kv.Page(p.to, h), p.kv.Page(p.from, h), p.kv.page_bytes);
    if (p.summary.kind == SummaryKind::kNone) continue;
    std::memcpy(p.summary.Page(p.to, h), p.summary.Page(p.from, h), p.summary.page_bytes);
  }
}

}  // namespace farsight
