// The two inner loops of training, once for each instruction set: a product over packed panels and a softmax.
#ifndef FARSIGHT_TRAIN_FORECAST_KERNELS_H_
#define FARSIGHT_TRAIN_FORECAST_KERNELS_H_

#include <cstdint>
#include <vector>

namespace farsight {

inline constexpr int kPanelWidth = 16;

// A matrix B [k, n] packed for products: panels of 16 columns, each [k, 16], zeros past column n.
struct Panels {
  int64_t k = 0;
  int64_t n = 0;
  std::vector<float> data;

  void Resize(int64_t new_k, int64_t new_n);
  // b [k, n], rows `stride` apart.
  void PackColumns(const float* b, int64_t stride, int64_t new_k, int64_t new_n);
  // The transpose: row j of b [n, k] becomes column j. `stride` floats between rows.
  void PackRows(const float* b, int64_t stride, int64_t new_k, int64_t new_n);
  float* Column(int64_t j) { return data.data() + j / kPanelWidth * k * kPanelWidth + j % kPanelWidth; }
};

struct ForecastKernels {
  const char* name;
  // c [m, n] = a [m, k] . B, rows lda and ldc apart, for the first n <= b.n columns and the first k <= b.k rows of B.
  // Every output adds its inputs in ascending order, whatever m and n are.
  void (*product)(const float* a, int64_t lda, int64_t m, const Panels& b, int64_t k, int64_t n, float* c, int64_t ldc);
  // z [n] becomes its softmax; n > 0.
  void (*softmax)(float* z, int64_t n);
};

const ForecastKernels& PortableForecastKernels();
// The best set this processor has.
const ForecastKernels& BestForecastKernels();

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_FORECAST_KERNELS_H_
