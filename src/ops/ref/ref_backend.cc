#include "ops/ref/ref_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/dequantise.h"

namespace farsight {

void RefMatrix::Row(int64_t r, float* out) const {
  DequantiseRow(dtype_, data_.data() + static_cast<size_t>(r) * BytesOf(dtype_, static_cast<size_t>(cols_)), cols_,
                out);
}

void RefBackend::CopyIn(Buffer& to, size_t offset, std::span<const std::byte> from) {
  FS_CHECK(offset + from.size() <= to.size(), "CopyIn stays inside the buffer");
  if (!from.empty()) std::memcpy(to.data() + offset, from.data(), from.size());
}

void RefBackend::CopyOut(const Buffer& from, size_t offset, std::span<std::byte> to) {
  FS_CHECK(offset + to.size() <= from.size(), "CopyOut stays inside the buffer");
  if (!to.empty()) std::memcpy(to.data(), from.data() + offset, to.size());
}

StatusOr<RefMatrix> RefBackend::PrepareMatrix(std::span<const HostMatrix> parts) {
  int64_t rows = 0;
  for (const auto& m : parts) rows += m.rows;
  RefMatrix out(parts[0].dtype, rows, parts[0].cols);
  for (const auto& m : parts) {
    FS_CHECK(m.dtype == parts[0].dtype && m.cols == parts[0].cols, "stacked matrices agree in dtype and width");
    out.data_.insert(out.data_.end(), m.data.begin(), m.data.end());
  }
  return out;
}

void RefBackend::Embed(const EmbedParams<RefMatrix>& p) {
  const int64_t dim = p.table->cols();
  for (int t = 0; t < p.num_rows; ++t) {
    float* out = p.out + t * dim;
    p.table->Row(p.tokens[t], out);
    for (int64_t j = 0; j < dim; ++j) out[j] *= p.scale;
  }
}

void RefBackend::MatMul(const MatMulParams<RefMatrix>& p) {
  const int64_t k = p.weight->cols();
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t j = 0; j < p.weight->rows(); ++j) {
    p.weight->Row(j, row.data());
    for (int t = 0; t < p.num_rows; ++t) {
      const float* in = p.in + t * p.in_stride;
      double sum = p.bias != nullptr ? p.bias[j] : 0.0;
      for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(row[static_cast<size_t>(i)]) * in[i];
      float* out = p.out + t * p.out_stride + j;
      *out = static_cast<float>((p.accumulate ? static_cast<double>(*out) : 0.0) + p.alpha * sum);
    }
  }
}

void RefBackend::RmsNorm(const RmsNormParams& p) {
  for (int t = 0; t < p.num_rows; ++t) {
    for (int g = 0; g < p.groups; ++g) {
      const float* in = p.in + t * p.in_stride + static_cast<int64_t>(g) * p.dim;
      float* out = p.out + t * p.out_stride + static_cast<int64_t>(g) * p.dim;
      double sum = 0;
      for (int i = 0; i < p.dim; ++i) sum += static_cast<double>(in[i]) * in[i];
      const double r = 1.0 / std::sqrt(sum / p.dim + static_cast<double>(p.eps));
      for (int i = 0; i < p.dim; ++i) out[i] = static_cast<float>(in[i] * r * p.weight[i]);
    }
  }
}

void RefBackend::RopeTable(const RopeTableParams& p) {
  for (int t = 0; t < p.num_rows; ++t) {
    for (int i = 0; i < p.half_dim; ++i) {
      const double angle = p.positions[t] * p.inv_freq[i];
      p.cos[static_cast<int64_t>(t) * p.half_dim + i] = static_cast<float>(std::cos(angle) * p.magnitude);
      p.sin[static_cast<int64_t>(t) * p.half_dim + i] = static_cast<float>(std::sin(angle) * p.magnitude);
    }
  }
}

void RefBackend::Rope(const RopeParams& p) {
  for (int t = 0; t < p.num_rows; ++t) {
    for (int h = 0; h < p.num_heads; ++h) {
      float* x = p.x + t * p.stride + static_cast<int64_t>(h) * p.head_dim;
      for (int i = 0; i < p.half_dim; ++i) {
        const double c = p.cos[static_cast<int64_t>(t) * p.half_dim + i];
        const double s = p.sin[static_cast<int64_t>(t) * p.half_dim + i];
        const double a = x[i];
        const double b = x[i + p.half_dim];
        x[i] = static_cast<float>(a * c - b * s);
        x[i + p.half_dim] = static_cast<float>(b * c + a * s);
      }
    }
  }
}

void RefBackend::SwiGlu(const SwiGluParams& p) {
  for (int t = 0; t < p.num_rows; ++t) {
    const float* in = p.in + static_cast<int64_t>(t) * 2 * p.ffn;
    for (int j = 0; j < p.ffn; ++j) {
      const double gate = in[j];
      p.out[static_cast<int64_t>(t) * p.ffn + j] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * in[p.ffn + j]);
    }
  }
}

}  // namespace farsight
