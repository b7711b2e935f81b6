// Element and weight formats, their block geometry, and the scalar half-precision conversions.
#ifndef FARSIGHT_BASE_DTYPE_H_
#define FARSIGHT_BASE_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace farsight {

// Quantised formats are the GGUF block formats (docs/numerics.md gives each layout).
enum class DType : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

struct DTypeInfo {
  const char* name;  // as in GGUF tables, e.g. "Q4_1"
  int block_elems;   // elements in one block; rows must be a multiple of it
  int block_bytes;   // bytes of one block
};

constexpr DTypeInfo InfoOf(DType t) {
  switch (t) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
  }
  return {"?", 1, 1};
}

constexpr bool IsQuantised(DType t) { return InfoOf(t).block_elems > 1; }

// Bytes of `elems` elements; elems must be a multiple of block_elems. The caller has bounded elems (no overflow check).
constexpr size_t BytesOf(DType t, size_t elems) {
  return elems / static_cast<size_t>(InfoOf(t).block_elems) * static_cast<size_t>(InfoOf(t).block_bytes);
}

// bf16: the upper half of an f32. ToBF16 rounds to nearest even and keeps NaN a NaN.
inline float BF16ToF32(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }
inline uint16_t F32ToBF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// IEEE binary16, subnormals, infinities and NaN included; F32ToF16 rounds to nearest even.
inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exp = (h >> 10) & 31u;
  const uint32_t mant = h & 1023u;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mant << 13));
  if (exp != 0) return std::bit_cast<float>(sign | ((exp + 112u) << 23) | (mant << 13));
  const float sub = static_cast<float>(mant) * 0x1p-24f;
  return (h & 0x8000u) != 0 ? -sub : sub;
}
inline uint16_t F32ToF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (a < 0x38800000u) {                                               // subnormal or zero in f16
    const float scaled = std::bit_cast<float>(a) + 0.5f;               // aligns the f16 lsb with the f32 lsb
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

}  // namespace farsight

#endif  // FARSIGHT_BASE_DTYPE_H_
