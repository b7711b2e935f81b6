// Quantises activations with 256-bit vectors; used by every x86 set, since 32 values are four of them.
#ifndef FARSIGHT_OPS_CPU_QUANTISE_AVX2_INL_H_
#define FARSIGHT_OPS_CPU_QUANTISE_AVX2_INL_H_

#include <immintrin.h>

#include "ops/cpu/elementwise-inl.h"

namespace farsight {
namespace {

FS_INLINE uint32_t MaxOfLanes(__m256i a) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

FS_INLINE int32_t SumOfLanes(__m256i a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

inline void Quantise(const float* in, int64_t n, uint8_t* out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < n / kBlockInputs; ++b, in += kBlockInputs, out += sizeof(QuantBlock)) {
    __m256 x[4];
    __m256i max = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_loadu_ps(in + 8 * i);
      max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
    }
    float inverse;
    const float scale = BlockScale(MaxOfLanes(max), &inverse);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) {
      // A zero factor times an infinity would be NaN, which has no code.
      q[i] = inverse == 0 ? _mm256_setzero_si256() : _mm256_cvtps_epi32(_mm256_mul_ps(x[i], _mm256_set1_ps(inverse)));
    }
    const int32_t sum0 = SumOfLanes(_mm256_add_epi32(q[0], q[1]));
    const int32_t sum1 = SumOfLanes(_mm256_add_epi32(q[2], q[3]));
    const __m256i words0 = _mm256_packs_epi32(q[0], q[1]);
    const __m256i words1 = _mm256_packs_epi32(q[2], q[3]);
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words0, words1), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
    const float scaled_sum = scale * static_cast<float>(sum0 + sum1);
    __builtin_memcpy(out + 32, &scale, 4);
    __builtin_memcpy(out + 36, &scaled_sum, 4);
    __builtin_memcpy(out + 40, &sum0, 4);
    __builtin_memcpy(out + 44, &sum1, 4);
  }
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_QUANTISE_AVX2_INL_H_
