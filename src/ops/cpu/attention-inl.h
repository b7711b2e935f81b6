// Attention kernels over any vector wrapper `Vec`; the including file has chosen one.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_INL_H_
#define FARSIGHT_OPS_CPU_ATTENTION_INL_H_

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/vec_math-inl.h"  // Exp

namespace farsight {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

struct ElemF32 {
  static constexpr int kBytes = 4;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadF32(p); }
};
struct ElemF16 {
  static constexpr int kBytes = 2;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadF16(p); }
};
struct ElemBf16 {
  static constexpr int kBytes = 2;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadBf16(p); }
};

// Rows of 16 columns one after the other: what a tile of many queries reads again and again is converted once and then
// lies in the order in which it is read.
template <class Elem>
void Pack(const std::byte* b, int64_t ldb, int n, int k, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(b);
  for (int j = 0; j < k; ++j, bytes += ldb * Elem::kBytes) {
    float* to = out + static_cast<int64_t>(j) * 16;
    for (int at = 0; at < n; at += 16, to += static_cast<int64_t>(k) * 16) {
      for (int v = 0; v < 16; v += Vec::kLanes) Vec::Store(Elem::Load(bytes + (at + v) * Elem::kBytes), to + v);
    }
  }
}

// Twelve accumulators: as many as hide the latency of a multiply-add and fit in the registers.
constexpr int kBand = Vec::kLanes == 16 ? 12 : 6;

// kRows rows of a times one panel; the accumulators stay in registers.
template <int kRows>
void Band(const float* const* a, float* const* c, const float* panel, int at, int k, bool accumulate) {
  constexpr int kVecs = 16 / Vec::kLanes;
  Vec::F acc[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) acc[i][v] = accumulate ? Vec::Load(c[i] + at + v * Vec::kLanes) : Vec::Set(0);
  }
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = a[i];
  for (int j = 0; j < k; ++j, panel += 16) {
    Vec::F x[kVecs];
    for (int v = 0; v < kVecs; ++v) x[v] = Vec::Load(panel + v * Vec::kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec::F y = Vec::Set(rows[i][j]);
      for (int v = 0; v < kVecs; ++v) acc[i][v] = Vec::MulAdd(y, x[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) Vec::Store(acc[i][v], c[i] + at + v * Vec::kLanes);
  }
}

void Product(const float* const* a, float* const* c, int m, const float* panels, int n, int k, bool accumulate) {
  for (int at = 0; at < n; at += 16, panels += static_cast<int64_t>(k) * 16) {
    int i = 0;
    for (; i + kBand <= m; i += kBand) Band<kBand>(a + i, c + i, panels, at, k, accumulate);
    for (; i + 3 <= m; i += 3) Band<3>(a + i, c + i, panels, at, k, accumulate);
    for (; i < m; ++i) Band<1>(a + i, c + i, panels, at, k, accumulate);
  }
}

template <int kRows>
FS_INLINE void DotOne(const float* const* a, float* const* c, int j, const float* row, int k) {
  Vec::F acc[kRows];
  for (int i = 0; i < kRows; ++i) acc[i] = Vec::Set(0);
  for (int d = 0; d < k; d += Vec::kLanes) {
    const Vec::F x = Vec::Load(row + d);
    for (int i = 0; i < kRows; ++i) acc[i] = Vec::MulAdd(Vec::Load(a[i] + d), x, acc[i]);
  }
  for (int i = 0; i < kRows; ++i) c[i][j] = Vec::Sum(acc[i]);
}

template <class Elem>
void DotRows(const float* const* a, float* const* c, int m, const std::byte* b, int n, int k) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(b);
  for (int j = 0; j < n; ++j, bytes += k * Elem::kBytes) {
    float row[256];
    for (int d = 0; d < k; d += Vec::kLanes) Vec::Store(Elem::Load(bytes + d * Elem::kBytes), row + d);
    int i = 0;
    for (; i + 4 <= m; i += 4) DotOne<4>(a + i, c + i, j, row, k);
    for (; i < m; ++i) DotOne<1>(a + i, c + i, j, row, k);
  }
}

FS_INLINE float MaxOf(Vec::F v) {
  float lanes[Vec::kLanes];
  Vec::Store(v, lanes);
  float top = lanes[0];
  for (int i = 1; i < Vec::kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

FS_INLINE float ExpOne(float x) {
  float lanes[Vec::kLanes];
  Vec::Store(Exp(Vec::Set(x)), lanes);
  return lanes[0];
}

float SoftmaxBlock(float* s, int count, int n, float* m, float* l) {
  for (int i = count; i < n; ++i) s[i] = kMinusInfinity;
  Vec::F top = Vec::Load(s);
  for (int i = Vec::kLanes; i < n; i += Vec::kLanes) top = Vec::Max(top, Vec::Load(s + i));
  const float block_max = MaxOf(top);
  const float new_max = block_max > *m ? block_max : *m;
  const Vec::F shift = Vec::Set(new_max);
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) {
    const Vec::F e = Exp(Vec::Sub(Vec::Load(s + i), shift));
    Vec::Store(e, s + i);
    sum = Vec::Add(sum, e);
  }
  if (i < count) {
    Vec::Store(Exp(Vec::Sub(Vec::Load(s + i), shift)), s + i);
    for (int j = count; j < i + Vec::kLanes; ++j) s[j] = 0;
    sum = Vec::Add(sum, Vec::Load(s + i));
    i += Vec::kLanes;
  }
  for (; i < n; ++i) s[i] = 0;
  const float keep = *m == kMinusInfinity ? 0.0f : *m == new_max ? 1.0f : ExpOne(*m - new_max);
  *l = *l * keep + Vec::Sum(sum);
  *m = new_max;
  return keep;
}

void Scale(float* x, float factor, int n) {
  const Vec::F f = Vec::Set(factor);
  for (int i = 0; i < n; i += Vec::kLanes) Vec::Store(Vec::Mul(Vec::Load(x + i), f), x + i);
}

float ExpSum(float* x, int n, float max) {
  const Vec::F shift = Vec::Set(max);
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) {
    const Vec::F e = Exp(Vec::Sub(Vec::Load(x + i), shift));
    Vec::Store(e, x + i);
    sum = Vec::Add(sum, e);
  }
  float total = Vec::Sum(sum);
  if (i < n) {
    StoreTail(Exp(Vec::Sub(LoadTail(x + i, n - i), shift)), x + i, n - i);
    for (; i < n; ++i) total += x[i];
  }
  return total;
}

