// Included by one file for each instruction set, which names it in FARSIGHT_TRAIN_ISA. Lanes are eight floats of the
// compilers' vector extension, so the same source serves every set.
#include <cstring>

#include "train/forecast_kernels.h"

namespace farsight::FARSIGHT_TRAIN_ISA {

using Lanes [[gnu::vector_size(32)]] = float;
using IntLanes [[gnu::vector_size(32)]] = int32_t;
constexpr int kLanes = 8;

// By reference: a vector by value has another calling convention on each instruction set.
inline void Load(const float* from, Lanes* to) { std::memcpy(to, from, sizeof(Lanes)); }
inline void Store(const Lanes& from, float* to) { std::memcpy(to, &from, sizeof(Lanes)); }

template <int kRows>
void ProductRows(const float* a, int64_t lda, const float* panel, int64_t k, float* c, int64_t ldc) {
  Lanes low[kRows] = {};
  Lanes high[kRows] = {};
  for (int64_t i = 0; i < k; ++i) {
    Lanes b0;
    Lanes b1;
    Load(panel + i * kPanelWidth, &b0);
    Load(panel + i * kPanelWidth + kLanes, &b1);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * lda + i];
      low[r] += x * b0;
      high[r] += x * b1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    Store(low[r], c + r * ldc);
    Store(high[r], c + r * ldc + kLanes);
  }
}

inline void ProductTile(int rows, const float* a, int64_t lda, const float* panel, int64_t k, float* c, int64_t ldc) {
  switch (rows) {
    case 1:
      return ProductRows<1>(a, lda, panel, k, c, ldc);
    case 2:
      return ProductRows<2>(a, lda, panel, k, c, ldc);
    case 3:
      return ProductRows<3>(a, lda, panel, k, c, ldc);
    default:
      return ProductRows<4>(a, lda, panel, k, c, ldc);
  }
}

void Product(const float* a, int64_t lda, int64_t m, const Panels& b, int64_t k, int64_t n, float* c, int64_t ldc) {
  constexpr int kRows = 4;
  for (int64_t j = 0; j < n; j += kPanelWidth) {
    const float* panel = b.data.data() + j * b.k;
    const int64_t columns = n - j < kPanelWidth ? n - j : kPanelWidth;
    for (int64_t i = 0; i < m; i += kRows) {
      const int rows = static_cast<int>(m - i < kRows ? m - i : kRows);
      if (columns == kPanelWidth) {
        ProductTile(rows, a + i * lda, lda, panel, k, c + i * ldc + j, ldc);
        continue;
      }
      float edge[kRows * kPanelWidth];
      ProductTile(rows, a + i * lda, lda, panel, k, edge, kPanelWidth);
      for (int r = 0; r < rows; ++r) {
        std::memcpy(c + (i + r) * ldc + j, edge + r * kPanelWidth, static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }
}

// exp(x) for x <= 0, relative error below 1e-6; 0 below -87.
inline void Exp(Lanes* x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  Lanes low = {};
  low -= 87.0f;
  const IntLanes keep = *x >= low;
  Lanes y;
  IntLanes bits;
  std::memcpy(&bits, x, sizeof(bits));
  bits &= keep;  // 0 where the result will be 0
  std::memcpy(&y, &bits, sizeof(y));
  Lanes shifted = y * kLog2e + kRound;
  const Lanes whole = shifted - kRound;
  y = (y - whole * kLn2High) - whole * kLn2Low;
  Lanes p = y * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * y + 8.3334519073e-3f;
  p = p * y + 4.1665795894e-2f;
  p = p * y + 1.6666665459e-1f;
  p = p * y + 5.0000001201e-1f;
  p = p * (y * y) + y + 1.0f;
  IntLanes exponent;
  std::memcpy(&exponent, &shifted, sizeof(exponent));
  IntLanes result;
  std::memcpy(&result, &p, sizeof(result));
  result = (result + (exponent << 23)) & keep;
  std::memcpy(x, &result, sizeof(result));
}

void Softmax(float* z, int64_t n) {
  float top = z[0];
  for (int64_t i = 1; i < n; ++i) top = z[i] > top ? z[i] : top;
  Lanes sum = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes x;
    Load(z + i, &x);
    x -= top;
    Exp(&x);
    sum += x;
    Store(x, z + i);
  }
  if (i < n) {
    float edge[kLanes];
    for (int j = 0; j < kLanes; ++j) edge[j] = i + j < n ? z[i + j] - top : -1000.0f;
    Lanes x;
    Load(edge, &x);
    Exp(&x);
    sum += x;
    Store(x, edge);
    std::memcpy(z + i, edge, static_cast<size_t>(n - i) * sizeof(float));
  }
  float total = 0;
  for (int j = 0; j < kLanes; ++j) total += sum[j];
  const float inverse = 1.0f / total;
  for (int64_t j = 0; j < n; ++j) z[j] *= inverse;
}

}  // namespace farsight::FARSIGHT_TRAIN_ISA
