// The plain definition of every weight format: one row of any dtype to f32, and of Q8_0 back. Fast kernels are tested
// against it.
#ifndef FARSIGHT_OPS_DEQUANTISE_H_
#define FARSIGHT_OPS_DEQUANTISE_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace farsight {

// Writes n values; n is a multiple of the dtype's block, src holds BytesOf(dtype, n) bytes (any alignment).
void DequantiseRow(DType dtype, const std::byte* src, int64_t n, float* out);

// n finite values, a multiple of 32, as Q8_0: each within half a step of its block, whose 127 steps reach its largest
// value (scales end where halves do).
void QuantiseRowQ8(const float* x, int64_t n, std::byte* out);

// The 6-bit scale and minimum of sub-block j (0..7) in the 12 packed bytes of Q4_K and Q5_K.
void UnpackScaleMin6(const uint8_t* packed, int j, uint8_t* scale, uint8_t* min);

}  // namespace farsight

#endif  // FARSIGHT_OPS_DEQUANTISE_H_
