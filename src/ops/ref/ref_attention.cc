// Cache and attention of the reference backend. Pages are token-major: K[B][D], then V[B][D].
#include <algorithm>
#include <cmath>
#include <cstring>

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
      std::byte* page = KvPage(kv, PhysicalBlock(p.rows, p.rows.row_seq[t], pos / kv.block_tokens), h);
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
        const int first = p.window > 0 ? std::max(0, pos - p.window + 1) : 0;
        const int last = std::min((b + 1) * kv.block_tokens - 1, pos);
        for (int u = std::max(b * kv.block_tokens, first); u <= last; ++u) tokens.push_back(u);
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
    std::memcpy(KvPage(p.kv, p.to, h), KvPage(p.kv, p.from, h), p.kv.page_bytes);
    if (p.summary.kind == SummaryKind::kNone) continue;
    std::memcpy(SummaryPage(p.kv, p.summary, p.to, h), SummaryPage(p.kv, p.summary, p.from, h), p.summary.page_bytes);
  }
}

}  // namespace farsight
