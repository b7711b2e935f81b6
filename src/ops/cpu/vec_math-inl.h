// Row ends and exponentials, over any vector wrapper `Vec`.
#ifndef FARSIGHT_OPS_CPU_VEC_MATH_INL_H_
#define FARSIGHT_OPS_CPU_VEC_MATH_INL_H_

#include "ops/cpu/op_kernels.h"

namespace farsight {
namespace {

// Up to kLanes values of a row's end, the rest zero.
FS_INLINE Vec::F LoadTail(const float* p, int n) {
  float buffer[Vec::kLanes] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return Vec::Load(buffer);
}
FS_INLINE void StoreTail(Vec::F x, float* p, int n) {
  float buffer[Vec::kLanes];
  Vec::Store(x, buffer);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

// e^x to within 2 ulp for x in [-87, 88], clamped to that range; NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2,
// ln 2 in two parts so that r is exact to the last bit; then the Taylor polynomial of degree 7 (its error 5e-9 is
// below an eighth of an ulp).
FS_INLINE Vec::F Exp(Vec::F x) {
  x = Vec::Max(Vec::Set(-87.0f), Vec::Min(Vec::Set(88.0f), x));
  const Vec::F n = Vec::Round(Vec::Mul(x, Vec::Set(1.44269504f)));
  Vec::F r = Vec::MulAdd(n, Vec::Set(-0.693359375f), x);
  r = Vec::MulAdd(n, Vec::Set(2.12194440e-4f), r);
  Vec::F y = Vec::Set(1.0f / 5040);
  y = Vec::MulAdd(y, r, Vec::Set(1.0f / 720));
  y = Vec::MulAdd(y, r, Vec::Set(1.0f / 120));
  y = Vec::MulAdd(y, r, Vec::Set(1.0f / 24));
  y = Vec::MulAdd(y, r, Vec::Set(1.0f / 6));
  y = Vec::MulAdd(y, r, Vec::Set(0.5f));
  y = Vec::MulAdd(y, Vec::Mul(r, r), Vec::Add(r, Vec::Set(1)));
  return Vec::Mul(y, Vec::PowerOfTwo(n));
}

// 2^x for x <= 0, 1e-38 below -126; NaN stays NaN. 2^floor(x) times a polynomial of degree 6 in what is left (relative
// error 2e-8, none in whole x).
FS_INLINE Vec::F Exp2Below(Vec::F x) {
  x = Vec::Max(Vec::Set(-126.0f), x);
  const Vec::F r = Vec::Fraction(x);
  Vec::F y = Vec::Set(2.16129149e-4f);
  y = Vec::MulAdd(y, r, Vec::Set(1.2467847e-3f));
  y = Vec::MulAdd(y, r, Vec::Set(9.67545155e-3f));
  y = Vec::MulAdd(y, r, Vec::Set(5.54852821e-2f));
  y = Vec::MulAdd(y, r, Vec::Set(0.240229309f));
  y = Vec::MulAdd(y, r, Vec::Set(0.693147063f));
  y = Vec::MulAdd(y, r, Vec::Set(1.0f));
  return Vec::TimesPowerOfFloor(y, x);
}

// e^x for x <= 0, as a softmax needs it: the rounding of x log2 e adds an error of |x| e^x 2^-24, at most 3e-8 of the
// largest term.
constexpr float kLog2e = 1.44269504f;
FS_INLINE Vec::F ExpBelow(Vec::F x) { return Exp2Below(Vec::Mul(x, Vec::Set(kLog2e))); }

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_VEC_MATH_INL_H_
