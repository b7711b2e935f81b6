// Products of many rows by AMX tiles: 16 rows by 16 outputs by 32 inputs are one TDPBSSD. A panel's codes are such a
// tile as they lie, and so are the codes of quantised rows. The integers are exact, and each meets the float operations
// of matmul-inl.h in their order, so a row's result has the bits that the kernels for few rows give.
#ifndef FARSIGHT_OPS_CPU_MATMUL_AMX_INL_H_
#define FARSIGHT_OPS_CPU_MATMUL_AMX_INL_H_

#include "ops/cpu/matmul-inl.h"

namespace farsight {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * 64;
// Of a panel, kept in the first-level cache beside 16 rows.
constexpr int64_t kAmxChunkBytes = 18 * 1024;
// Rows from which tiles are faster than eight rows at a time. A tile costs as much whether it is full or not.
constexpr int kMinRowsInPlace = 9;
constexpr int kMinUnpackedRows = 24;
// Rows whose sums between chunks are kept on the stack.
constexpr int64_t kAmxSlab = 128;

// Tiles 0 to 3 hold sums, 4 and 5 rows of inputs, 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

FS_INLINE void Configure(int rows, int inputs) {
  TileConfig c;
  for (int i = 0; i < 8; ++i) {
    c.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? inputs : 64);
    c.rows[i] = static_cast<uint8_t>(i < 6 ? rows : inputs / 4);
  }
  // g++ 12 believes that the instruction reads the first eight bytes only.
  __asm__ volatile("" ::"r"(&c) : "memory");
  _tile_loadconfig(&c);
}

// A panel as tiles: where sub-block after sub-block has its signed codes and its floats.
struct Q8InPlace {
  static constexpr PackedLayout kLayout = LayoutOf(DType::kQ8_0);
  static constexpr bool kUnpacks = false;
  static constexpr int kBytes = kLayout.SubBytes();
  static FS_INLINE const uint8_t* Codes(const uint8_t* sub) { return sub + kLayout.scale_bytes; }
  static FS_INLINE Vec::F Scale(const uint8_t* sub) { return Vec::LoadF16(sub); }
};
template <bool kMinimum, bool kSplit>
struct Unpacked {
  static constexpr PackedLayout kLayout{.minimum = kMinimum, .split = kSplit};
  static constexpr bool kUnpacks = true;
  static constexpr int kBytes = 512 + 64 + (kMinimum ? 64 : 0) + (kSplit ? 128 : 0);
  static FS_INLINE const uint8_t* Codes(const uint8_t* sub) { return sub; }
  static FS_INLINE Vec::F Scale(const uint8_t* sub) { return Vec::LoadF32(sub + 512); }
  static FS_INLINE Vec::F Minimum(const uint8_t* sub) { return Vec::LoadF32(sub + 576); }
  static FS_INLINE Vec::F SubScale(const uint8_t* sub, int half) { return Vec::LoadF32(sub + 576 + 64 * half); }
};
template <DType kType>
struct TilesOf {
  using Type = Unpacked<LayoutOf(kType).minimum, LayoutOf(kType).split>;
};
template <>
struct TilesOf<DType::kQ8_0> {
  using Type = Q8InPlace;
};

template <DType kType, int kGroup>
FS_INLINE void SignedCodes(const uint8_t* sub, uint8_t* out) {
  if constexpr (kGroup < 8) {
    const Vec::Bytes codes = Format<kType>::template Codes<kGroup>(sub, 0);
    Vec::StoreBytes(_mm512_sub_epi8(codes, _mm512_set1_epi8(LayoutOf(kType).offset)), out + kGroup * 64);
    SignedCodes<kType, kGroup + 1>(sub, out);
  }
}

template <DType kType>
FS_INLINE void Unpack(const uint8_t* head, int64_t subs, uint8_t* out) {
  using Fmt = Format<kType>;
  constexpr PackedLayout kLayout = Fmt::kLayout;
  for (int64_t s = subs / kLayout.subs; s > 0; --s) {
    const uint8_t* sub = head + kLayout.head_bytes;
    for (int j = 0; j < kLayout.subs; ++j, sub += kLayout.SubBytes(), out += TilesOf<kType>::Type::kBytes) {
      SignedCodes<kType, 0>(sub, out);
      Vec::StoreF32(Fmt::Scale(head, sub, 0), out + 512);
      if constexpr (kLayout.minimum) Vec::StoreF32(Fmt::Minimum(head, sub, 0), out + 576);
      if constexpr (kLayout.split) {
        Vec::StoreF32(Fmt::SubScale(sub, 0, 0), out + 576);
        Vec::StoreF32(Fmt::SubScale(sub, 1, 0), out + 640);
      }
    }
    head = sub;
  }
}

