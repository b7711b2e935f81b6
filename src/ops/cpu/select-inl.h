// From scores to blocks: plain loops, which the compiler turns into vectors of the instruction set at hand.
#ifndef FARSIGHT_OPS_CPU_SELECT_INL_H_
#define FARSIGHT_OPS_CPU_SELECT_INL_H_

#include <cstdint>
#include <cstring>

namespace farsight {
namespace {

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

// Bit i: x[i] > limit, of up to 16.
uint32_t MaskAbove(const float* x, int n, float limit) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1);
  return _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, x), _mm512_set1_ps(limit), _CMP_GT_OQ);
#else
  uint32_t mask = 0;
  for (int i = 0; i < n; ++i) mask |= (x[i] > limit ? 1u : 0u) << i;
  return mask;
#endif
}

// Bisection for the limit that `want` numbers are above: a pass over all is a few vectors, and nothing of it depends on
// how the numbers lie, whereas a processor guesses wrong at every second number that enters a list of the best so far.
int TakeBest(const float* x, int n, int want, float least, int32_t* ids) {
  if (want <= 0) return 0;
  if (n <= want) {
    for (int i = 0; i < n; ++i) ids[i] = i;
    return n;
  }
  // More than `want` lie above `low`, no more than `want` above `high`.
  int64_t low = int64_t{OrderOf(least)} - 1;
  int64_t high = OrderOf(MaxValue(x, n));
  int above = 0;
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
  const float limit = FloatAt(static_cast<int32_t>(high));
  int equal = want - above;  // of those at the limit, the first
  int taken = 0;
  for (int first = 0; taken < want; first += 16) {
    const int some = n - first < 16 ? n - first : 16;
    uint32_t mask = MaskAbove(x + first, some, limit);
    for (int i = 0; i < some && equal > 0; ++i) {
      if (x[first + i] != limit) continue;
      mask |= 1u << i;
      --equal;
    }
    for (; mask != 0; mask &= mask - 1) ids[taken++] = first + __builtin_ctz(mask);
  }
  return want;
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_SELECT_INL_H_
