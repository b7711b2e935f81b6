// The vector wrapper on AVX-512 with VNNI: 16 lanes, so a panel of 16 outputs is one vector.
#ifndef FARSIGHT_OPS_CPU_VEC_AVX512_INL_H_
#define FARSIGHT_OPS_CPU_VEC_AVX512_INL_H_

// g++ 12 believes that the undefined pass-through operands inside its own intrinsics are read.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"

#define FS_INLINE inline __attribute__((always_inline))

namespace farsight {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  static constexpr int kRowsAtOnce = 8;
  // VPDPBUSD takes unsigned codes: those of Q8_0 are moved up by 128, exactly, for it never saturates.
  static constexpr bool kExpands = false;  // one unpacking feeds eight rows
  static constexpr int kSignedOffset = 128;
  using F = __m512;
  using I = __m512i;
  using Bytes = __m512i;

  static FS_INLINE F Set(float x) { return _mm512_set1_ps(x); }
  static FS_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static FS_INLINE void Store(F a, float* p) { _mm512_storeu_ps(p, a); }
  static FS_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static FS_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static FS_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static FS_INLINE F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static FS_INLINE F MulAdd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static FS_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static FS_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static FS_INLINE F Round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static FS_INLINE F PowerOfTwo(F whole) {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(whole), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
  }
  static FS_INLINE F Fraction(F a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static FS_INLINE F TimesPowerOfFloor(F y, F a) { return _mm512_scalef_ps(y, a); }
  static FS_INLINE float Sum(F a) { return _mm512_reduce_add_ps(a); }
  static FS_INLINE void Weave(const uint8_t* const* pages, int64_t at, uint8_t* out, int64_t stride) {
    const __m512i a = _mm512_loadu_si512(pages[0] + at), b = _mm512_loadu_si512(pages[1] + at);
    const __m512i c = _mm512_loadu_si512(pages[2] + at), d = _mm512_loadu_si512(pages[3] + at);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const auto store = [&](__m512i ab, __m512i cd, int row) {  // rows row, row + 2, row + 4, row + 6
      const __m512i x = _mm512_permutex2var_epi64(ab, first, cd);
      const __m512i y = _mm512_permutex2var_epi64(ab, last, cd);
      const auto to = [&](int r) { return reinterpret_cast<__m256i*>(out + (row + r) * stride); };
      _mm256_storeu_si256(to(0), _mm512_castsi512_si256(x));
      _mm256_storeu_si256(to(2), _mm512_extracti64x4_epi64(x, 1));
      _mm256_storeu_si256(to(4), _mm512_castsi512_si256(y));
      _mm256_storeu_si256(to(6), _mm512_extracti64x4_epi64(y, 1));
    };
    store(_mm512_unpacklo_epi64(a, b), _mm512_unpacklo_epi64(c, d), 0);
    store(_mm512_unpackhi_epi64(a, b), _mm512_unpackhi_epi64(c, d), 1);
  }
  static FS_INLINE F PairSums(F a, F b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
  }
  static FS_INLINE float Largest(F a) { return _mm512_reduce_max_ps(a); }

  // As with eight lanes, and halves before quarters.
  template <class Fn>
  static FS_INLINE __m128 Meet(const F (&x)[4], Fn fn) {
    const F ab = fn(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const F cd = fn(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    F all = fn(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    all = fn(all, _mm512_shuffle_f32x4(all, all, 0x4e));
    return _mm512_castps512_ps128(fn(all, _mm512_shuffle_f32x4(all, all, 0xb1)));
  }
  static FS_INLINE void Sums(const F (&x)[4], float* out) { _mm_storeu_ps(out, Meet(x, Add)); }
  static FS_INLINE void Tops(const F (&x)[4], float* out) { _mm_storeu_ps(out, Meet(x, Max)); }

  static FS_INLINE F LoadF32(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static FS_INLINE F LoadF16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static FS_INLINE F LoadBf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static FS_INLINE F LoadU8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static FS_INLINE F LoadI8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static FS_INLINE void StoreF32(F a, uint8_t* p) { _mm512_storeu_ps(p, a); }
  static FS_INLINE void StoreF16(F a, uint8_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static FS_INLINE void StoreBf16(F a, uint8_t* p) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __m512i x = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }

  static FS_INLINE I SetI(int32_t x) { return _mm512_set1_epi32(x); }
  static FS_INLINE F ToF(I a) { return _mm512_cvtepi32_ps(a); }

  static FS_INLINE Bytes LoadBytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static FS_INLINE void StoreBytes(Bytes a, uint8_t* p) { _mm512_storeu_si512(p, a); }
  static FS_INLINE Bytes Low4(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static FS_INLINE Bytes High4(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
  static FS_INLINE Bytes Or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  template <int kBit>
  static FS_INLINE Bytes FifthBit(Bytes a) {
    Bytes moved = a;
    if constexpr (kBit < 4) moved = _mm512_slli_epi16(a, 4 - kBit);
    if constexpr (kBit > 4) moved = _mm512_srli_epi16(a, kBit - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi8(16));
  }
  template <int kPair>
  static FS_INLINE Bytes TopBits(Bytes a) {
    Bytes moved = a;
    if constexpr (kPair < 2) moved = _mm512_slli_epi16(a, 4 - 2 * kPair);
    if constexpr (kPair > 2) moved = _mm512_srli_epi16(a, 2 * kPair - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi8(48));
  }

  // As in the scalar wrapper.
  template <class Fmt, int kRows, int kBegin, int kEnd>
  static FS_INLINE void AddDot(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][1]) {
    Groups<Fmt, kRows, kBegin, kEnd>(sub, in, dot);
  }

 private:
  template <class Fmt, int kRows, int kGroup, int kEnd>
  static FS_INLINE void Groups(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][1]) {
    if constexpr (kGroup < kEnd) {
      __m512i w = Fmt::template Codes<kGroup>(sub, 0);
      if constexpr (Fmt::kSigned) w = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
      for (int r = 0; r < kRows; ++r) {
        int32_t x;
        __builtin_memcpy(&x, in[r] + 4 * kGroup, 4);
        dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w, _mm512_set1_epi32(x));
      }
      Groups<Fmt, kRows, kGroup + 1, kEnd>(sub, in, dot);
    }
  }
};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_VEC_AVX512_INL_H_
