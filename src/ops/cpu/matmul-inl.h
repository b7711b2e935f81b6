// Matrix products over any vector wrapper `Vec`. One panel of 16 outputs times 1 to 8 rows; lanes are outputs, inputs
// ascend, and each output has one accumulator, so the number of rows changes nothing in a row's result. A sub-block
// meets all rows before the next one is read, Vec::kRowsAtOnce at a time, as many as the registers hold: the panel
// comes from memory once for all of them.
#ifndef FARSIGHT_OPS_CPU_MATMUL_INL_H_
#define FARSIGHT_OPS_CPU_MATMUL_INL_H_

#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"

namespace farsight {
namespace {

constexpr int kParts = kPanelOutputs / Vec::kLanes;  // vectors that hold a panel's outputs
constexpr int kPartBytes = 4 * Vec::kLanes;          // of a 64-byte vector of codes

template <DType kType>
struct Format {
  static constexpr PackedLayout kLayout = LayoutOf(kType);
  static constexpr bool kSigned = kLayout.bits == 8;
  static constexpr int kOffset = kLayout.offset + (kSigned ? Vec::kSignedOffset : 0);
  // Groups of four inputs whose products fit 16 bits when added pairwise: 2 * 15 * 127 * 8, 2 * 31 * 127 * 4 and
  // 2 * 63 * 127 * 2 are all below 2^15.
  static constexpr int kGroupsIn16Bits = kLayout.bits == 4 ? 8 : kLayout.bits == 5 ? 4 : 2;

  // Codes of group kGroup for the outputs of one part.
  template <int kGroup>
  static FS_INLINE Vec::Bytes Codes(const uint8_t* sub, int part) {
    const uint8_t* high = sub + kLayout.scale_bytes + part * kPartBytes;
    const uint8_t* codes = high + kLayout.high_bytes;
    if constexpr (kLayout.bits == 8) {
      return Vec::LoadBytes(codes + kGroup * 64);
    } else {
      const Vec::Bytes pair = Vec::LoadBytes(codes + kGroup / 2 * 64);
      const Vec::Bytes nibble = kGroup % 2 == 0 ? Vec::Low4(pair) : Vec::High4(pair);
      if constexpr (kLayout.bits == 5) {
        return Vec::Or(nibble, Vec::template FifthBit<kGroup>(Vec::LoadBytes(high)));
      } else if constexpr (kLayout.bits == 6) {
        return Vec::Or(nibble, Vec::template TopBits<kGroup % 4>(Vec::LoadBytes(high + kGroup / 4 * 64)));
      } else {
        return nibble;
      }
    }
  }

  static FS_INLINE Vec::F Scale(const uint8_t* head, const uint8_t* sub, int part) {
    if constexpr (!kLayout.super) {
      return Vec::LoadF16(sub + part * 2 * Vec::kLanes);
    } else {
      const Vec::F d = Vec::LoadF16(head + part * 2 * Vec::kLanes);
      return kLayout.split ? d : Vec::Mul(d, Vec::LoadU8(sub + part * Vec::kLanes));
    }
  }
  static FS_INLINE Vec::F Minimum(const uint8_t* head, const uint8_t* sub, int part) {
    if constexpr (!kLayout.super) {
      return Vec::LoadF16(sub + 32 + part * 2 * Vec::kLanes);
    } else {
      const Vec::F d = Vec::LoadF16(head + 32 + part * 2 * Vec::kLanes);
      return Vec::Mul(Vec::Sub(Vec::Set(0), d), Vec::LoadU8(sub + 16 + part * Vec::kLanes));
    }
  }
  // Of the first or second 16 inputs, in split formats.
  static FS_INLINE Vec::F SubScale(const uint8_t* sub, int half, int part) {
    return Vec::LoadI8(sub + 16 * half + part * Vec::kLanes);
  }
};

// Three and more rows leave the processor with so much to do that it looks too few bytes ahead to keep the memory busy:
// they ask for the panel, or the one behind it, this far ahead. One or two rows are read faster without.
constexpr int kPrefetchRows = 3;
constexpr int kPrefetchBytes = 3072;

// Where unpacking once for many rows is worth it: codes with high bits of their own. Four bits are a mask and a shift,
// and eight are bytes as they are.
constexpr bool Expands(DType t) { return Vec::kExpands && (LayoutOf(t).bits == 5 || LayoutOf(t).bits == 6); }

// The same format, unpacked: every number is the one that Format gives.
template <DType kType>
struct Expanded {
  static constexpr PackedLayout kLayout = LayoutOf(kType);
  static constexpr bool kSigned = false;
  static constexpr int kOffset = kLayout.offset;
  static constexpr int kGroupsIn16Bits = Format<kType>::kGroupsIn16Bits;
  static constexpr int kCodeBytes = 512;
  static constexpr int kBytes = kCodeBytes + 64 + (kLayout.minimum ? 64 : 0) + (kLayout.split ? 128 : 0);
  static_assert(kBytes <= kMaxExpandedSubBytes);

