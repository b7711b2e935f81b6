// From scores to blocks: plain loops, which the compiler turns into vectors of the instruction set at hand.
#ifndef FARSIGHT_OPS_CPU_SELECT_INL_H_
#define FARSIGHT_OPS_CPU_SELECT_INL_H_

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace farsight {
namespace {

// A store for each number is what the scores of a single row would spend their time with, so four channels turn
// together.
void Turn(const float* const* rows, int64_t at, int d, float* to) {
  int j = 0;
#if defined(__AVX512F__)
  for (; j + 4 <= d; j += 4) {
    const auto four = [&](int i) {  // channels j to j + 3 of every fourth row
      __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + at + j));
      x = _mm512_insertf32x4(x, _mm_loadu_ps(rows[i + 4] + at + j), 1);
      x = _mm512_insertf32x4(x, _mm_loadu_ps(rows[i + 8] + at + j), 2);
      return _mm512_castps_pd(_mm512_insertf32x4(x, _mm_loadu_ps(rows[i + 12] + at + j), 3));
    };
    const auto pairs = [](__m512d a, __m512d b, bool last) {
      const __m512 x = _mm512_castpd_ps(a), y = _mm512_castpd_ps(b);
      return _mm512_castps_pd(last ? _mm512_unpackhi_ps(x, y) : _mm512_unpacklo_ps(x, y));
    };
    const __m512d a = four(0), b = four(1), c = four(2), e = four(3);
    const __m512d ab = pairs(a, b, false), ce = pairs(c, e, false), ab2 = pairs(a, b, true), ce2 = pairs(c, e, true);
    _mm512_storeu_ps(to + j * 16, _mm512_castpd_ps(_mm512_unpacklo_pd(ab, ce)));
    _mm512_storeu_ps(to + j * 16 + 16, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, ce)));
    _mm512_storeu_ps(to + j * 16 + 32, _mm512_castpd_ps(_mm512_unpacklo_pd(ab2, ce2)));
    _mm512_storeu_ps(to + j * 16 + 48, _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, ce2)));
  }
#elif defined(__SSE2__)
  for (; j + 4 <= d; j += 4) {
    for (int r = 0; r < 16; r += 4) {
      __m128 a = _mm_loadu_ps(rows[r] + at + j), b = _mm_loadu_ps(rows[r + 1] + at + j);
      __m128 c = _mm_loadu_ps(rows[r + 2] + at + j), e = _mm_loadu_ps(rows[r + 3] + at + j);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      _mm_storeu_ps(to + j * 16 + r, a);
      _mm_storeu_ps(to + j * 16 + 16 + r, b);
      _mm_storeu_ps(to + j * 16 + 32 + r, c);
      _mm_storeu_ps(to + j * 16 + 48 + r, e);
    }
  }
#endif
  for (; j < d; ++j) {
    for (int r = 0; r < 16; ++r) to[j * 16 + r] = rows[r][at + j];
  }
}

// The largest of 4 windows and the one before them, of each block: what the published kernels 32 and strides 16 come
// to.
void FourAndOneMax(const float* z, int num_blocks, float least, float* out) {
  for (int b = 0; b < num_blocks; ++b) {
    const float* at = z + 4 * b;
    const float x = at[0] > at[1] ? at[0] : at[1];
    const float y = at[2] > at[3] ? at[2] : at[3];
    float best = x > y ? x : y;
    best = at[-1] > best ? at[-1] : best;
    out[b] = best > least ? best : least;
  }
}

