// Attention kernels over any vector wrapper `Vec`; the including file has chosen one.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_INL_H_
#define FARSIGHT_OPS_CPU_ATTENTION_INL_H_

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/sketch-inl.h"
#include "ops/cpu/vec_math-inl.h"  // ExpBelow

namespace farsight {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

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

// What a tile of many queries reads again and again is converted once.
template <class Elem>
void Pack(const StoredProduct& p) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p.b);
  const int64_t row_bytes = p.ldb * Elem::kBytes;
  float* to = p.packed;
  for (int j = 0; j < p.k; ++j, to += p.n, bytes += row_bytes) {
    const auto* next = reinterpret_cast<const uint8_t*>(p.next[j / p.next_rows]) + j % p.next_rows * row_bytes;
    for (int line = 0; line < p.n * Elem::kBytes; line += 64) __builtin_prefetch(next + line, 0, kSecondLevel);
    for (int at = 0; at < p.n; at += Vec::kLanes) Vec::Store(Elem::Load(bytes + at * Elem::kBytes), to + at);
  }
}

// Rows and panels of 16 columns whose sums the registers hold. With 24 sums of six rows a step reads ten values for 24
// multiply-adds; twelve rows of one panel would need thirteen for twelve, and more addresses than there are registers.
constexpr int kBandRows = 6;
constexpr int kBandPanels = Vec::kLanes == 16 ? 4 : 1;