  template <int kGroup>
  static FS_INLINE Vec::Bytes Codes(const uint8_t* sub, int part) {
    return Vec::LoadBytes(sub + kGroup * 64 + part * kPartBytes);
  }
  static FS_INLINE Vec::F Floats(const uint8_t* sub, int vector, int part) {
    return Vec::LoadF32(sub + kCodeBytes + vector * 64 + part * 4 * Vec::kLanes);
  }
  static FS_INLINE Vec::F Scale(const uint8_t*, const uint8_t* sub, int part) { return Floats(sub, 0, part); }
  static FS_INLINE Vec::F Minimum(const uint8_t*, const uint8_t* sub, int part) { return Floats(sub, 1, part); }
  static FS_INLINE Vec::F SubScale(const uint8_t* sub, int half, int part) { return Floats(sub, 1 + half, part); }
};

FS_INLINE float FloatAt(const uint8_t* p) {
  float f;
  __builtin_memcpy(&f, p, 4);
  return f;
}
FS_INLINE int32_t IntAt(const uint8_t* p) {
  int32_t i;
  __builtin_memcpy(&i, p, 4);
  return i;
}

// Offsets of the fields of QuantBlock.
constexpr int kScaleAt = 32;
constexpr int kScaledSumAt = 36;
constexpr int kSumsAt = 40;

// acc += the 32 inputs of one sub-block, for kRows rows.
template <class Fmt, int kRows>
FS_INLINE void AddSubBlock(const uint8_t* head, const uint8_t* sub, const uint8_t* const* in, Vec::F (*acc)[kParts]) {
  Vec::I dot[kRows][kParts];
  for (int r = 0; r < kRows; ++r) {
    const int32_t sum = IntAt(in[r] + kSumsAt) + IntAt(in[r] + kSumsAt + 4);
    for (int h = 0; h < kParts; ++h) dot[r][h] = Vec::SetI(-Fmt::kOffset * sum);
  }
  Vec::template AddDot<Fmt, kRows, 0, 8>(sub, in, dot);
  Vec::F scale[kParts];
  for (int h = 0; h < kParts; ++h) scale[h] = Fmt::Scale(head, sub, h);
  for (int r = 0; r < kRows; ++r) {
    const Vec::F row_scale = Vec::Set(FloatAt(in[r] + kScaleAt));
    for (int h = 0; h < kParts; ++h) {
      acc[r][h] = Vec::MulAdd(Vec::Mul(scale[h], row_scale), Vec::ToF(dot[r][h]), acc[r][h]);
    }
  }
  if constexpr (Fmt::kLayout.minimum) {
    Vec::F minimum[kParts];
    for (int h = 0; h < kParts; ++h) minimum[h] = Fmt::Minimum(head, sub, h);
    for (int r = 0; r < kRows; ++r) {
      const Vec::F row_sum = Vec::Set(FloatAt(in[r] + kScaledSumAt));
      for (int h = 0; h < kParts; ++h) acc[r][h] = Vec::MulAdd(minimum[h], row_sum, acc[r][h]);
    }
  }
}

// The same where each 16 inputs have their own integer scale. All integers stay below 2^24, so the floats are exact.
template <class Fmt, int kRows>
FS_INLINE void AddSplitSubBlock(const uint8_t* head, const uint8_t* sub, const uint8_t* const* in,
                                Vec::F (*acc)[kParts]) {
  Vec::F whole[kRows][kParts];
  Vec::I dot[kRows][kParts];
  const auto start = [&](int half) {
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < kParts; ++h) dot[r][h] = Vec::SetI(-Fmt::kOffset * IntAt(in[r] + kSumsAt + 4 * half));
    }
  };
  start(0);
  Vec::template AddDot<Fmt, kRows, 0, 4>(sub, in, dot);
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < kParts; ++h) whole[r][h] = Vec::Mul(Vec::ToF(dot[r][h]), Fmt::SubScale(sub, 0, h));
  }
  start(1);
  Vec::template AddDot<Fmt, kRows, 4, 8>(sub, in, dot);
  for (int r = 0; r < kRows; ++r) {
    const Vec::F row_scale = Vec::Set(FloatAt(in[r] + kScaleAt));
    for (int h = 0; h < kParts; ++h) {
      const Vec::F second = Vec::ToF(dot[r][h]);
      const Vec::F both = Vec::MulAdd(second, Fmt::SubScale(sub, 1, h), whole[r][h]);
      acc[r][h] = Vec::MulAdd(Vec::Mul(Fmt::Scale(head, sub, h), row_scale), both, acc[r][h]);
    }
  }
}

