// Scores of token sketches by table look-up, over any vector wrapper `Vec`. Half a byte of codes, whatever their bits,
// holds the codes of 4 / bits channels; what a query gives for each of its 16 values is a table of bytes, so a score is
// a sum of looked-up bytes and 32 tokens take two shuffles for each byte of codes.
#ifndef FARSIGHT_OPS_CPU_SKETCH_INL_H_
#define FARSIGHT_OPS_CPU_SKETCH_INL_H_

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/vec_math-inl.h"

namespace farsight {
namespace {

constexpr int kSketchMaxTokens = 256;

#ifdef __AVX2__
FS_INLINE __m256i Table(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// z[q * kSketchMaxTokens ...] = sums of table entries of 32 tokens. Two sums share a 16-bit lane: the lower one wraps,
// and the upper one, counted beside, is taken off at the end. Both stay below 256 bytes * 254.
template <int kQueries>
FS_INLINE void SketchSums(const uint8_t* codes, int bytes, const SketchQuery* queries, float* z, const uint8_t* next) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i both[kQueries];
  __m256i upper[kQueries];
  for (int q = 0; q < kQueries; ++q) both[q] = upper[q] = _mm256_setzero_si256();
  for (int j = 0; j < bytes; ++j) {
    __builtin_prefetch(next + j * 32, 0, kSecondLevel);
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + j * 32));
    const __m256i first = _mm256_and_si256(packed, low);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
    for (int q = 0; q < kQueries; ++q) {
      const uint8_t* table = queries[q].tables + j * 32;
      const __m256i sum =
          _mm256_add_epi8(_mm256_shuffle_epi8(Table(table), first), _mm256_shuffle_epi8(Table(table + 16), second));
      both[q] = _mm256_add_epi16(both[q], sum);
      upper[q] = _mm256_add_epi16(upper[q], _mm256_srli_epi16(sum, 8));
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    const __m256i lower = _mm256_sub_epi16(both[q], _mm256_slli_epi16(upper[q], 8));
    const __m128i parts[4] = {_mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1),
                              _mm256_castsi256_si128(upper[q]), _mm256_extracti128_si256(upper[q], 1)};
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(z + q * kSketchMaxTokens + 8 * i, _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(parts[i])));
    }
  }
}
#else
template <int kQueries>
FS_INLINE void SketchSums(const uint8_t* codes, int bytes, const SketchQuery* queries, float* z, const uint8_t* next) {
  __builtin_prefetch(next, 0, kSecondLevel);
  for (int q = 0; q < kQueries; ++q) {
    int sums[32] = {};
    for (int j = 0; j < bytes; ++j) {
      const uint8_t* table = queries[q].tables + j * 32;
      for (int t = 0; t < 32; ++t) {
        const uint8_t byte = codes[j * 32 + SketchLane(t)];
        sums[t] += table[byte & 15] + table[16 + (byte >> 4)];
      }
    }
    for (int t = 0; t < 32; ++t) z[q * kSketchMaxTokens + t] = static_cast<float>(sums[t]);
  }
}
#endif

// Sums of table entries z to softmax parts. The queries go side by side: each is a chain of a maximum, its broadcast,
// an exponential and a sum, and one alone would leave the processor waiting.
template <int kQueries>
FS_INLINE void SketchSoftmax(float* z, const float* scales, int tokens, const SketchQuery* queries, float* max,
                             float* sum, int stride) {
  const Vec::F none = Vec::Set(-__builtin_inff());
  Vec::F top[kQueries];
  Vec::F unit[kQueries];
  Vec::F bias[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    top[q] = none;
    unit[q] = Vec::Set(queries[q].unit * queries[q].scale);
    bias[q] = Vec::Set(queries[q].bias * queries[q].scale);
  }
  const auto scores = [&](int t, Vec::F token_scale) {
    for (int q = 0; q < kQueries; ++q) {
      float* at = z + q * kSketchMaxTokens + t;
      Vec::Store(Vec::Mul(Vec::Sub(Vec::Mul(Vec::Load(at), unit[q]), bias[q]), token_scale), at);
    }
  };
  const auto raise = [&](int t) {
    for (int q = 0; q < kQueries; ++q) top[q] = Vec::Max(Vec::Load(z + q * kSketchMaxTokens + t), top[q]);
  };
  int t = 0;
  for (; t + Vec::kLanes <= tokens; t += Vec::kLanes) {
    scores(t, Vec::Load(scales + t));
    raise(t);
  }
  if (t < tokens) {
    scores(t, LoadTail(scales + t, tokens - t));
    for (int q = 0; q < kQueries; ++q) {
      for (int i = tokens; i < t + Vec::kLanes; ++i) z[q * kSketchMaxTokens + i] = -__builtin_inff();
    }
    raise(t);
  }
  Vec::F shift[kQueries];
  Vec::F total[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    max[q * stride] = Vec::Largest(top[q]);
    shift[q] = Vec::Set(max[q * stride]);
    total[q] = Vec::Set(0);
  }
  for (t = 0; t < tokens; t += Vec::kLanes) {
    for (int q = 0; q < kQueries; ++q) {
      const Vec::F x = Vec::Load(z + q * kSketchMaxTokens + t);
      total[q] = Vec::Add(total[q], Exp2Below(Vec::Sub(x, shift[q])));
    }
  }
  for (int q = 0; q < kQueries; ++q) sum[q * stride] = Vec::Sum(total[q]);
}

template <int kQueries>
void SketchBlockOf(const uint8_t* codes, const float* scales, int tokens, int bytes, const SketchQuery* queries,
                   float* max, float* sum, int stride, const uint8_t* next) {
  float z[kQueries * kSketchMaxTokens];
  for (int t = 0; t < tokens; t += kSketchGroup)
    SketchSums<kQueries>(codes + t * bytes, bytes, queries, z + t, next + t * bytes);
  SketchSoftmax<kQueries>(z, scales, tokens, queries, max, sum, stride);
}

void SketchBlock(const uint8_t* codes, const float* scales, int tokens, int bytes, const SketchQuery* queries, int num,
                 float* max, float* sum, int stride, const uint8_t* next) {
  switch (num) {
    case 1:
      return SketchBlockOf<1>(codes, scales, tokens, bytes, queries, max, sum, stride, next);
    case 2:
      return SketchBlockOf<2>(codes, scales, tokens, bytes, queries, max, sum, stride, next);
    case 3:
      return SketchBlockOf<3>(codes, scales, tokens, bytes, queries, max, sum, stride, next);
    default:
      return SketchBlockOf<4>(codes, scales, tokens, bytes, queries, max, sum, stride, next);
  }
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_SKETCH_INL_H_
