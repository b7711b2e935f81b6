// Element-wise ops over any vector wrapper `Vec`. A row never sees its neighbours.
#ifndef FARSIGHT_OPS_CPU_ELEMENTWISE_INL_H_
#define FARSIGHT_OPS_CPU_ELEMENTWISE_INL_H_

#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"
#include "ops/cpu/vec_math-inl.h"

namespace farsight {
namespace {

void RmsNormGroup(const float* in, const float* weight, float eps, int dim, float* out) {
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= dim; i += Vec::kLanes) sum = Vec::MulAdd(Vec::Load(in + i), Vec::Load(in + i), sum);
  if (i < dim) sum = Vec::MulAdd(LoadTail(in + i, dim - i), LoadTail(in + i, dim - i), sum);
  const float mean = Vec::Sum(sum) / static_cast<float>(dim);
  const Vec::F r = Vec::Set(1.0f / __builtin_sqrtf(mean + eps));
  for (i = 0; i + Vec::kLanes <= dim; i += Vec::kLanes) {
    Vec::Store(Vec::Mul(Vec::Mul(Vec::Load(in + i), r), Vec::Load(weight + i)), out + i);
  }
  if (i < dim) {
    StoreTail(Vec::Mul(Vec::Mul(LoadTail(in + i, dim - i), r), LoadTail(weight + i, dim - i)), out + i, dim - i);
  }
}

inline void RmsNormRows(const RmsNormParams& p, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    for (int g = 0; g < p.groups; ++g) {
      const int64_t at = static_cast<int64_t>(g) * p.dim;
      RmsNormGroup(p.in + t * p.in_stride + at, p.weight, p.eps, p.dim, p.out + t * p.out_stride + at);
    }
  }
}

inline void RopeHead(float* lo, float* hi, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + Vec::kLanes <= half; i += Vec::kLanes) {
    const Vec::F a = Vec::Load(lo + i);
    const Vec::F b = Vec::Load(hi + i);
    const Vec::F c = Vec::Load(cos + i);
    const Vec::F s = Vec::Load(sin + i);
    Vec::Store(Vec::Sub(Vec::Mul(a, c), Vec::Mul(b, s)), lo + i);
    Vec::Store(Vec::MulAdd(b, c, Vec::Mul(a, s)), hi + i);
  }
  if (i < half) {
    const int n = half - i;
    const Vec::F a = LoadTail(lo + i, n);
    const Vec::F b = LoadTail(hi + i, n);
    const Vec::F c = LoadTail(cos + i, n);
    const Vec::F s = LoadTail(sin + i, n);
    StoreTail(Vec::Sub(Vec::Mul(a, c), Vec::Mul(b, s)), lo + i, n);
    StoreTail(Vec::MulAdd(b, c, Vec::Mul(a, s)), hi + i, n);
  }
}

inline void RopeRows(const RopeParams& p, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    const int64_t angles = static_cast<int64_t>(t) * p.half_dim;
    for (int h = 0; h < p.num_heads; ++h) {
      float* x = p.x + t * p.stride + static_cast<int64_t>(h) * p.head_dim;
      RopeHead(x, x + p.half_dim, p.cos + angles, p.sin + angles, p.half_dim);
    }
  }
}

FS_INLINE Vec::F SwiGluOf(Vec::F gate, Vec::F up) {
  const Vec::F below = Vec::Add(Vec::Set(1), Exp(Vec::Sub(Vec::Set(0), gate)));
  return Vec::Mul(Vec::Div(gate, below), up);
}

inline void SwiGluRows(const SwiGluParams& p, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    const float* gate = p.in + static_cast<int64_t>(t) * 2 * p.ffn;
    const float* up = gate + p.ffn;
    float* out = p.out + static_cast<int64_t>(t) * p.ffn;
    int j = 0;
    for (; j + Vec::kLanes <= p.ffn; j += Vec::kLanes) {
      Vec::Store(SwiGluOf(Vec::Load(gate + j), Vec::Load(up + j)), out + j);
    }
    if (j < p.ffn) StoreTail(SwiGluOf(LoadTail(gate + j, p.ffn - j), LoadTail(up + j, p.ffn - j)), out + j, p.ffn - j);
  }
}

// The scale of a block from the bits of its largest magnitude (NaN and infinity compare above every number), and
// the factor that turns values into codes.
FS_INLINE float BlockScale(uint32_t max_bits, float* inverse) {
  const float max = __builtin_bit_cast(float, max_bits);
  const bool finite = max_bits < 0x7f800000u;
  // Below 2^-118 the factor would overflow: such a block is zero to every purpose.
  const bool codes = finite && max_bits >= 0x04800000u;
  *inverse = codes ? 127.0f / max : 0.0f;
  return finite ? (codes ? max / 127.0f : 0.0f) : __builtin_nanf("");
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ELEMENTWISE_INL_H_
