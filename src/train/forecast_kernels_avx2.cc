#define FARSIGHT_TRAIN_ISA forecast_avx2
#include "train/forecast_kernels-inl.h"

namespace farsight {

const ForecastKernels& Avx2ForecastKernels();

const ForecastKernels& Avx2ForecastKernels() {
  static constexpr ForecastKernels kKernels = {"avx2", forecast_avx2::Product, forecast_avx2::Softmax};
  return kKernels;
}

}  // namespace farsight