// Windows of block b: [per_block * b - skip, per_block * (b + 1)), as far as there are any.
void BlockMax(const float* z, int windows, int per_block, int skip, int num_blocks, float least, float* out) {
  int b = 0;
  const auto block = [&] {
    const int first = per_block * b > skip ? per_block * b - skip : 0;
    const int end = per_block * (b + 1) < windows ? per_block * (b + 1) : windows;
    float best = least;
    for (int w = first; w < end; ++w) best = z[w] > best ? z[w] : best;
    out[b++] = best;
  };
  const int whole = windows / per_block < num_blocks ? windows / per_block : num_blocks;
  if (per_block == 4 && skip == 1 && whole > 1) {
    block();
    FourAndOneMax(z + 4, whole - 1, least, out + 1);
    b = whole;
  }
  while (b < num_blocks) block();
}

// The largest of the first `n` scores of each of 16 blocks, and of what was there before. A score that is no number
// comes to nothing.
FS_INLINE Vec::F LargestOf(const float* z, int n, Vec::F top) {
  for (int e = 0; e < n; ++e) top = Vec::Max(Vec::Load(z + 16 * e), top);
  return top;
}

// Two passes: a number that was just written is not there yet for a vector that begins elsewhere.
void BlockTops(const float* const* z, int rows, int per_block, int skip, float least, float* out, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    float* to = out + r * stride;
    for (int l = 0; l < 16; l += Vec::kLanes) Vec::Store(LargestOf(z[r] + l, per_block, Vec::Set(least)), to + l);
  }
  for (int r = 0; r < rows; ++r) {
    float* to = out + r * stride - 1;
    for (int l = 0; l < 16; l += Vec::kLanes) Vec::Store(LargestOf(z[r] + l, skip, Vec::Load(to + l)), to + l);
  }
}

// Numbers in the order of the floats that they stand for.
int32_t OrderOf(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits < 0 ? bits ^ INT32_MAX : bits;
}
float FloatAt(int32_t order) {
  const int32_t bits = order < 0 ? order ^ INT32_MAX : order;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

int CountAbove(const float* x, int n, float limit) {
  int count = 0;
  for (int i = 0; i < n; ++i) count += x[i] > limit ? 1 : 0;
  return count;
}

// Bit i: x[i] > limit, or at least so large, of 16 numbers.
template <bool kOrEqual>
uint32_t Mask16(const float* x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_set1_ps(limit), kOrEqual ? _CMP_GE_OQ : _CMP_GT_OQ);
#elif defined(__AVX2__)
  constexpr int kCompare = kOrEqual ? _CMP_GE_OQ : _CMP_GT_OQ;
  const __m256 y = _mm256_set1_ps(limit);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), y, kCompare));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + 8), y, kCompare));
  return static_cast<uint32_t>(low | high << 8);
#else
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= ((kOrEqual ? x[i] >= limit : x[i] > limit) ? 1u : 0u) << i;
  return mask;
#endif
}

// Sixteens of numbers, the last filled up with ones that are less than any.
struct Sixteens {
  const float* x;
  int n;
  float last[16];
  Sixteens(const float* numbers, int count) : x(numbers), n(count) {
    const int left = n % 16;
    for (int i = 0; i < 16; ++i) last[i] = -__builtin_inff();
    for (int i = 0; i < left; ++i) last[i] = x[n - left + i];
  }
  const float* At(int first) const { return first + 16 <= n ? x + first : last; }
};

// A limit that no more than `want` of n numbers are above, and at least `want` reach. Bisection: a pass over all is a
// few vectors, and nothing of it depends on how the numbers lie.
float LimitOfMany(const float* x, int n, int want, float least) {
  int64_t low = int64_t{OrderOf(least)} - 1;  // more than `want` lie above it
  int64_t high = OrderOf(MaxValue(x, n));
  int above = 0;  // `high`
  while (above != want && high - low > 1) {
    const int64_t middle = (low + high) / 2;
    const int count = CountAbove(x, n, FloatAt(static_cast<int32_t>(middle)));
    if (count > want) {
      low = middle;
    } else {
      high = middle;
      above = count;
    }
  }
  return FloatAt(static_cast<int32_t>(high));
}