// Sub-blocks that are multiplied before their sums are added: while an instruction on tiles waits among the next
// hundred, float operations get one port of two, so each has its turn.
template <class Tiles>
constexpr int kBatch = Tiles::kLayout.split ? 8 : 16;
// Of the integers of one sub-block.
template <class Tiles>
constexpr int64_t kDotBytes = (Tiles::kLayout.split ? 2 : 1) * kTileBytes;

#define FS_TILE_PRODUCT(sums, inputs, weights, in, codes) \
  _tile_loadd(inputs, in, stride);                        \
  _tile_loadd(weights, codes, 64);                        \
  _tile_zero(sums);                                       \
  _tile_dpbssd(sums, inputs, weights)

// Starts the products of one sub-block: kAt (0 or 1) alternates.
template <class Tiles, int kAt>
FS_INLINE void StartProduct(const uint8_t* in, int64_t stride, const uint8_t* codes) {
  if constexpr (Tiles::kLayout.split && kAt == 0) {
    FS_TILE_PRODUCT(0, 4, 6, in, codes);
    FS_TILE_PRODUCT(2, 5, 7, in + 16, codes + 256);
  } else if constexpr (Tiles::kLayout.split) {
    FS_TILE_PRODUCT(1, 4, 6, in, codes);
    FS_TILE_PRODUCT(3, 5, 7, in + 16, codes + 256);
  } else if constexpr (kAt == 0) {
    FS_TILE_PRODUCT(0, 4, 6, in, codes);
  } else {
    FS_TILE_PRODUCT(1, 5, 7, in, codes);
  }
}
#undef FS_TILE_PRODUCT

template <class Tiles, int kAt>
FS_INLINE void StoreProduct(uint8_t* dots) {
  if constexpr (kAt == 0) {
    _tile_stored(0, dots, 64);
    if constexpr (Tiles::kLayout.split) _tile_stored(2, dots + kTileBytes, 64);
  } else {
    _tile_stored(1, dots, 64);
    if constexpr (Tiles::kLayout.split) _tile_stored(3, dots + kTileBytes, 64);
  }
}

// acc += a sub-block's sums for kRows rows.
template <class Tiles, int kRows>
FS_INLINE void AddProduct(const uint8_t* sub, const uint8_t* in, int64_t stride, const uint8_t* dots,
                          Vec::F (&acc)[kRows][1]) {
  const Vec::F scale = Tiles::Scale(sub);
  const auto dot = [&](int r, int half) { return Vec::ToF(_mm512_load_si512(dots + r * 64 + half * kTileBytes)); };
  for (int q = 0; q < kRows; q += 4, in += 4 * stride) {
    for (int i = 0; i < 4; ++i) {
      const int r = q + i;
      const uint8_t* row = in + i * stride;
      const Vec::F both = Vec::Mul(scale, Vec::Set(FloatAt(row + kScaleAt)));
      if constexpr (Tiles::kLayout.split) {
        const Vec::F whole = Vec::Mul(dot(r, 0), Tiles::SubScale(sub, 0));
        acc[r][0] = Vec::MulAdd(both, Vec::MulAdd(dot(r, 1), Tiles::SubScale(sub, 1), whole), acc[r][0]);
      } else {
        acc[r][0] = Vec::MulAdd(both, dot(r, 0), acc[r][0]);
      }
      if constexpr (Tiles::kLayout.minimum) {
        acc[r][0] = Vec::MulAdd(Tiles::Minimum(sub), Vec::Set(FloatAt(row + kScaledSumAt)), acc[r][0]);
      }
    }
  }
}

