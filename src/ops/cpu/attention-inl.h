// Attention kernels over any vector wrapper `Vec`; the including file has chosen one.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_INL_H_
#define FARSIGHT_OPS_CPU_ATTENTION_INL_H_

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/sketch-inl.h"
#include "ops/cpu/vec_math-inl.h"  // ExpBelow

namespace farsight {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int kAnyRows = __INT_MAX__;

struct ElemF32 {
  static constexpr int kBytes = 4;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadF32(p); }
  static FS_INLINE void Store(Vec::F x, uint8_t* p) { Vec::StoreF32(x, p); }
};
struct ElemF16 {
  static constexpr int kBytes = 2;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadF16(p); }
  static FS_INLINE void Store(Vec::F x, uint8_t* p) { Vec::StoreF16(x, p); }
};
struct ElemBf16 {
  static constexpr int kBytes = 2;
  static FS_INLINE Vec::F Load(const uint8_t* p) { return Vec::LoadBf16(p); }
  static FS_INLINE void Store(Vec::F x, uint8_t* p) { Vec::StoreBf16(x, p); }
};

// Rows of 16 columns one after the other: what a tile of many queries reads again and again is converted once and then
// lies in the order in which it is read.
template <class Elem>
void Pack(const std::byte* b, int64_t ldb, int n, int k, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(b);
  for (int j = 0; j < k; ++j, bytes += ldb * Elem::kBytes) {
    float* to = out + static_cast<int64_t>(j) * 16;
    for (int at = 0; at < n; at += 16, to += static_cast<int64_t>(k) * 16) {
      for (int v = 0; v < 16; v += Vec::kLanes) Vec::Store(Elem::Load(bytes + (at + v) * Elem::kBytes), to + v);
    }
  }
}

// Rows and panels of 16 columns whose sums the registers hold. With 24 sums of six rows a step reads ten values for 24
// multiply-adds; twelve rows of one panel would need thirteen for twelve, and more addresses than there are registers.
constexpr int kBandRows = 6;
constexpr int kBandPanels = Vec::kLanes == 16 ? 4 : 1;

