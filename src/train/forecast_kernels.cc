#define FARSIGHT_TRAIN_ISA forecast_portable
#include <algorithm>

#include "train/forecast_kernels-inl.h"

namespace farsight {

#if defined(FARSIGHT_X86_KERNELS)
const ForecastKernels& Avx2ForecastKernels();  // forecast_kernels_avx2.cc
#endif

void Panels::Resize(int64_t new_k, int64_t new_n) {
  k = new_k;
  n = new_n;
  const int64_t columns = (n + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  data.assign(static_cast<size_t>(k * columns), 0.0f);
}

void Panels::PackColumns(const float* b, int64_t stride, int64_t new_k, int64_t new_n) {
  Resize(new_k, new_n);
  for (int64_t first = 0; first < n; first += kPanelWidth) {
    float* to = Column(first);
    const int64_t columns = std::min<int64_t>(kPanelWidth, n - first);
    for (int64_t i = 0; i < k; ++i) std::copy_n(b + i * stride + first, columns, to + i * kPanelWidth);
  }
}

void Panels::PackRows(const float* b, int64_t stride, int64_t new_k, int64_t new_n) {
  Resize(new_k, new_n);
  for (int64_t j = 0; j < n; ++j) {
    float* to = Column(j);
    for (int64_t i = 0; i < k; ++i) to[i * kPanelWidth] = b[j * stride + i];
  }
}

const ForecastKernels& PortableForecastKernels() {
  static constexpr ForecastKernels kKernels = {"portable", forecast_portable::Product, forecast_portable::Softmax};
  return kKernels;
}

const ForecastKernels& BestForecastKernels() {
#if defined(FARSIGHT_X86_KERNELS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2ForecastKernels();
#endif
  return PortableForecastKernels();
}

}  // namespace farsight