// kRows rows of a times kPanels panels that start at column `at`.
template <int kRows, int kPanels>
void Band(const float* const* a, float* const* c, const WideMatrix& b, int at, int k, bool accumulate,
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
  const float* panel = b.x + at / 16 * b.panel;
  const int64_t step = b.row;
  const int64_t panel_floats = b.panel;
  for (int j = 0; j < k; ++j, panel += step) {
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

template <int kRows, int kPanels>
void LastBand(const float* const* a, float* const* c, int m, const WideMatrix& b, int at, int k, bool accumulate,
              const float* keep) {
  if (m == kRows) return Band<kRows, kPanels>(a, c, b, at, k, accumulate, keep);
  if constexpr (kRows > 1) LastBand<kRows - 1, kPanels>(a, c, m, b, at, k, accumulate, keep);
}

template <int kPanels>
void Bands(const float* const* a, float* const* c, int m, const WideMatrix& b, int at, int k, bool accumulate,
           const float* keep) {
  const auto from = [keep](int i) { return keep == nullptr ? nullptr : keep + i; };
  int i = 0;
  for (; i + kBandRows <= m; i += kBandRows) {
    Band<kBandRows, kPanels>(a + i, c + i, b, at, k, accumulate, from(i));
  }
  LastBand<kBandRows - 1, kPanels>(a + i, c + i, m - i, b, at, k, accumulate, from(i));
}

void Product(const float* const* a, float* const* c, int m, const WideMatrix& b, int n, int k, bool accumulate,
             const float* keep) {
  int at = 0;
  if constexpr (kBandPanels > 1) {
    for (; at + kBandPanels * 16 <= n; at += kBandPanels * 16) {
      Bands<kBandPanels>(a, c, m, b, at, k, accumulate, keep);
    }
  }
  for (; at < n; at += 16) Bands<1>(a, c, m, b, at, k, accumulate, keep);
}

// kRows rows of a times kVecs vectors of columns that lie as they were stored: each is converted once, and sums of many
// columns run side by side, since few rows alone would wait for the multiply-adds. With kPack what was converted also
// goes to `packed`, for the rows that follow.
template <class Elem, int kRows, int kVecs, bool kPack>
FS_INLINE void StoredColumns(const StoredProduct& p, int at) {
  const int64_t row_bytes = p.ldb * Elem::kBytes;
  const auto* b = reinterpret_cast<const uint8_t*>(p.b) + at * Elem::kBytes;
  float* packed = p.packed + at;
  float* const* c = p.c;
  const float* keep = p.keep;
  Vec::F acc[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) {
      acc[i][v] = keep != nullptr ? Vec::Mul(Vec::Load(c[i] + at + v * Vec::kLanes), Vec::Set(keep[i])) : Vec::Set(0);
    }
  }
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = p.a[i];
  const std::byte* const* pages = p.next;
  for (int first = 0; first < p.k; first += p.next_rows, ++pages) {
    const auto* next = reinterpret_cast<const uint8_t*>(*pages) + at * Elem::kBytes;
    const int end = p.k - first < p.next_rows ? p.k : first + p.next_rows;
    for (int j = first; j < end; ++j, b += row_bytes, next += row_bytes) {
      for (int line = 0; line < kVecs * Vec::kLanes * Elem::kBytes; line += 64)
        __builtin_prefetch(next + line, 0, kSecondLevel);
      Vec::F y[kRows];
      for (int i = 0; i < kRows; ++i) y[i] = Vec::Set(rows[i][j]);
      for (int v = 0; v < kVecs; ++v) {
        const Vec::F x = Elem::Load(b + v * Vec::kLanes * Elem::kBytes);
        if constexpr (kPack) Vec::Store(x, packed + int64_t{j} * p.n + v * Vec::kLanes);
        for (int i = 0; i < kRows; ++i) acc[i][v] = Vec::MulAdd(y[i], x, acc[i][v]);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVecs; ++v) Vec::Store(acc[i][v], c[i] + at + v * Vec::kLanes);
  }
}

template <class Elem, int kRows, bool kPack>
void StoredRows(const StoredProduct& p) {
  constexpr int kWide = 4 * Vec::kLanes;
  int at = 0;
  for (; at + kWide <= p.n; at += kWide) StoredColumns<Elem, kRows, 4, kPack>(p, at);
  for (; at < p.n; at += 16) StoredColumns<Elem, kRows, 16 / Vec::kLanes, kPack>(p, at);
}

// Rows whose sums the registers hold together.
constexpr int kStoredBand = Vec::kLanes == 16 ? 6 : 4;

template <class Elem, int kRows>
void FewStoredRows(const StoredProduct& p) {
  if (p.m == kRows) return StoredRows<Elem, kRows, false>(p);
  if constexpr (kRows > 1) FewStoredRows<Elem, kRows - 1>(p);
}

// Few rows read a page as it lies. Of many the first few write down what they convert, and the others read that: a
// conversion takes as long as two multiply-adds. With eight lanes it serves too few of them, and packing goes first.
template <class Elem>
void ProductOfStored(const StoredProduct& p) {
  if (p.m <= kStoredBand) return FewStoredRows<Elem, kStoredBand>(p);
  int done = 0;
  if constexpr (Vec::kLanes == 16) {
    StoredRows<Elem, kStoredBand, true>(p);
    done = kStoredBand;
  } else {
    Pack<Elem>(p);
  }
  Product(p.a + done, p.c + done, p.m - done, {p.packed, p.n, 16}, p.n, p.k, p.keep != nullptr,
          p.keep == nullptr ? nullptr : p.keep + done);
}

template <class Elem>
void WeavePooled(const PooledPages& p) {
  const int columns = (p.entries + 15) / 16 * 16;
  const int padded = p.padded;
  const int per_block = p.per_block;
  const int run_bytes = per_block * Elem::kBytes;  // of a page's entries at one channel
  const int row_bytes = columns * Elem::kBytes;
  const auto* pages = reinterpret_cast<const uint8_t* const*>(p.pages);
  auto* keys = reinterpret_cast<uint8_t*>(p.keys);
  for (int at = 0; at < row_bytes;) {
    if (run_bytes == 8 && padded % 8 == 0 && Elem::kBytes == 2) {
      for (int d = 0; d < padded; d += 8) Vec::Weave(pages, 8 * d, keys + d * row_bytes + at, row_bytes);
      pages += 4;
      at += 32;
      continue;
    }
    const int n = row_bytes - at < run_bytes ? row_bytes - at : run_bytes;
    for (int d = 0; d < padded; ++d) {
      __builtin_memcpy(keys + d * row_bytes + at, *pages + d * run_bytes, static_cast<size_t>(n));
    }
    ++pages;
    at += n;
  }
  auto* values = reinterpret_cast<uint8_t*>(p.values);
  pages = reinterpret_cast<const uint8_t* const*>(p.pages);
  const int entry_bytes = padded * Elem::kBytes;
  int skip = p.first;
  for (int left = p.entries; left > 0; left -= per_block, ++pages) {
    const int n = left < per_block ? left : per_block;
    const int first = skip < n ? skip : n;
    const auto bytes = static_cast<size_t>((n - first) * entry_bytes);
    __builtin_memcpy(values, *pages + (per_block + first) * entry_bytes, bytes);
    values += bytes;
    skip -= first;
  }
}

void ShareWeights(float* top, const float* m, const float* factor, int n) {
  for (int i = 0; i < n; i += Vec::kLanes) {
    const int left = n - i;
    if (left < Vec::kLanes) {
      const Vec::F fallen = Vec::Sub(LoadTail(top + i, left), LoadTail(m + i, left));
      return StoreTail(Vec::Mul(Exp2Below(fallen), LoadTail(factor + i, left)), top + i, left);
    }
    const Vec::F fallen = Vec::Sub(Vec::Load(top + i), Vec::Load(m + i));
    Vec::Store(Vec::Mul(Exp2Below(fallen), Vec::Load(factor + i)), top + i);
  }
}

void MixWeights(const float* w, int64_t stride, const float* share, int num, int n, float* out) {
  for (int i = 0; i < n; i += Vec::kLanes) {
    Vec::F sum = Vec::Mul(Vec::Set(share[0]), Vec::Load(w + i));
    for (int g = 1; g < num; ++g) sum = Vec::MulAdd(Vec::Set(share[g]), Vec::Load(w + g * stride + i), sum);
    Vec::Store(sum, out + i);
  }
}

void BlockSums(const float* x, const float* factors, int reach, int per_block, int blocks, float* out) {
  if (Vec::kLanes % per_block != 0 || reach > 2 * per_block) {  // in no order that vectors could add in
    for (int b = 0; b < blocks; ++b, x += per_block) {
      float sum = 0;
      for (int i = 0; i < reach; ++i) sum += factors[i] * x[i];
      out[b] = sum;
    }
    return;
  }
  float own_lanes[Vec::kLanes], next_lanes[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) {
    own_lanes[i] = factors[i % per_block];
    next_lanes[i] = per_block + i % per_block < reach ? factors[per_block + i % per_block] : 0;
  }
  const Vec::F own = Vec::Load(own_lanes);
  const Vec::F next = Vec::Load(next_lanes);
  for (int b = 0; b < blocks; b += Vec::kLanes) {
    Vec::F sum[Vec::kLanes];
    for (int i = 0; i < per_block; ++i, x += Vec::kLanes) {
      sum[i] = Vec::MulAdd(Vec::Load(x), own, Vec::Mul(Vec::Load(x + per_block), next));
    }
    for (int n = per_block / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) sum[i] = Vec::PairSums(sum[2 * i], sum[2 * i + 1]);
    }
    if (blocks - b < Vec::kLanes) {
      StoreTail(sum[0], out + b, blocks - b);
    } else {
      Vec::Store(sum[0], out + b);
    }
  }
}

// 2^(s - shift) over s[0, count), written over s; zero in [count, n). Returns sums by lane.
FS_INLINE Vec::F ExpRow(float* s, int count, int n, Vec::F shift) {
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
  return sum;
}

// Of kRows rows side by side, since a row alone is a chain that leaves the processor waiting: the largest scores, then
// the exponentials and their sums. What happens to a row is what happens to it alone.
template <int kRows>
FS_INLINE void RowTops(float* const* s, const int* count, int n, float* tops) {
  Vec::F top[4];
  for (int r = 0; r < kRows; ++r) {
    for (int i = count[r]; i < n; ++i) s[r][i] = kMinusInfinity;
    top[r] = Vec::Load(s[r]);
  }
  for (int i = Vec::kLanes; i < n; i += Vec::kLanes) {
    for (int r = 0; r < kRows; ++r) top[r] = Vec::Max(top[r], Vec::Load(s[r] + i));
  }
  for (int r = kRows; r < 4; ++r) top[r] = top[0];
  Vec::Tops(top, tops);
}

template <int kRows>
FS_INLINE void RowExponentials(float* const* s, const int* count, int n, const float* shift_to, float* totals) {
  Vec::F shift[kRows];
  Vec::F sum[4];
  bool whole = true;
  for (int r = 0; r < kRows; ++r) {
    shift[r] = Vec::Set(shift_to[r]);
    sum[r] = Vec::Set(0);
    whole = whole && count[r] == n;
  }
  if (whole) {
    for (int i = 0; i < n; i += Vec::kLanes) {
      for (int r = 0; r < kRows; ++r) {
        const Vec::F e = Exp2Below(Vec::Sub(Vec::Load(s[r] + i), shift[r]));
        Vec::Store(e, s[r] + i);
        sum[r] = Vec::Add(sum[r], e);
      }
    }
  } else {
    for (int r = 0; r < kRows; ++r) sum[r] = ExpRow(s[r], count[r], n, shift[r]);
  }
  for (int r = kRows; r < 4; ++r) sum[r] = sum[0];
  Vec::Sums(sum, totals);
}

template <int kRows>
void SoftmaxGroup(const SoftmaxBlock& b, int first, bool tops, const float* max, float* out) {
  if (tops) return RowTops<kRows>(b.s + first, b.count + first, b.n, out);
  RowExponentials<kRows>(b.s + first, b.count + first, b.n, max, out);
}

// As many rows as a vector has lanes: what there is to do once a row is then done for all of them together.
FS_INLINE void SoftmaxLanes(const SoftmaxBlock& b, int first, int rows) {
  float before[Vec::kLanes] = {}, sums[Vec::kLanes] = {}, max[Vec::kLanes + 4] = {}, total[Vec::kLanes + 4] = {};
  const auto groups = [&](bool tops, float* out) {
    int i = 0;
    for (; i + 4 <= rows; i += 4) SoftmaxGroup<4>(b, first + i, tops, max + i, out + i);
    if (i + 3 == rows) SoftmaxGroup<3>(b, first + i, tops, max + i, out + i);
    if (i + 2 == rows) SoftmaxGroup<2>(b, first + i, tops, max + i, out + i);
    if (i + 1 == rows) SoftmaxGroup<1>(b, first + i, tops, max + i, out + i);
  };
  groups(true, max);
  for (int i = 0; i < rows; ++i) {
    before[i] = b.m[b.state[first + i]];
    sums[i] = b.l[b.state[first + i]];
  }
  const Vec::F old = Vec::Load(before);
  const Vec::F top = Vec::Max(Vec::Load(max), old);
  // A row without anything before has sums of zero, so that it does not matter what they are multiplied by.
  const Vec::F keep = Exp2Below(Vec::Sub(old, top));
  Vec::Store(top, max);
  groups(false, total);
  Vec::Store(keep, before);
  Vec::Store(Vec::MulAdd(Vec::Load(sums), keep, Vec::Load(total)), sums);
  for (int i = 0; i < rows; ++i) {
    b.m[b.state[first + i]] = max[i];
    b.l[b.state[first + i]] = sums[i];
    b.keep[first + i] = before[i];
  }
}

void SoftmaxRows(const SoftmaxBlock& b) {
  for (int i = 0; i < b.rows; i += Vec::kLanes) {
    SoftmaxLanes(b, i, b.rows - i < Vec::kLanes ? b.rows - i : Vec::kLanes);
  }
}

void MergeParts(const SoftmaxParts& part, const SoftmaxParts& to, int rows, int padded) {
  for (int first = 0; first < rows; first += Vec::kLanes) {
    const int n = rows - first < Vec::kLanes ? rows - first : Vec::kLanes;
    float m[Vec::kLanes] = {}, max[Vec::kLanes] = {}, l[Vec::kLanes], sum[Vec::kLanes];
    for (int i = 0; i < n; ++i) {
      m[i] = part.m[first + i];
      max[i] = to.m[first + i];
    }
    const Vec::F old = Vec::Load(max);
    const Vec::F top = Vec::Max(old, Vec::Load(m));
    Vec::Store(Exp2Below(Vec::Sub(old, top)), sum);
    Vec::Store(Exp2Below(Vec::Sub(Vec::Load(m), top)), l);
    Vec::Store(top, max);
    for (int i = 0; i < n; ++i) {
      if (m[i] == kMinusInfinity) continue;  // an empty part changes nothing
      const Vec::F keep = Vec::Set(sum[i]);
      const Vec::F add = Vec::Set(l[i]);
      float* from = part.o + static_cast<int64_t>(first + i) * padded;
      float* out = to.o + static_cast<int64_t>(first + i) * padded;
      for (int d = 0; d < padded; d += Vec::kLanes) {
        Vec::Store(Vec::MulAdd(Vec::Load(out + d), keep, Vec::Mul(Vec::Load(from + d), add)), out + d);
        Vec::Store(Vec::Set(0), from + d);
      }
      to.l[first + i] = to.l[first + i] * sum[i] + part.l[first + i] * l[i];
      to.m[first + i] = max[i];
      part.m[first + i] = kMinusInfinity;
      part.l[first + i] = 0;
    }
  }
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
    {Widen<ElemF32>, Widen<ElemF16>, Widen<ElemBf16>},
    {Narrow<ElemF32>, Narrow<ElemF16>, Narrow<ElemBf16>},
    Product,
    {ProductOfStored<ElemF32>, ProductOfStored<ElemF16>, ProductOfStored<ElemBf16>},
    {WeavePooled<ElemF32>, WeavePooled<ElemF16>, WeavePooled<ElemBf16>},
    SoftmaxRows,
    MergeParts,
    ShareWeights,
    MixWeights,
    BlockSums,
    Turn,
    ExpSum,
    MaxValue,
    BlockMax,
    BlockTops,
    TakeBest,
    SketchBlock};

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_INL_H_