// kRows rows of a times kPanels panels that start at column `at`.
template <int kRows, int kPanels>
void Band(const float* const* a, float* const* c, const float* panel, int at, int k, bool accumulate,
          const float* keep) {
  constexpr int kVecs = 16 / Vec::kLanes;
  Vec::F acc[kRows][kPanels * kVecs];
  if (!accumulate) {
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kPanels * kVecs; ++v) acc[i][v] = Vec::Set(0);
    }
  } else {
    for (int i = 0; i < kRows; ++i) {
      const Vec::F by = Vec::Set(keep == nullptr ? 1.0f : keep[i]);
      for (int v = 0; v < kPanels * kVecs; ++v) acc[i][v] = Vec::Mul(Vec::Load(c[i] + at + v * Vec::kLanes), by);
    }
  }
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = a[i];
  const int64_t panel_floats = static_cast<int64_t>(k) * 16;
  for (int j = 0; j < k; ++j, panel += 16) {
    Vec::F x[kPanels * kVecs];
    for (int v = 0; v < kPanels * kVecs; ++v) {
      x[v] = Vec::Load(panel + v / kVecs * panel_floats + v % kVecs * Vec::kLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vec::F y = Vec::Set(rows[i][j]);
      for (int v = 0; v < kPanels * kVecs; ++v) acc[i][v] = Vec::MulAdd(y, x[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kPanels * kVecs; ++v) Vec::Store(acc[i][v], c[i] + at + v * Vec::kLanes);
  }
}

template <int kPanels>
void Bands(const float* const* a, float* const* c, int m, const float* panel, int at, int k, bool accumulate,
           const float* keep) {
  const auto from = [keep](int i) { return keep == nullptr ? nullptr : keep + i; };
  int i = 0;
  for (; i + kBandRows <= m; i += kBandRows) {
    Band<kBandRows, kPanels>(a + i, c + i, panel, at, k, accumulate, from(i));
  }
  for (; i + 3 <= m; i += 3) Band<3, kPanels>(a + i, c + i, panel, at, k, accumulate, from(i));
  for (; i < m; ++i) Band<1, kPanels>(a + i, c + i, panel, at, k, accumulate, from(i));
}

void Product(const float* const* a, float* const* c, int m, const float* panels, int n, int k, bool accumulate,
             const float* keep) {
  const int64_t panel_floats = static_cast<int64_t>(k) * 16;
  int at = 0;
  if constexpr (kBandPanels > 1) {
    for (; at + kBandPanels * 16 <= n; at += kBandPanels * 16, panels += kBandPanels * panel_floats) {
      Bands<kBandPanels>(a, c, m, panels, at, k, accumulate, keep);
    }
  }
  for (; at < n; at += 16, panels += panel_floats) Bands<1>(a, c, m, panels, at, k, accumulate, keep);
}

// kRows rows of a times kVecs vectors of columns that lie as they were stored: each is converted once, and sums of many
// columns run side by side, since few rows alone would wait for the multiply-adds.
template <class Elem, int kRows, int kVecs>
FS_INLINE void StoredColumns(const float* const* a, float* const* c, const uint8_t* b, int64_t row_bytes, int at, int k,
                             const float* keep, const uint8_t* next) {
  Vec::F acc[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) {
      acc[i][v] = keep != nullptr ? Vec::Mul(Vec::Load(c[i] + at + v * Vec::kLanes), Vec::Set(keep[i])) : Vec::Set(0);
    }
  }
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = a[i];
  for (int j = 0; j < k; ++j, b += row_bytes, next += row_bytes) {
    for (int line = 0; line < kVecs * Vec::kLanes * Elem::kBytes; line += 64)
      __builtin_prefetch(next + line, 0, kSecondLevel);
    Vec::F y[kRows];
    for (int i = 0; i < kRows; ++i) y[i] = Vec::Set(rows[i][j]);
    for (int v = 0; v < kVecs; ++v) {
      const Vec::F x = Elem::Load(b + v * Vec::kLanes * Elem::kBytes);
      for (int i = 0; i < kRows; ++i) acc[i][v] = Vec::MulAdd(y[i], x, acc[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) Vec::Store(acc[i][v], c[i] + at + v * Vec::kLanes);
  }
}

template <class Elem, int kRows>
void StoredRows(const StoredProduct& p) {
  const int64_t row_bytes = p.ldb * Elem::kBytes;
  const auto* b = reinterpret_cast<const uint8_t*>(p.b);
  const auto* next = reinterpret_cast<const uint8_t*>(p.next);
  constexpr int kWide = 4 * Vec::kLanes;
  int at = 0;
  for (; at + kWide <= p.n; at += kWide, b += kWide * Elem::kBytes, next += kWide * Elem::kBytes) {
    StoredColumns<Elem, kRows, 4>(p.a, p.c, b, row_bytes, at, p.k, p.keep, next);
  }
  for (; at < p.n; at += 16, b += 16 * Elem::kBytes, next += 16 * Elem::kBytes) {
    StoredColumns<Elem, kRows, 16 / Vec::kLanes>(p.a, p.c, b, row_bytes, at, p.k, p.keep, next);
  }
}

// Rows whose sums the registers hold together. With sixteen lanes a page is best read as it lies, whatever the number
// of rows: converting it again for every six of them costs less than writing it out wide and reading that. With eight
// lanes a conversion serves too few products, so that many rows pack first.
constexpr int kStoredBand = Vec::kLanes == 16 ? 6 : 4;
constexpr int kStoredRows = Vec::kLanes == 16 ? kAnyRows : kStoredBand;

template <class Elem>
void ProductOfStored(const StoredProduct& whole) {
  for (StoredProduct p = whole; p.m > 0; p.m -= kStoredBand) {
    switch (p.m) {
      case 1:
        return StoredRows<Elem, 1>(p);
      case 2:
        return StoredRows<Elem, 2>(p);
      case 3:
        return StoredRows<Elem, 3>(p);
      case 4:
        return StoredRows<Elem, 4>(p);
      case 5:
        return StoredRows < Elem, kStoredBand == 6 ? 5 : 4 > (p);
      default:
        StoredRows<Elem, kStoredBand>(p);
    }
    p.a += kStoredBand;
    p.c += kStoredBand;
    if (p.keep != nullptr) p.keep += kStoredBand;
    p.next = p.b;
  }
}

void Turn16(const std::byte* const* rows, int n, int k, std::byte* out, int64_t ld) {
  for (int e = 0; e < n; e += 8) {
    const uint8_t* from[8];
    for (int i = 0; i < 8; ++i) from[i] = reinterpret_cast<const uint8_t*>(rows[e + i]);
    for (int d = 0; d < k; d += 8) Vec::Turn8(from, 2 * d, reinterpret_cast<uint8_t*>(out) + 2 * (d * ld + e), 2 * ld);
  }
}

FS_INLINE float Exp2One(float x) {
  float lanes[Vec::kLanes];
  Vec::Store(Exp2Below(Vec::Set(x)), lanes);
  return lanes[0];
}

// The sum of 2^(s - shift) over s[0, count), written over s; zero in [count, n).
FS_INLINE float ExpRow(float* s, int count, int n, float shift_to) {
  const Vec::F shift = Vec::Set(shift_to);
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) {
    const Vec::F e = Exp2Below(Vec::Sub(Vec::Load(s + i), shift));
    Vec::Store(e, s + i);
    sum = Vec::Add(sum, e);
  }
  if (i < count) {
    Vec::Store(Exp2Below(Vec::Sub(Vec::Load(s + i), shift)), s + i);
    for (int j = count; j < i + Vec::kLanes; ++j) s[j] = 0;
    sum = Vec::Add(sum, Vec::Load(s + i));
    i += Vec::kLanes;
  }
  for (; i < n; ++i) s[i] = 0;
  return Vec::Sum(sum);
}

// kRows rows side by side, all of n scores: a row alone is a chain of a maximum, exponentials and a sum that leaves the
// processor waiting. What happens to a row is what ExpRow does.
template <int kRows>
FS_INLINE void ExpRows(float* const* s, int n, const float* shift_to, float* total) {
  Vec::F shift[kRows];
  Vec::F sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    shift[r] = Vec::Set(shift_to[r]);
    sum[r] = Vec::Set(0);
  }
  for (int i = 0; i < n; i += Vec::kLanes) {
    for (int r = 0; r < kRows; ++r) {
      const Vec::F e = Exp2Below(Vec::Sub(Vec::Load(s[r] + i), shift[r]));
      Vec::Store(e, s[r] + i);
      sum[r] = Vec::Add(sum[r], e);
    }
  }
  for (int r = 0; r < kRows; ++r) total[r] = Vec::Sum(sum[r]);
}

template <int kRows>
FS_INLINE void SoftmaxGroup(const SoftmaxBlock& b, int first) {
  float* const* s = b.s + first;
  Vec::F top[kRows];
  bool whole = true;
  for (int r = 0; r < kRows; ++r) {
    const int count = b.count[first + r];
    whole = whole && count == b.n;
    for (int i = count; i < b.n; ++i) s[r][i] = kMinusInfinity;
    top[r] = Vec::Load(s[r]);
  }
  for (int i = Vec::kLanes; i < b.n; i += Vec::kLanes) {
    for (int r = 0; r < kRows; ++r) top[r] = Vec::Max(top[r], Vec::Load(s[r] + i));
  }
  float max[kRows];
  float total[kRows];
  for (int r = 0; r < kRows; ++r) {
    const float before = b.m[b.state[first + r]];
    max[r] = Vec::Largest(top[r]);
    max[r] = max[r] > before ? max[r] : before;
  }
  if (whole) {
    ExpRows<kRows>(s, b.n, max, total);
  } else {
    for (int r = 0; r < kRows; ++r) total[r] = ExpRow(s[r], b.count[first + r], b.n, max[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    float* m = b.m + b.state[first + r];
    float* l = b.l + b.state[first + r];
    const float keep = *m == kMinusInfinity ? 0.0f : *m == max[r] ? 1.0f : Exp2One(*m - max[r]);
    *l = *l * keep + total[r];
    *m = max[r];
    b.keep[first + r] = keep;
  }
}

void SoftmaxRows(const SoftmaxBlock& b) {
  int i = 0;
  for (; i + 4 <= b.rows; i += 4) SoftmaxGroup<4>(b, i);
  if (i + 3 == b.rows) return SoftmaxGroup<3>(b, i);
  for (; i < b.rows; ++i) SoftmaxGroup<1>(b, i);
}

// Values one after another, as f32 and from f32.
template <class Elem>
void Widen(const std::byte* from, int n, float* to) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) Vec::Store(Elem::Load(bytes + i * Elem::kBytes), to + i);
  if (i < n) {
    uint8_t rest[Vec::kLanes * Elem::kBytes] = {};
    __builtin_memcpy(rest, bytes + i * Elem::kBytes, static_cast<size_t>((n - i) * Elem::kBytes));
    StoreTail(Elem::Load(rest), to + i, n - i);
  }
}

template <class Elem>
void Narrow(const float* from, int n, std::byte* to) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) Elem::Store(Vec::Load(from + i), bytes + i * Elem::kBytes);
  if (i < n) {
    uint8_t rest[Vec::kLanes * Elem::kBytes];
    Elem::Store(LoadTail(from + i, n - i), rest);
    __builtin_memcpy(bytes + i * Elem::kBytes, rest, static_cast<size_t>((n - i) * Elem::kBytes));
  }
}