// A tile of rows times some sub-blocks of a panel. Of its rows kRows are added up, `rows` of these are stored: those
// before are of the tile before, those behind are past the end and may be read.
struct RowTile {
  const uint8_t* panel = nullptr;
  int64_t subs = 0;
  const uint8_t* in = nullptr;
  int64_t stride = 0;
  int skip = 0;                  // rows of the tile before the first of kRows
  int first = 0;                 // of kRows that is stored
  int rows = 0;                  // stored
  float* partial = nullptr;      // [rows][16]
  bool starts = false;           // there are no inputs before
  bool ends = false;             // no inputs follow
  const uint8_t* ask = nullptr;  // what is multiplied next: for each sub-block this many bytes are asked for
  int ask_bytes = 0;
};

// One sub-block's integers are stored while the next one's are computed.
template <class Tiles, int kAt>
FS_INLINE void MultiplyNext(const RowTile& t, int64_t i, int64_t n, const uint8_t* ask, const uint8_t* sub,
                            const uint8_t* in, uint8_t* dots) {
  if (i < n) {
    for (int b = 0; b < t.ask_bytes; b += 64) __builtin_prefetch(ask + i * t.ask_bytes + b, 0, 2);
    const uint8_t* codes = Tiles::Codes(sub + i * Tiles::kBytes);
    StartProduct<Tiles, kAt>(in + i * static_cast<int64_t>(sizeof(QuantBlock)), t.stride, codes);
  }
  if (i > 0) StoreProduct<Tiles, 1 - kAt>(dots + (i - 1) * kDotBytes<Tiles>);
}

template <class Tiles, int kRows>
__attribute__((noinline)) void MultiplyRowTile(const RowTile& t, const MatMulTile& to) {
  alignas(64) uint8_t dots[kBatch<Tiles> * kDotBytes<Tiles>];
  Vec::F acc[kRows][1];
  for (int r = 0; r < kRows; ++r) {
    const int row = r - t.first;
    acc[r][0] = t.starts || row < 0 || row >= t.rows ? Vec::Set(0) : Vec::Load(t.partial + row * kPanelOutputs);
  }
  const int64_t batches = (t.subs + kBatch<Tiles> - 1) / kBatch<Tiles>;
  int64_t begin = 0;
  for (int64_t batch = 1; batch <= batches; ++batch) {
    const int64_t end = t.subs * batch / batches;
    const int64_t n = end - begin;
    const uint8_t* sub = t.panel + begin * Tiles::kBytes;
    const uint8_t* in = t.in + begin * static_cast<int64_t>(sizeof(QuantBlock));
    const uint8_t* ask = t.ask + begin * t.ask_bytes;
    for (int64_t i = 0; i <= n; i += 2) {
      MultiplyNext<Tiles, 0>(t, i, n, ask, sub, in, dots);
      if (i < n) MultiplyNext<Tiles, 1>(t, i + 1, n, ask, sub, in, dots);
    }
    const uint8_t* dot = dots + t.skip * 64;
    in += t.skip * t.stride;
    for (; begin < end; ++begin) {
      AddProduct<Tiles, kRows>(sub, in, t.stride, dot, acc);
      sub += Tiles::kBytes;
      in += sizeof(QuantBlock);
      dot += kDotBytes<Tiles>;
    }
  }
  Vec::F sums[kRows][1];  // a copy, so that the others stay in registers
  for (int r = 0; r < kRows; ++r) sums[r][0] = acc[r][0];
  if (t.ends) return Finish(to, t.rows, sums + t.first);
  for (int r = 0; r < t.rows; ++r) Vec::Store(sums[t.first + r][0], t.partial + r * kPanelOutputs);
}

// Rows of a slab times one chunk of a panel. The memory behind the chunk, `sub_bytes` for each sub-block, is what
// follows: every tile asks for its share, so that memory is busy all the time.
template <class Tiles>
FS_INLINE void MultiplySlab(RowTile t, MatMulTile to, int64_t num_rows, int sub_bytes) {
  const int tiles = static_cast<int>((num_rows + kTileRows - 1) / kTileRows);
  t.ask_bytes = (sub_bytes / tiles + 63) / 64 * 64;
  float* const partial = t.partial;
  const uint8_t* const in = t.in;
  float* const out = to.out;
  for (int64_t r = 0; r < num_rows; r += kTileRows) {
    t.rows = static_cast<int>(num_rows - r < kTileRows ? num_rows - r : kTileRows);
    const int taken = (t.rows + 3) / 4 * 4;
    const bool again = num_rows > kTileRows;  // the tile ends with the last row, and begins with rows done before
    t.skip = again ? kTileRows - taken : 0;
    t.first = again ? taken - t.rows : 0;
    t.in = in + (r - t.skip - t.first) * t.stride;
    t.partial = partial + r * kPanelOutputs;
    to.out = out + r * to.out_stride;
    if (r > 0) t.ask += t.subs * t.ask_bytes;
    switch (taken) {
      case 4:
        MultiplyRowTile<Tiles, 4>(t, to);
        break;
      case 8:
        MultiplyRowTile<Tiles, 8>(t, to);
        break;
      case 12:
        MultiplyRowTile<Tiles, 12>(t, to);
        break;
      default:
        MultiplyRowTile<Tiles, 16>(t, to);
    }
  }
}

