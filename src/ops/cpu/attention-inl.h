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

// kRows rows of a times kVecs vectors of b: kRows * kVecs accumulators stay in registers.
template <class Elem, int kRows, int kVecs>
FS_INLINE void ProductTile(const float* const* a, float* const* c, const uint8_t* b, int64_t row_bytes, int at, int k,
                           bool accumulate) {
  Vec::F acc[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) acc[i][v] = accumulate ? Vec::Load(c[i] + at + v * Vec::kLanes) : Vec::Set(0);
  }
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = a[i];
  const uint8_t* column = b + static_cast<int64_t>(at) * Elem::kBytes;
  for (int j = 0; j < k; ++j, column += row_bytes) {
    Vec::F x[kVecs];
    for (int v = 0; v < kVecs; ++v) x[v] = Elem::Load(column + v * Vec::kLanes * Elem::kBytes);
    for (int i = 0; i < kRows; ++i) {
      const Vec::F y = Vec::Set(rows[i][j]);
      for (int v = 0; v < kVecs; ++v) acc[i][v] = Vec::MulAdd(y, x[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) Vec::Store(acc[i][v], c[i] + at + v * Vec::kLanes);
  }
}

// All columns of kRows rows: kWide vectors at a time, then one by one.
template <class Elem, int kRows, int kWide>
void ProductRows(const float* const* a, float* const* c, const uint8_t* b, int64_t row_bytes, int n, int k,
                 bool accumulate) {
  int at = 0;
  for (; at + kWide * Vec::kLanes <= n; at += kWide * Vec::kLanes) {
    ProductTile<Elem, kRows, kWide>(a, c, b, row_bytes, at, k, accumulate);
  }
  for (; at < n; at += Vec::kLanes) ProductTile<Elem, kRows, 1>(a, c, b, row_bytes, at, k, accumulate);
}

template <class Elem>
void Product(const float* const* a, float* const* c, int m, const std::byte* b, int64_t ldb, int n, int k,
             bool accumulate) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(b);
  const int64_t row_bytes = ldb * Elem::kBytes;
  int i = 0;
  for (; i + 6 <= m; i += 6) ProductRows<Elem, 6, 2>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
  switch (m - i) {
    case 5:
      ProductRows<Elem, 5, 2>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
      break;
    case 4:
      ProductRows<Elem, 4, 2>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
      break;
    case 3:
      ProductRows<Elem, 3, 4>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
      break;
    case 2:
      ProductRows<Elem, 2, 4>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
      break;
    case 1:
      ProductRows<Elem, 1, 8>(a + i, c + i, bytes, row_bytes, n, k, accumulate);
      break;
    default:
      break;
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
  for (int i = 0; i < count; i += Vec::kLanes) Vec::Store(Exp(Vec::Sub(Vec::Load(s + i), shift)), s + i);
  for (int i = count; i < n; ++i) s[i] = 0;
  Vec::F sum = Vec::Set(0);
  for (int i = 0; i < n; i += Vec::kLanes) sum = Vec::Add(sum, Vec::Load(s + i));
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

float Dot(const float* a, const float* b, int n) {
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) sum = Vec::MulAdd(Vec::Load(a + i), Vec::Load(b + i), sum);
  if (i < n) sum = Vec::MulAdd(LoadTail(a + i, n - i), LoadTail(b + i, n - i), sum);
  return Vec::Sum(sum);
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

constexpr AttentionKernels kAttentionKernels = {{Product<ElemF32>, Product<ElemF16>, Product<ElemBf16>},
                                                SoftmaxBlock,
                                                Scale,
                                                ExpSum,
                                                SumOf,
                                                MaxValue,
                                                Dot,
                                                SketchScores};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_INL_H_
