// The vector wrapper in plain C++: 16 lanes in arrays. It defines what every other wrapper has to do.
#ifndef FARSIGHT_OPS_CPU_VEC_SCALAR_INL_H_
#define FARSIGHT_OPS_CPU_VEC_SCALAR_INL_H_

#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"

#define FS_INLINE inline __attribute__((always_inline))

namespace farsight {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  static constexpr int kRowsAtOnce = 4;  // rows whose sums fit in the registers
  static constexpr bool kExpands = false;
  static constexpr int kSignedOffset = 0;  // what AddDot adds to the codes of Q8_0
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct Bytes {
    uint8_t v[64];
  };

  template <class Fn>
  static FS_INLINE F MapF(Fn fn) {
    F out;
    for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
    return out;
  }
  template <class Fn>
  static FS_INLINE Bytes MapBytes(Fn fn) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.v[i] = static_cast<uint8_t>(fn(i));
    return out;
  }

  static FS_INLINE F Set(float x) {
    return MapF([=](int) { return x; });
  }
  static FS_INLINE F Load(const float* p) {
    return MapF([=](int i) { return p[i]; });
  }
  static FS_INLINE void Store(F a, float* p) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static FS_INLINE F Add(F a, F b) {
    return MapF([&](int i) { return a.v[i] + b.v[i]; });
  }
  static FS_INLINE F Sub(F a, F b) {
    return MapF([&](int i) { return a.v[i] - b.v[i]; });
  }
  static FS_INLINE F Mul(F a, F b) {
    return MapF([&](int i) { return a.v[i] * b.v[i]; });
  }
  static FS_INLINE F Div(F a, F b) {
    return MapF([&](int i) { return a.v[i] / b.v[i]; });
  }
  static FS_INLINE F MulAdd(F a, F b, F c) {  // a * b + c; fused where the hardware has it
    return MapF([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static FS_INLINE F Min(F a, F b) {  // b where a or b is NaN
    return MapF([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static FS_INLINE F Max(F a, F b) {
    return MapF([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static FS_INLINE F Round(F a) {  // to nearest, ties to even
    return MapF([&](int i) { return __builtin_nearbyintf(a.v[i]); });
  }
  static FS_INLINE F PowerOfTwo(F whole) {  // 2^x for whole x in [-126, 127]; NaN gives anything
    return MapF([&](int i) {
      const float x = whole.v[i];
      const int32_t e = x >= -126 && x <= 127 ? static_cast<int32_t>(x) : 0;
      return __builtin_bit_cast(float, (e + 127) << 23);
    });
  }
  static FS_INLINE F Floor(F a) {
    return MapF([&](int i) { return __builtin_floorf(a.v[i]); });
  }
  static FS_INLINE F Fraction(F a) { return Sub(a, Floor(a)); }                            // at most 1, by rounding
  static FS_INLINE F TimesPowerOfFloor(F y, F a) { return Mul(y, PowerOfTwo(Floor(a))); }  // a in [-126, 127]
  // Eight rows of 32 bytes, `stride` apart: row d is the d-th 8 bytes from `at` on of each of four pages.
  static FS_INLINE void Weave(const uint8_t* const* pages, int64_t at, uint8_t* out, int64_t stride) {
    for (int d = 0; d < 8; ++d) {
      for (int e = 0; e < 4; ++e) __builtin_memcpy(out + d * stride + 8 * e, pages[e] + at + 8 * d, 8);
    }
  }
  // The sums of neighbours: 8 of a, then 8 of b.
  static FS_INLINE F PairSums(F a, F b) {
    return MapF([&](int i) { return i < 8 ? a.v[2 * i] + a.v[2 * i + 1] : b.v[2 * i - 16] + b.v[2 * i - 15]; });
  }
  static FS_INLINE float Sum(F a) {
    float s = 0;
    for (int i = 0; i < 16; ++i) s += a.v[i];
    return s;
  }
  // The sums and the largest values of four vectors. Which of the four a vector is changes nothing in its result.
  static FS_INLINE void Sums(const F (&x)[4], float* out) {
    for (int i = 0; i < 4; ++i) out[i] = Sum(x[i]);
  }
  static FS_INLINE void Tops(const F (&x)[4], float* out) {
    for (int i = 0; i < 4; ++i) out[i] = Largest(x[i]);
  }

  static FS_INLINE float Largest(F a) {  // any lane where one is NaN
    float top = a.v[0];
    for (int i = 1; i < 16; ++i) top = a.v[i] > top ? a.v[i] : top;
    return top;
  }

  static FS_INLINE float FromHalf(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 31u;
    const uint32_t mant = h & 1023u;
    if (exp == 0) {
      const float sub = static_cast<float>(mant) * 0x1p-24f;
      return sign != 0 ? -sub : sub;
    }
    const uint32_t e = exp == 31 ? 255u : exp + 112u;
    return __builtin_bit_cast(float, sign | (e << 23) | (mant << 13));
  }
  static FS_INLINE uint16_t U16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }
  static FS_INLINE F LoadF32(const uint8_t* p) {
    F out;
    __builtin_memcpy(out.v, p, sizeof(out.v));
    return out;
  }
  static FS_INLINE F LoadF16(const uint8_t* p) {
    return MapF([=](int i) { return FromHalf(U16(p + 2 * i)); });
  }
  static FS_INLINE F LoadBf16(const uint8_t* p) {
    return MapF([=](int i) { return __builtin_bit_cast(float, static_cast<uint32_t>(U16(p + 2 * i)) << 16); });
  }
  static FS_INLINE F LoadU8(const uint8_t* p) {
    return MapF([=](int i) { return static_cast<float>(p[i]); });
  }
  static FS_INLINE F LoadI8(const uint8_t* p) {
    return MapF([=](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  static FS_INLINE void StoreU16(uint16_t x, uint8_t* p) { __builtin_memcpy(p, &x, 2); }
  static FS_INLINE void StoreF32(F a, uint8_t* p) { __builtin_memcpy(p, a.v, sizeof(a.v)); }
  static FS_INLINE void StoreF16(F a, uint8_t* p) {
    for (int i = 0; i < 16; ++i) StoreU16(F32ToF16(a.v[i]), p + 2 * i);
  }
  static FS_INLINE void StoreBf16(F a, uint8_t* p) {
    for (int i = 0; i < 16; ++i) StoreU16(F32ToBF16(a.v[i]), p + 2 * i);
  }

  static FS_INLINE I SetI(int32_t x) {
    I out;
    for (int i = 0; i < 16; ++i) out.v[i] = x;
    return out;
  }
  static FS_INLINE F ToF(I a) {
    return MapF([&](int i) { return static_cast<float>(a.v[i]); });
  }

  static FS_INLINE Bytes LoadBytes(const uint8_t* p) {
    return MapBytes([=](int i) { return p[i]; });
  }
  static FS_INLINE void StoreBytes(Bytes a, uint8_t* p) { __builtin_memcpy(p, a.v, sizeof(a.v)); }
  static FS_INLINE Bytes Low4(Bytes a) {
    return MapBytes([&](int i) { return a.v[i] & 15; });
  }
  static FS_INLINE Bytes High4(Bytes a) {
    return MapBytes([&](int i) { return a.v[i] >> 4; });
  }
  static FS_INLINE Bytes Or(Bytes a, Bytes b) {
    return MapBytes([&](int i) { return a.v[i] | b.v[i]; });
  }
  template <int kBit>
  static FS_INLINE Bytes FifthBit(Bytes a) {  // bit kBit of every byte, moved to bit 4
    return MapBytes([&](int i) { return ((a.v[i] >> kBit) & 1) << 4; });
  }
  template <int kPair>
  static FS_INLINE Bytes TopBits(Bytes a) {  // bits 2 * kPair and above of every byte, moved to bits 4 and 5
    return MapBytes([&](int i) { return ((a.v[i] >> (2 * kPair)) & 3) << 4; });
  }

  // dot[r] += sum over groups [kBegin, kEnd) of the codes of a sub-block times the activations of row r.
  template <class Fmt, int kRows, int kBegin, int kEnd>
  static FS_INLINE void AddDot(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][1]) {
    DotGroups<Fmt, kRows, kBegin, kEnd>(sub, in, dot);
  }

 private:
  template <class Fmt, int kRows, int kGroup, int kEnd>
  static FS_INLINE void DotGroups(const uint8_t* sub, const uint8_t* const* in, I (&dot)[kRows][1]) {
    if constexpr (kGroup < kEnd) {
      const Bytes w = Fmt::template Codes<kGroup>(sub, 0);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < 64; ++i) {
          const int code = Fmt::kSigned ? static_cast<int8_t>(w.v[i]) : w.v[i];
          dot[r][0].v[i / 4] += code * static_cast<int8_t>(in[r][4 * kGroup + i % 4]);
        }
      }
      DotGroups<Fmt, kRows, kGroup + 1, kEnd>(sub, in, dot);
    }
  }
};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_VEC_SCALAR_INL_H_