// Rows [kFirst, kRows) in groups of what the registers hold.
template <class Fmt, int kFirst, int kRows>
FS_INLINE void AddRows(const uint8_t* head, const uint8_t* sub, const uint8_t* const* in, Vec::F (*acc)[kParts]) {
  if constexpr (kFirst < kRows) {
    constexpr int kNow = kRows - kFirst < Vec::kRowsAtOnce ? kRows - kFirst : Vec::kRowsAtOnce;
    if constexpr (Fmt::kLayout.split) {
      AddSplitSubBlock<Fmt, kNow>(head, sub, in + kFirst, acc + kFirst);
    } else {
      AddSubBlock<Fmt, kNow>(head, sub, in + kFirst, acc + kFirst);
    }
    AddRows<Fmt, kFirst + kNow, kRows>(head, sub, in, acc);
  }
}

// One row's 16 sums to their place. `old` may be `out`.
FS_INLINE void FinishRow(const MatMulTile& t, const float* bias, const float* old, float* out,
                         const Vec::F (&acc)[kParts]) {
  const Vec::F alpha = Vec::Set(t.alpha);
  for (int h = 0; h < kParts; ++h) {
    Vec::F x = acc[h];
    if (bias != nullptr) x = Vec::Add(x, Vec::Load(bias + h * Vec::kLanes));
    x = Vec::Mul(alpha, x);
    if (t.accumulate) x = Vec::Add(Vec::Load(old + h * Vec::kLanes), x);
    Vec::Store(x, out + h * Vec::kLanes);
  }
}

FS_INLINE void Finish(const MatMulTile& t, int rows, const Vec::F (*acc)[kParts]) {
  if (t.width == kPanelOutputs) {
    for (int r = 0; r < rows; ++r) {
      float* out = t.out + r * t.out_stride;
      FinishRow(t, t.bias, out, out, acc[r]);
    }
    return;
  }
  float bias[kPanelOutputs] = {};
  float row[kPanelOutputs] = {};
  for (int i = 0; i < t.width && t.bias != nullptr; ++i) bias[i] = t.bias[i];
  for (int r = 0; r < rows; ++r) {
    float* out = t.out + r * t.out_stride;
    for (int i = 0; i < t.width && t.accumulate; ++i) row[i] = out[i];
    FinishRow(t, t.bias != nullptr ? bias : nullptr, row, row, acc[r]);
    for (int i = 0; i < t.width; ++i) out[i] = row[i];
  }
}

