// Scores of token sketches, over any vector wrapper `Vec`. Of one and two bits by table look-up: half a byte of codes
// holds the codes of 4 / bits channels; what a query gives for each of its 16 values is a table of bytes, so a score is
// a sum of looked-up bytes and 32 tokens take two shuffles for each byte of codes. Of four bits a table would hold one
// channel, and products with a query of 8 bits are half the work: their sums are whole numbers, the same everywhere.
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

// Two halves of 32 tokens' sums, in the order of the tokens, from vectors of the tokens [0-3 | 8-11] and [4-7 | 12-15].
FS_INLINE void StoreSums(__m256i a, __m256i b, float* z) {
  _mm256_storeu_ps(z, _mm256_cvtepi32_ps(_mm256_permute2x128_si256(a, b, 0x20)));
  _mm256_storeu_ps(z + 8, _mm256_cvtepi32_ps(_mm256_permute2x128_si256(a, b, 0x31)));
}

FS_INLINE __m256i CodesAt(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
#endif

#if defined(__AVX512VNNI__)
// z[q * kSketchMaxTokens ...] = sums of products of 32 tokens. Four rows of codes are woven so that a token's bytes lie
// side by side.
template <int kQueries>
FS_INLINE void SketchProducts(const uint8_t* codes, int bytes, const SketchQuery* queries, float* z,
                              const uint8_t* next) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i sum[kQueries][4];
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < 4; ++i) sum[q][i] = _mm256_setzero_si256();
  }
  for (int j = 0; j < bytes; j += 4, codes += 4 * kSketchGroup, next += 4 * kSketchGroup) {
    __m256i row[4];
    for (int i = 0; i < 4; ++i) row[i] = CodesAt(codes + i * kSketchGroup);
    __builtin_prefetch(next, 0, kSecondLevel);
    __builtin_prefetch(next + 64, 0, kSecondLevel);
    const __m256i pair[4] = {_mm256_unpacklo_epi8(row[0], row[1]), _mm256_unpacklo_epi8(row[2], row[3]),
                             _mm256_unpackhi_epi8(row[0], row[1]), _mm256_unpackhi_epi8(row[2], row[3])};
    for (int i = 0; i < 4; ++i) {
      const __m256i a = pair[i / 2 * 2];
      const __m256i b = pair[i / 2 * 2 + 1];
      const __m256i four = i % 2 == 0 ? _mm256_unpacklo_epi16(a, b) : _mm256_unpackhi_epi16(a, b);
      const __m256i first = _mm256_and_si256(four, low);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(four, 4), low);
      for (int q = 0; q < kQueries; ++q) {
        int32_t even;
        int32_t odd;
        __builtin_memcpy(&even, queries[q].channels + 2 * j, 4);
        __builtin_memcpy(&odd, queries[q].channels + 2 * j + 4, 4);
        sum[q][i] = _mm256_dpbusd_epi32(sum[q][i], first, _mm256_set1_epi32(even));
        sum[q][i] = _mm256_dpbusd_epi32(sum[q][i], second, _mm256_set1_epi32(odd));
      }
    }
  }
  // Of sum[i]: tokens 2 i, 16 + 2 i, 1 + 2 i, 17 + 2 i in the lower half, those 8 on in the upper.
  const auto tokens = [](__m256i a, __m256i b, bool from16) {
    const __m256 x = _mm256_castsi256_ps(a);
    const __m256 y = _mm256_castsi256_ps(b);
    return _mm256_castps_si256(from16 ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88));
  };
  for (int q = 0; q < kQueries; ++q) {
    float* to = z + q * kSketchMaxTokens;
    StoreSums(tokens(sum[q][0], sum[q][1], false), tokens(sum[q][2], sum[q][3], false), to);
    StoreSums(tokens(sum[q][0], sum[q][1], true), tokens(sum[q][2], sum[q][3], true), to + 16);
  }
}
#elif defined(__AVX2__)
// As below. Two rows of codes are woven; 16 bits hold eight sums of two products, 8 * 2 * 15 * 127.
template <int kQueries>
FS_INLINE void SketchProducts(const uint8_t* codes, int bytes, const SketchQuery* queries, float* z,
                              const uint8_t* next) {
  constexpr int kRows = 8;
  const __m256i low = _mm256_set1_epi8(15);
  __m256i total[kQueries][2][2];  // of unpacklo, then unpackhi: tokens below 16, then the others
  for (int q = 0; q < kQueries; ++q) {
    for (int h = 0; h < 2; ++h) total[q][h][0] = total[q][h][1] = _mm256_setzero_si256();
  }
  for (int j = 0; j < bytes; j += kRows) {
    __m256i sum[kQueries][2];
    for (int q = 0; q < kQueries; ++q) sum[q][0] = sum[q][1] = _mm256_setzero_si256();
    for (int i = j; i < j + kRows && i < bytes; i += 2) {
      const __m256i a = CodesAt(codes + i * kSketchGroup);
      const __m256i b = CodesAt(codes + (i + 1) * kSketchGroup);
      __builtin_prefetch(next + i * kSketchGroup, 0, kSecondLevel);
      for (int h = 0; h < 2; ++h) {
        const __m256i two = h == 0 ? _mm256_unpacklo_epi8(a, b) : _mm256_unpackhi_epi8(a, b);
        const __m256i first = _mm256_and_si256(two, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(two, 4), low);
        for (int q = 0; q < kQueries; ++q) {
          int16_t even;
          int16_t odd;
          const int8_t* channels = queries[q].channels + i / 4 * 8 + i % 4;
          __builtin_memcpy(&even, channels, 2);
          __builtin_memcpy(&odd, channels + 4, 2);
          const __m256i more = _mm256_add_epi16(_mm256_maddubs_epi16(first, _mm256_set1_epi16(even)),
                                                _mm256_maddubs_epi16(second, _mm256_set1_epi16(odd)));
          sum[q][h] = _mm256_add_epi16(sum[q][h], more);
        }
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int h = 0; h < 2; ++h) {
        const __m256i below16 = _mm256_srai_epi32(_mm256_slli_epi32(sum[q][h], 16), 16);
        total[q][h][0] = _mm256_add_epi32(total[q][h][0], below16);
        total[q][h][1] = _mm256_add_epi32(total[q][h][1], _mm256_srai_epi32(sum[q][h], 16));
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    float* to = z + q * kSketchMaxTokens;
    StoreSums(total[q][0][0], total[q][1][0], to);
    StoreSums(total[q][0][1], total[q][1][1], to + 16);
  }
}
#else
// z[q * kSketchMaxTokens ...] = sums of products of 32 tokens.
template <int kQueries>
FS_INLINE void SketchProducts(const uint8_t* codes, int bytes, const SketchQuery* queries, float* z,
                              const uint8_t* next) {
  __builtin_prefetch(next, 0, kSecondLevel);
  for (int q = 0; q < kQueries; ++q) {
    int sums[kSketchGroup] = {};
    for (int j = 0; j < bytes; ++j) {
      const int8_t* channels = queries[q].channels + j / 4 * 8 + j % 4;
      for (int t = 0; t < kSketchGroup; ++t) {
        const uint8_t byte = codes[j * kSketchGroup + SketchLane(t)];
        sums[t] += (byte & 15) * channels[0] + (byte >> 4) * channels[4];
      }
    }
    for (int t = 0; t < kSketchGroup; ++t) z[q * kSketchMaxTokens + t] = static_cast<float>(sums[t]);
  }
}

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
  for (int t = 0; t < tokens; t += kSketchGroup) {
    if (queries[0].channels != nullptr) {
      SketchProducts<kQueries>(codes + t * bytes, bytes, queries, z + t, next + t * bytes);
    } else {
      SketchSums<kQueries>(codes + t * bytes, bytes, queries, z + t, next + t * bytes);
    }
  }
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