template <DType kType>
void MultiplyManyRows(const ManyRows& m) {
  using Tiles = typename TilesOf<kType>::Type;
  constexpr PackedLayout kLayout = LayoutOf(kType);
  alignas(64) uint8_t unpacked[Tiles::kUnpacks ? kAmxChunkBytes : 64];
  alignas(64) float partial[kAmxSlab * kPanelOutputs];
  const int64_t subs = m.tile.cols / kBlockInputs;
  // Equal parts of a row, in whole super-blocks.
  const int64_t most = kAmxChunkBytes / (Tiles::kBytes * kLayout.subs);
  const int64_t supers = subs / kLayout.subs;
  const int64_t chunks = (supers + most - 1) / most;
  const int64_t chunk = (supers + chunks - 1) / chunks * kLayout.subs;
  // Equal slabs too, so that none is too short for a tile.
  const int64_t slabs = (m.num_rows + kAmxSlab - 1) / kAmxSlab;
  Configure(static_cast<int>(m.num_rows < kTileRows ? m.num_rows : kTileRows), kLayout.split ? 16 : 32);
  MatMulTile to = m.tile;
  RowTile t;
  t.stride = to.in_stride_bytes;
  for (int64_t i = 0; i < m.num_panels; ++i) {
    const uint8_t* panel = m.tile.panel + i * m.panel_bytes;
    to.bias = m.tile.bias != nullptr ? m.tile.bias + i * kPanelOutputs : nullptr;
    to.width = i + 1 == m.num_panels ? m.tile.width : kPanelOutputs;
    for (int64_t s = 0; s < slabs; ++s) {
      const int64_t begin = m.num_rows * s / slabs;
      const int64_t rows = m.num_rows * (s + 1) / slabs - begin;
      to.out = m.tile.out + begin * to.out_stride + i * kPanelOutputs;
      for (int64_t sub = 0; sub < subs; sub += chunk) {
        t.subs = subs - sub < chunk ? subs - sub : chunk;
        t.starts = sub == 0;
        t.ends = sub + t.subs == subs;
        t.in = m.tile.in + begin * t.stride + sub * static_cast<int64_t>(sizeof(QuantBlock));
        t.partial = partial;
        t.panel = panel + sub / kLayout.subs * kLayout.SuperBytes();
        t.ask = t.panel + t.subs / kLayout.subs * kLayout.SuperBytes();
        if constexpr (Tiles::kUnpacks) {
          Unpack<kType>(t.panel, t.subs, unpacked);
          t.panel = unpacked;
        }
        MultiplySlab<Tiles>(t, to, rows, kLayout.SuperBytes() / kLayout.subs);
      }
    }
  }
  _tile_release();
}

template <DType kType>
constexpr void FillManyRows(OpKernels* k) {
  k->matmul_many[static_cast<int>(kType)] = MultiplyManyRows<kType>;
  k->min_many_rows[static_cast<int>(kType)] = TilesOf<kType>::Type::kUnpacks ? kMinUnpackedRows : kMinRowsInPlace;
}

constexpr void FillManyRows(OpKernels* k) {
  FillManyRows<DType::kQ4_0>(k);
  FillManyRows<DType::kQ4_1>(k);
  FillManyRows<DType::kQ5_0>(k);
  FillManyRows<DType::kQ5_1>(k);
  FillManyRows<DType::kQ8_0>(k);
  FillManyRows<DType::kQ4_K>(k);
  FillManyRows<DType::kQ5_K>(k);
  FillManyRows<DType::kQ6_K>(k);
}

}  // namespace
}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_MATMUL_AMX_INL_H_