// `rows` of kRows rows exist: the others compute the last one again and are not stored.
template <DType kType, int kRows>
__attribute__((noinline)) void MatMulQuantised(const MatMulTile& t, int rows) {
  using Fmt = Format<kType>;
  constexpr PackedLayout kLayout = Fmt::kLayout;
  const uint8_t* in[kRows];
  Vec::F acc[kRows][kParts];
  for (int r = 0; r < kRows; ++r) {
    in[r] = t.in + (r < rows ? r : rows - 1) * t.in_stride_bytes;
    for (int h = 0; h < kParts; ++h) acc[r][h] = Vec::Set(0);
  }
  const uint8_t* head = t.panel;
  for (int64_t s = t.cols / kLayout.SuperInputs(); s > 0; --s) {
    const uint8_t* sub = head + kLayout.head_bytes;
    for (int j = 0; j < kLayout.subs; ++j) {
      if constexpr (kRows >= kPrefetchRows) {
        for (int i = 0; i < kLayout.SubBytes(); i += 64) __builtin_prefetch(sub + kPrefetchBytes + i);
      }
      AddRows<Fmt, 0, kRows>(head, sub, in, acc);
      sub += kLayout.SubBytes();
      for (int r = 0; r < kRows; ++r) in[r] += sizeof(QuantBlock);
    }
    head = sub;
  }
  Finish(t, rows, acc);
}

template <DType kType, int kRows>
__attribute__((noinline)) void MatMulFloat(const MatMulTile& t, int rows) {
  constexpr int kSize = InfoOf(kType).block_bytes;
  const uint8_t* in[kRows];
  Vec::F acc[kRows][kParts];
  for (int r = 0; r < kRows; ++r) {
    in[r] = t.in + (r < rows ? r : rows - 1) * t.in_stride_bytes;
    for (int h = 0; h < kParts; ++h) acc[r][h] = Vec::Set(0);
  }
  const uint8_t* w = t.panel;
  for (int64_t k = 0; k < t.cols; ++k) {
    Vec::F x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = Vec::Set(FloatAt(in[r] + 4 * k));
    for (int h = 0; h < kParts; ++h, w += Vec::kLanes * kSize) {
      const Vec::F v = kType == DType::kF32   ? Vec::LoadF32(w)
                       : kType == DType::kF16 ? Vec::LoadF16(w)
                                              : Vec::LoadBf16(w);
      for (int r = 0; r < kRows; ++r) acc[r][h] = Vec::MulAdd(v, x[r], acc[r][h]);
    }
  }
  Finish(t, rows, acc);
}

template <DType kType, int kGroup>
FS_INLINE void ExpandCodes(const uint8_t* sub, uint8_t* out) {
  if constexpr (kGroup < 8) {
    for (int h = 0; h < kParts; ++h) {
      uint8_t* to = out + kGroup * 64 + h * kPartBytes;
      Vec::StoreBytes(Format<kType>::template Codes<kGroup>(sub, h), to);
    }
    ExpandCodes<kType, kGroup + 1>(sub, out);
  }
}