float SumOf(const float* x, int n) {
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) sum = Vec::Add(sum, Vec::Load(x + i));
  float total = Vec::Sum(sum);
  for (; i < n; ++i) total += x[i];
  return total;
}

float MaxValue(const float* x, int n) {
  float top = x[0];
  int i = 0;
  if (n >= Vec::kLanes) {
    Vec::F v = Vec::Load(x);
    for (i = Vec::kLanes; i + Vec::kLanes <= n; i += Vec::kLanes) v = Vec::Max(v, Vec::Load(x + i));
    top = MaxOf(v);
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

#ifdef __AVX2__
template <int kBits, int kQueries>
void SketchQueries(const uint8_t* codes, const float* scales, int tokens, int chunks, const SketchQuery* queries) {
  constexpr int kFields = 8 / kBits;
  const __m256i mask = _mm256_set1_epi8((1 << kBits) - 1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int t = 0; t < tokens; t += 8) {
    __m256i acc[kQueries];
    for (int q = 0; q < kQueries; ++q) acc[q] = _mm256_setzero_si256();
    for (int c = 0; c < chunks; ++c, codes += 32) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      // At most 8 pairs of at most 2 * 127 * (2^bits - 1) each: 4 bits use 2 fields, so 16 bits hold every sum.
      __m256i pairs[kQueries];
      for (int j = 0; j < kFields; ++j) {
        const __m256i field = _mm256_and_si256(_mm256_srli_epi16(packed, j * kBits), mask);
        for (int q = 0; q < kQueries; ++q) {
          int32_t four;
          __builtin_memcpy(&four, queries[q].codes + (c * kFields + j) * 4, 4);
          const __m256i p = _mm256_maddubs_epi16(field, _mm256_set1_epi32(four));
          pairs[q] = j == 0 ? p : _mm256_add_epi16(pairs[q], p);
        }
      }
      for (int q = 0; q < kQueries; ++q) acc[q] = _mm256_add_epi32(acc[q], _mm256_madd_epi16(pairs[q], ones));
    }
    const __m256 scale = _mm256_loadu_ps(scales + t);
    for (int q = 0; q < kQueries; ++q) {
      const __m256 dot = _mm256_sub_ps(_mm256_cvtepi32_ps(acc[q]), _mm256_set1_ps(queries[q].bias));
      _mm256_storeu_ps(queries[q].out + t, _mm256_mul_ps(_mm256_mul_ps(dot, scale), _mm256_set1_ps(queries[q].scale)));
    }
  }
}
#else
template <int kBits, int kQueries>
void SketchQueries(const uint8_t* codes, const float* scales, int tokens, int chunks, const SketchQuery* queries) {
  constexpr int kFields = 8 / kBits;
  for (int t = 0; t < tokens; ++t) {
    for (int q = 0; q < kQueries; ++q) {
      int sum = 0;
      for (int c = 0; c < chunks; ++c) {
        const uint8_t* packed = codes + (static_cast<int64_t>(t / 8) * chunks + c) * 32 + t % 8 * 4;
        for (int j = 0; j < kFields; ++j) {
          for (int i = 0; i < 4; ++i) {
            sum += (packed[i] >> (j * kBits) & ((1 << kBits) - 1)) * queries[q].codes[(c * kFields + j) * 4 + i];
          }
        }
      }
      queries[q].out[t] = (static_cast<float>(sum) - queries[q].bias) * scales[t] * queries[q].scale;
    }
  }
}
#endif

template <int kBits>
void SketchOfBits(const uint8_t* codes, const float* scales, int tokens, int chunks, const SketchQuery* queries,
                  int num) {
  switch (num) {
    case 1:
      return SketchQueries<kBits, 1>(codes, scales, tokens, chunks, queries);
    case 2:
      return SketchQueries<kBits, 2>(codes, scales, tokens, chunks, queries);
    case 3:
      return SketchQueries<kBits, 3>(codes, scales, tokens, chunks, queries);
    default:
      return SketchQueries<kBits, 4>(codes, scales, tokens, chunks, queries);
  }
}

void SketchScores(const uint8_t* codes, const float* scales, int tokens, int chunks, int bits,
                  const SketchQuery* queries, int num) {
  if (bits == 1) return SketchOfBits<1>(codes, scales, tokens, chunks, queries, num);
  if (bits == 2) return SketchOfBits<2>(codes, scales, tokens, chunks, queries, num);
  SketchOfBits<4>(codes, scales, tokens, chunks, queries, num);
}

constexpr AttentionKernels kAttentionKernels = {{Pack<ElemF32>, Pack<ElemF16>, Pack<ElemBf16>},
                                                Product,
                                                {DotRows<ElemF32>, DotRows<ElemF16>, DotRows<ElemBf16>},
                                                SoftmaxBlock,
                                                Scale,
                                                ExpSum,
                                                SumOf,
                                                MaxValue,
                                                SketchScores};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_INL_H_