// The same, exactly, of few numbers that fill sixteens: each is compared with all. The limit is the one with the most
// larger ones, fewer than `want`; without a branch, which would be guessed wrong.
constexpr int kFew = 64;
float LimitOfFew(const float* x, int whole, int want) {
  int best = 0;  // larger ones times kFew, plus the place
  for (int j = 0; j < whole; ++j) {
    int larger = 0;
    for (int i = 0; i < whole; i += 16) larger += __builtin_popcount(Mask16<false>(x + i, x[j]));
    const int key = (larger * kFew + j) & -static_cast<int>(larger < want);
    best = key > best ? key : best;
  }
  return x[best % kFew];
}

// The places of `want` numbers, a limit being known: all above it, and the first of those that equal it.
int TakeFrom(const Sixteens& x, int want, float limit, int32_t* ids) {
  int equal = want;
  for (int first = 0; first < x.n; first += 16) equal -= __builtin_popcount(Mask16<false>(x.At(first), limit));
  int taken = 0;
  for (int first = 0; taken < want; first += 16) {
    uint32_t mask = Mask16<true>(x.At(first), limit);
    uint32_t same = mask & ~Mask16<false>(x.At(first), limit);
    int surplus = __builtin_popcount(same) - equal;
    equal = surplus > 0 ? 0 : -surplus;
    for (mask ^= same; surplus > 0; --surplus) same ^= 0x80000000u >> __builtin_clz(same);
    for (mask |= same; mask != 0; mask &= mask - 1) ids[taken++] = first + __builtin_ctz(mask);
  }
  return taken;
}

// The numbers of a mask and their places, in order. There is room for sixteen.
int Gather16(const float* x, uint32_t mask, int first, float* to, int32_t* places) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>(mask);
  const __m512i all = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(lanes, _mm512_loadu_ps(x)));
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(lanes, _mm512_add_epi32(all, _mm512_set1_epi32(first))));
  return __builtin_popcount(mask);
#else
  int n = 0;
  for (; mask != 0; mask &= mask - 1, ++n) {
    to[n] = x[__builtin_ctz(mask)];
    places[n] = first + __builtin_ctz(mask);
  }
  return n;
#endif
}

// Of numbers in a few classes, the `want`-th largest of the classes' maxima is reached by `want` numbers or more, and
// by not many more. A list of the best so far would cost a wrong guess of the processor at every second number that
// enters it.
int TakeBest(const float* numbers, int n, int want, float least, int32_t* ids) {
  if (want <= 0) return 0;
  if (n <= want) {
    for (int i = 0; i < n; ++i) ids[i] = i;
    return n;
  }
  const Sixteens x(numbers, n);
  const int classes = (2 * want + 15) / 16 * 16;
  if (classes <= kFew && n >= 2 * classes) {
    float near[kFew + 16];
    int32_t places[kFew + 16];
    for (int first = 0, c = 0; first < n; first += 16, c = c + 16 < classes ? c + 16 : 0) {
      for (int l = 0; l < 16; l += Vec::kLanes) {
        const Vec::F y = Vec::Load(x.At(first) + l);
        Vec::Store(first < classes ? y : Vec::Max(Vec::Load(near + c + l), y), near + c + l);
      }
    }
    const float reached = LimitOfFew(near, classes, want);
    int num = 0;  // that reach it; more than few where many are equal
    for (int first = 0; first < n && num <= kFew; first += 16) {
      num += Gather16(x.At(first), Mask16<true>(x.At(first), reached), first, near + num, places + num);
    }
    if (num <= kFew) {
      const int whole = (num + 15) / 16 * 16;
      for (int i = num; i < num + 16; ++i) near[i] = -__builtin_inff();
      TakeFrom({near, num}, want, LimitOfFew(near, whole, want), ids);
      for (int i = 0; i < want; ++i) ids[i] = places[ids[i]];
      return want;
    }
  }
  return TakeFrom(x, want, LimitOfMany(numbers, n, want, least), ids);
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_SELECT_INL_H_