template <DType kType>
void Expand(const uint8_t* head, int64_t cols, uint8_t* out) {
  using Fmt = Format<kType>;
  using To = Expanded<kType>;
  constexpr PackedLayout kLayout = Fmt::kLayout;
  for (int64_t s = cols / kLayout.SuperInputs(); s > 0; --s) {
    const uint8_t* sub = head + kLayout.head_bytes;
    for (int j = 0; j < kLayout.subs; ++j, sub += kLayout.SubBytes(), out += To::kBytes) {
      ExpandCodes<kType, 0>(sub, out);
      for (int h = 0; h < kParts; ++h) {
        uint8_t* to = out + To::kCodeBytes + h * 4 * Vec::kLanes;
        Vec::StoreF32(Fmt::Scale(head, sub, h), to);
        if constexpr (kLayout.minimum) Vec::StoreF32(Fmt::Minimum(head, sub, h), to + 64);
        if constexpr (kLayout.split) {
          Vec::StoreF32(Fmt::SubScale(sub, 0, h), to + 64);
          Vec::StoreF32(Fmt::SubScale(sub, 1, h), to + 128);
        }
      }
    }
    head = sub;
  }
}

template <DType kType>
void MatMulExpanded(const ExpandedTile& e) {
  using Fmt = Expanded<kType>;
  const MatMulTile& t = e.tile;
  const uint8_t* in[kExpandedRows];
  Vec::F acc[kExpandedRows][kParts];
  for (int r = 0; r < kExpandedRows; ++r) {
    const int row = r < e.rows ? r : e.rows - 1;
    in[r] = t.in + row * t.in_stride_bytes;
    for (int h = 0; h < kParts; ++h) {
      acc[r][h] = e.first ? Vec::Set(0) : Vec::Load(e.partial + row * kPanelOutputs + h * Vec::kLanes);
    }
  }
  const uint8_t* sub = t.panel;
  for (int64_t s = t.cols / kBlockInputs; s > 0; --s, sub += Fmt::kBytes) {
    AddRows<Fmt, 0, kExpandedRows>(nullptr, sub, in, acc);
    for (int r = 0; r < kExpandedRows; ++r) in[r] += sizeof(QuantBlock);
  }
  if (e.last) return Finish(t, e.rows, acc);
  for (int r = 0; r < e.rows; ++r) {
    for (int h = 0; h < kParts; ++h) Vec::Store(acc[r][h], e.partial + r * kPanelOutputs + h * Vec::kLanes);
  }
}

// More than four rows share one kernel, which keeps the code and the time to compile it small.
template <DType kType, int kRows>
void MatMulRows(const MatMulTile& t) {
  constexpr int kTaken = kRows <= 4 ? kRows : kMaxTileRows;
  if constexpr (IsQuantised(kType)) {
    MatMulQuantised<kType, kTaken>(t, kRows);
  } else {
    MatMulFloat<kType, kTaken>(t, kRows);
  }
}

template <DType kType, int kRows>
constexpr void FillMatMul(OpKernels* k) {
  k->matmul[static_cast<int>(kType)][kRows - 1] = MatMulRows<kType, kRows>;
  if constexpr (kRows > 1) FillMatMul<kType, kRows - 1>(k);
  if constexpr (kRows == 1 && Expands(kType)) {
    k->expand[static_cast<int>(kType)] = Expand<kType>;
    k->matmul_expanded[static_cast<int>(kType)] = MatMulExpanded<kType>;
    k->expanded_sub_bytes[static_cast<int>(kType)] = Expanded<kType>::kBytes;
  }
}

constexpr void FillMatMuls(OpKernels* k) {
  FillMatMul<DType::kF32, kMaxTileRows>(k);
  FillMatMul<DType::kF16, kMaxTileRows>(k);
  FillMatMul<DType::kBF16, kMaxTileRows>(k);
  FillMatMul<DType::kQ4_0, kMaxTileRows>(k);
  FillMatMul<DType::kQ4_1, kMaxTileRows>(k);
  FillMatMul<DType::kQ5_0, kMaxTileRows>(k);
  FillMatMul<DType::kQ5_1, kMaxTileRows>(k);
  FillMatMul<DType::kQ8_0, kMaxTileRows>(k);
  FillMatMul<DType::kQ4_K, kMaxTileRows>(k);
  FillMatMul<DType::kQ5_K, kMaxTileRows>(k);
  FillMatMul<DType::kQ6_K, kMaxTileRows>(k);
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_MATMUL_INL_H_
