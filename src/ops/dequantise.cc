#include "ops/dequantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace farsight {
namespace {

template <typename T>
T Load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

float Half(const std::byte* p) { return F16ToF32(Load<uint16_t>(p)); }
int Byte(const std::byte* p, int i) { return static_cast<int>(p[i]); }
int SignedByte(const std::byte* p, int i) { return static_cast<int8_t>(p[i]); }

// Q4_0, Q4_1, Q5_0, Q5_1: low nibbles are elements 0..15, high nibbles 16..31; `high` holds the fifth bits.
void Nibbles32(const std::byte* qs, uint32_t high, float d, float offset, float* out) {
  for (int j = 0; j < 16; ++j) {
    const int lo = (Byte(qs, j) & 15) | static_cast<int>(((high >> j) & 1u) << 4);
    const int hi = (Byte(qs, j) >> 4) | static_cast<int>(((high >> (j + 16)) & 1u) << 4);
    out[j] = d * static_cast<float>(lo) + offset;
    out[j + 16] = d * static_cast<float>(hi) + offset;
  }
}

void SuperBlockK45(const std::byte* b, bool five_bits, float* out) {
  const float d = Half(b);
  const float dmin = Half(b + 2);
  const auto* scales = reinterpret_cast<const uint8_t*>(b + 4);
  const std::byte* qh = b + 16;
  const std::byte* qs = five_bits ? b + 48 : b + 16;
  for (int j = 0; j < 8; ++j) {
    uint8_t sc;
    uint8_t mn;
    UnpackScaleMin6(scales, j, &sc, &mn);
    const float scale = d * static_cast<float>(sc);
    const float minimum = dmin * static_cast<float>(mn);
    for (int i = 0; i < 32; ++i) {
      int q = Byte(qs, (j / 2) * 32 + i);
      q = (j % 2) != 0 ? q >> 4 : q & 15;
      if (five_bits && ((Byte(qh, i) >> j) & 1) != 0) q += 16;
      out[32 * j + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void SuperBlockK6(const std::byte* b, float* out) {
  const float d = Half(b + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* ql = b + 64 * half;
    const std::byte* qh = b + 128 + 32 * half;
    const std::byte* sc = b + 192 + 8 * half;
    for (int part = 0; part < 4; ++part) {
      for (int i = 0; i < 32; ++i) {
        int q = Byte(ql, i + 32 * (part % 2));
        q = part < 2 ? q & 15 : q >> 4;
        q |= ((Byte(qh, i) >> (2 * part)) & 3) << 4;
        const int scale = SignedByte(sc, 2 * part + i / 16);
        out[128 * half + 32 * part + i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
      }
    }
  }
}

}  // namespace

void UnpackScaleMin6(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    *min = static_cast<uint8_t>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

void DequantiseRow(DType dtype, const std::byte* src, int64_t n, float* out) {
  const DTypeInfo info = InfoOf(dtype);
  for (int64_t i = 0; i < n; i += info.block_elems, src += info.block_bytes) {
    float* o = out + i;
    switch (dtype) {
      case DType::kF32:
        *o = Load<float>(src);
        break;
      case DType::kF16:
        *o = Half(src);
        break;
      case DType::kBF16:
        *o = BF16ToF32(Load<uint16_t>(src));
        break;
      case DType::kQ4_0:
        Nibbles32(src + 2, 0, Half(src), -8.0f * Half(src), o);
        break;
      case DType::kQ4_1:
        Nibbles32(src + 4, 0, Half(src), Half(src + 2), o);
        break;
      case DType::kQ5_0:
        Nibbles32(src + 6, Load<uint32_t>(src + 2), Half(src), -16.0f * Half(src), o);
        break;
      case DType::kQ5_1:
        Nibbles32(src + 8, Load<uint32_t>(src + 4), Half(src), Half(src + 2), o);
        break;
      case DType::kQ8_0:
        for (int j = 0; j < 32; ++j) o[j] = Half(src) * static_cast<float>(SignedByte(src + 2, j));
        break;
      case DType::kQ4_K:
        SuperBlockK45(src, false, o);
        break;
      case DType::kQ5_K:
        SuperBlockK45(src, true, o);
        break;
      case DType::kQ6_K:
        SuperBlockK6(src, o);
        break;
    }
  }
}

void QuantiseRowQ8(const float* x, int64_t n, std::byte* out) {
  constexpr int kBlock = 32;
  constexpr float kTop = 127;
  constexpr float kLargestHalf = 65504;
  for (; n > 0; n -= kBlock, x += kBlock, out += InfoOf(DType::kQ8_0).block_bytes) {
    float range = 0;
    for (int i = 0; i < kBlock; ++i) range = std::max(range, std::fabs(x[i]));
    const uint16_t half = F32ToF16(std::min(range / kTop, kLargestHalf));
    const float scale = F16ToF32(half);
    std::memcpy(out, &half, sizeof(half));
    for (int i = 0; i < kBlock; ++i) {
      const float code = scale > 0 ? std::nearbyint(std::clamp(x[i] / scale, -kTop, kTop)) : 0.0f;
      out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
  }
}

}  // namespace farsight
