// The vector wrapper on AVX2, FMA and F16C: 8 lanes, so a panel of 16 outputs is two vectors.
#ifndef FARSIGHT_OPS_CPU_VEC_AVX2_INL_H_
#define FARSIGHT_OPS_CPU_VEC_AVX2_INL_H_

#include <immintrin.h>

#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"

#define FS_INLINE inline __attribute__((always_inline))

namespace farsight {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  static constexpr int kRowsAtOnce = 4;   // two vectors of 16-bit sums each, beside the codes and an input
  static constexpr bool kExpands = true;  // of 5 and 6 bits, unpacking costs as much as it feeds
  static constexpr int kSignedOffset = 0;
  using F = __m256;
  using I = __m256i;
  using Bytes = __m256i;

  static FS_INLINE F Set(float x) { return _mm256_set1_ps(x); }
  static FS_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static FS_INLINE void Store(F a, float* p) { _mm256_storeu_ps(p, a); }
  static FS_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static FS_INLINE F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static FS_INLINE F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static FS_INLINE F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static FS_INLINE F MulAdd(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static FS_INLINE F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static FS_INLINE F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static FS_INLINE F Round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static FS_INLINE F PowerOfTwo(F whole) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
  }
  static FS_INLINE F Floor(F a) { return _mm256_floor_ps(a); }
  static FS_INLINE F Fraction(F a) { return Sub(a, Floor(a)); }
  static FS_INLINE F TimesPowerOfFloor(F y, F a) { return Mul(y, PowerOfTwo(Floor(a))); }
  static FS_INLINE float Sum(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
  }
  static FS_INLINE void Weave(const uint8_t* const* pages, int64_t at, uint8_t* out, int64_t stride) {
    for (int d = 0; d < 8; d += 2, out += 2 * stride) {
      __m128i x[4];
      for (int e = 0; e < 4; ++e) x[e] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pages[e] + at + 8 * d));
      auto* even = reinterpret_cast<__m128i*>(out);
      auto* odd = reinterpret_cast<__m128i*>(out + stride);
      _mm_storeu_si128(even, _mm_unpacklo_epi64(x[0], x[1]));
      _mm_storeu_si128(even + 1, _mm_unpacklo_epi64(x[2], x[3]));
      _mm_storeu_si128(odd, _mm_unpackhi_epi64(x[0], x[1]));
      _mm_storeu_si128(odd + 1, _mm_unpackhi_epi64(x[2], x[3]));
    }
  }
  static FS_INLINE F PairSums(F a, F b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_hadd_ps(a, b)), 0xd8));
  }
  static FS_INLINE float Largest(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
  }

  // Four vectors become one of pairs, then of fours, then the quarters of that meet.
  template <class Fn>
  static FS_INLINE __m128 Meet(const F (&x)[4], Fn fn) {
    const F ab = fn(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    const F cd = fn(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    const F all = fn(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm256_castps256_ps128(fn(all, _mm256_permute2f128_ps(all, all, 1)));
  }
  static FS_INLINE void Sums(const F (&x)[4], float* out) { _mm_storeu_ps(out, Meet(x, Add)); }
  static FS_INLINE void Tops(const F (&x)[4], float* out) { _mm_storeu_ps(out, Meet(x, Max)); }

  static FS_INLINE F LoadF32(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static FS_INLINE F LoadF16(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static FS_INLINE F LoadBf16(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static FS_INLINE F LoadU8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static FS_INLINE F LoadI8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static FS_INLINE void StoreF32(F a, uint8_t* p) { _mm256_storeu_ps(reinterpret_cast<float*>(p), a); }
  static FS_INLINE void StoreF16(F a, uint8_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static FS_INLINE void StoreBf16(F a, uint8_t* p) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i x = _mm256_blendv_epi8(rounded, quiet, nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
  }

  static FS_INLINE I SetI(int32_t x) { return _mm256_set1_epi32(x); }
  static FS_INLINE F ToF(I a) { return _mm256_cvtepi32_ps(a); }

  static FS_INLINE Bytes LoadBytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static FS_INLINE void StoreBytes(Bytes a, uint8_t* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  static FS_INLINE Bytes Low4(Bytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
  static FS_INLINE Bytes High4(Bytes a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
  static FS_INLINE Bytes Or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  template <int kBit>
  static FS_INLINE Bytes FifthBit(Bytes a) {
    Bytes moved = a;
    if constexpr (kBit < 4) moved = _mm256_slli_epi16(a, 4 - kBit);
    if constexpr (kBit > 4) moved = _mm256_srli_epi16(a, kBit - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(16));
  }
  template <int kPair>
  static FS_INLINE Bytes TopBits(Bytes a) {
    Bytes moved = a;
    if constexpr (kPair < 2) moved = _mm256_slli_epi16(a, 4 - 2 * kPair);
    if constexpr (kPair > 2) moved = _mm256_srli_epi16(a, 2 * kPair - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(48));
  }

  // As in the scalar wrapper. Products of unsigned codes are added in 16 bits as long as they fit, then widened.
  template <class Fmt, int kRows, int kBegin, int kEnd>
  static FS_INLINE void AddDot(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][2]) {
    if constexpr (Fmt::kSigned) {
      SignedGroups<Fmt, kRows, kBegin, kBegin, kEnd>(sub, in, dot);
    } else {
      Chunks<Fmt, kRows, kBegin, kBegin, kEnd>(sub, in, dot);
    }
  }

 private:
  // Compilers turn a chain of integer sums into a tree and spill its leaves; a value that passes through here is
  // finished first. No instruction.
  static FS_INLINE void Pin(__m256i& x) { __asm__("" : "+x"(x)); }

  static FS_INLINE __m256i Broadcast4(const uint8_t* p) {
    int32_t x;
    __builtin_memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
  }

  template <class Fmt, int kRows, int kBegin, int kAt, int kEnd>
  static FS_INLINE void Chunks(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][2]) {
    if constexpr (kAt < kEnd) {
      constexpr int kNext = kAt + Fmt::kGroupsIn16Bits < kEnd ? kAt + Fmt::kGroupsIn16Bits : kEnd;
      __m256i pairs[kRows][2];
      Groups<Fmt, kRows, kAt, kAt, kNext>(sub, in, pairs);
      const __m256i ones = _mm256_set1_epi16(1);
      for (int r = 0; r < kRows; ++r) {
        for (int h = 0; h < 2; ++h) {
          const __m256i wide = _mm256_madd_epi16(pairs[r][h], ones);
          dot[r][h] = _mm256_add_epi32(dot[r][h], wide);
        }
      }
      Chunks<Fmt, kRows, kBegin, kNext, kEnd>(sub, in, dot);
    }
  }

  template <class Fmt, int kRows, int kBegin, int kGroup, int kEnd>
  static FS_INLINE void Groups(const uint8_t* sub, const uint8_t* const* in, __m256i (&pairs)[kRows][2]) {
    if constexpr (kGroup < kEnd) {
      const __m256i w0 = Fmt::template Codes<kGroup>(sub, 0);
      const __m256i w1 = Fmt::template Codes<kGroup>(sub, 1);
      for (int r = 0; r < kRows; ++r) {
        const __m256i x = Broadcast4(in[r] + 4 * kGroup);
        const __m256i p0 = _mm256_maddubs_epi16(w0, x);
        const __m256i p1 = _mm256_maddubs_epi16(w1, x);
        pairs[r][0] = kGroup == kBegin ? p0 : _mm256_add_epi16(pairs[r][0], p0);
        pairs[r][1] = kGroup == kBegin ? p1 : _mm256_add_epi16(pairs[r][1], p1);
        Pin(pairs[r][0]);
        Pin(pairs[r][1]);
      }
      Groups<Fmt, kRows, kBegin, kGroup + 1, kEnd>(sub, in, pairs);
    }
  }

  // Signed 8-bit codes: |w| times x with the sign of w. A pair is at most 2 * 128 * 127 < 2^15, so nothing saturates,
  // but each pair sum has to be widened by itself.
  template <class Fmt, int kRows, int kBegin, int kGroup, int kEnd>
  static FS_INLINE void SignedGroups(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][2]) {
    if constexpr (kGroup < kEnd) {
      const __m256i ones = _mm256_set1_epi16(1);
      for (int h = 0; h < 2; ++h) {
        const __m256i w = Fmt::template Codes<kGroup>(sub, h);
        const __m256i size = _mm256_abs_epi8(w);
        for (int r = 0; r < kRows; ++r) {
          const __m256i x = _mm256_sign_epi8(Broadcast4(in[r] + 4 * kGroup), w);
          const __m256i wide = _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones);
          dot[r][h] = _mm256_add_epi32(dot[r][h], wide);
          Pin(dot[r][h]);
        }
      }
      SignedGroups<Fmt, kRows, kBegin, kGroup + 1, kEnd>(sub, in, dot);
    }
  }
};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_VEC_AVX2_INL_H_
