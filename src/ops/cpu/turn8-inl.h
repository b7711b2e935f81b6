// Eight rows of eight 16-bit values turned to columns, with 128-bit vectors: for every wrapper that has those.
#ifndef FARSIGHT_OPS_CPU_TURN8_INL_H_
#define FARSIGHT_OPS_CPU_TURN8_INL_H_

#include <immintrin.h>

#include <cstdint>

namespace farsight {
namespace {

// As in the scalar wrapper: pairs of rows, then of pairs, then of fours are interleaved.
FS_INLINE void Turn8Rows(const uint8_t* const* rows, int64_t at, uint8_t* out, int64_t stride) {
  __m128i x[8], y[8];
  for (int e = 0; e < 8; ++e) x[e] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[e] + at));
  for (int e = 0; e < 4; ++e) {
    y[2 * e] = _mm_unpacklo_epi16(x[2 * e], x[2 * e + 1]);
    y[2 * e + 1] = _mm_unpackhi_epi16(x[2 * e], x[2 * e + 1]);
  }
  for (int half = 0; half < 8; half += 4) {
    for (int i = 0; i < 2; ++i) {
      x[half + 2 * i] = _mm_unpacklo_epi32(y[half + i], y[half + i + 2]);
      x[half + 2 * i + 1] = _mm_unpackhi_epi32(y[half + i], y[half + i + 2]);
    }
  }
  for (int d = 0; d < 4; ++d) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * d * stride), _mm_unpacklo_epi64(x[d], x[d + 4]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (2 * d + 1) * stride), _mm_unpackhi_epi64(x[d], x[d + 4]));
  }
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_TURN8_INL_H_