float ExpSum(float* x, int n, float max) {
  const Vec::F shift = Vec::Set(max);
  Vec::F sum = Vec::Set(0);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) {
    const Vec::F e = ExpBelow(Vec::Sub(Vec::Load(x + i), shift));
    Vec::Store(e, x + i);
    sum = Vec::Add(sum, e);
  }
  float total = Vec::Sum(sum);
  if (i < n) {
    StoreTail(ExpBelow(Vec::Sub(LoadTail(x + i, n - i), shift)), x + i, n - i);
    for (; i < n; ++i) total += x[i];
  }
  return total;
}

float MaxValue(const float* x, int n) {
  float top = x[0];
  int i = 0;
  if (n >= Vec::kLanes) {
    Vec::F v = Vec::Load(x);
    for (i = Vec::kLanes; i + Vec::kLanes <= n; i += Vec::kLanes) v = Vec::Max(v, Vec::Load(x + i));
    top = Vec::Largest(v);
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

}  // namespace
}  // namespace farsight

#include "ops/cpu/select-inl.h"  // needs MaxValue

namespace farsight {
namespace {

constexpr AttentionKernels kAttentionKernels = {
    {Pack<ElemF32>, Pack<ElemF16>, Pack<ElemBf16>},
    {Widen<ElemF32>, Widen<ElemF16>, Widen<ElemBf16>},
    {Narrow<ElemF32>, Narrow<ElemF16>, Narrow<ElemBf16>},
    Product,
    {ProductOfStored<ElemF32>, ProductOfStored<ElemF16>, ProductOfStored<ElemBf16>},
    kStoredRows,
    Turn16,
    SoftmaxRows,
    ExpSum,
    MaxValue,
    BlockMax,
    TakeBest,
    SketchBlock};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_INL_H_
