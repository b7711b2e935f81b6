#include "ops/cpu/cpu_matrix.h"

#include <cstring>
#include <string>

#include "ops/cpu/packed_layout.h"
#include "ops/dequantise.h"

namespace farsight {
namespace {

// Past these a product of sizes could overflow; no model comes near.
constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kMaxCols = int64_t{1} << 24;

uint8_t U8(const std::byte* p) { return static_cast<uint8_t>(*p); }

void SetHalf(uint8_t* row_of_16, int lane, const std::byte* half) { std::memcpy(row_of_16 + 2 * lane, half, 2); }

float HalfAt(const uint8_t* row_of_16, int lane) {
  uint16_t h;
  std::memcpy(&h, row_of_16 + 2 * lane, 2);
  return F16ToF32(h);
}

void NibbleCodes(const std::byte* qs, uint32_t high, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    const uint8_t q = U8(qs + i);
    codes[i] = static_cast<uint8_t>((q & 15) | (((high >> i) & 1u) << 4));
    codes[i + 16] = static_cast<uint8_t>((q >> 4) | (((high >> (i + 16)) & 1u) << 4));
  }
}

// The 32 codes of sub-block j of a file's block, as unsigned numbers (Q8_0: the bytes as they are).
void FileCodes(DType dtype, const std::byte* block, int j, uint8_t* codes) {
  uint32_t high = 0;
  switch (dtype) {
    case DType::kQ4_0:
      return NibbleCodes(block + 2, 0, codes);
    case DType::kQ4_1:
      return NibbleCodes(block + 4, 0, codes);
    case DType::kQ5_0:
      std::memcpy(&high, block + 2, 4);
      return NibbleCodes(block + 6, high, codes);
    case DType::kQ5_1:
      std::memcpy(&high, block + 4, 4);
      return NibbleCodes(block + 8, high, codes);
    case DType::kQ8_0:
      std::memcpy(codes, block + 2, kBlockInputs);
      return;
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const std::byte* qs = block + (dtype == DType::kQ5_K ? 48 : 16) + 32 * (j / 2);
      for (int i = 0; i < kBlockInputs; ++i) {
        codes[i] = static_cast<uint8_t>((U8(qs + i) >> (4 * (j % 2))) & 15);
        if (dtype == DType::kQ5_K) codes[i] |= static_cast<uint8_t>(((U8(block + 16 + i) >> j) & 1) << 4);
      }
      return;
    }
    case DType::kQ6_K: {
      const int part = j % 4;
      const std::byte* ql = block + 64 * (j / 4) + 32 * (part % 2);
      const std::byte* qh = block + 128 + 32 * (j / 4);
      for (int i = 0; i < kBlockInputs; ++i) {
        const int low = (U8(ql + i) >> (part < 2 ? 0 : 4)) & 15;
        codes[i] = static_cast<uint8_t>(low | (((U8(qh + i) >> (2 * part)) & 3) << 4));
      }
      return;
    }
    default:
      return;
  }
}

void PutCodes(const PackedLayout& l, const uint8_t* codes, int lane, uint8_t* high, uint8_t* packed) {
  for (int i = 0; i < kBlockInputs; ++i) {
    const int g = i / 4;
    const int byte = lane * 4 + i % 4;
    const int q = codes[i];
    if (l.bits == 8) {
      packed[g * 64 + byte] = codes[i];
      continue;
    }
    packed[(g / 2) * 64 + byte] |= static_cast<uint8_t>((q & 15) << (4 * (g % 2)));
    if (l.bits == 5) high[byte] |= static_cast<uint8_t>((q >> 4) << g);
    if (l.bits == 6) high[(g / 4) * 64 + byte] |= static_cast<uint8_t>((q >> 4) << (2 * (g % 4)));
  }
}

int CodeAt(const PackedLayout& l, const uint8_t* high, const uint8_t* packed, int lane, int i) {
  const int g = i / 4;
  const int byte = lane * 4 + i % 4;
  if (l.bits == 8) return static_cast<int8_t>(packed[g * 64 + byte]);
  int q = (packed[(g / 2) * 64 + byte] >> (4 * (g % 2))) & 15;
  if (l.bits == 5) q |= ((high[byte] >> g) & 1) << 4;
  if (l.bits == 6) q |= ((high[(g / 4) * 64 + byte] >> (2 * (g % 4))) & 3) << 4;
  return q;
}

void PutScales(DType dtype, const PackedLayout& l, const std::byte* block, int j, int lane, uint8_t* head,
               uint8_t* scales) {
  if (!l.super) {
    SetHalf(scales, lane, block);
    if (l.minimum) SetHalf(scales + 32, lane, block + 2);
    return;
  }
  if (dtype == DType::kQ6_K) {
    SetHalf(head, lane, block + 208);
    scales[lane] = U8(block + 192 + 2 * j);
    scales[16 + lane] = U8(block + 192 + 2 * j + 1);
    return;
  }
  SetHalf(head, lane, block);
  SetHalf(head + 32, lane, block + 2);
  UnpackScaleMin6(reinterpret_cast<const uint8_t*>(block + 4), j, scales + lane, scales + 16 + lane);
}

// One row of the file into its lane of a zeroed panel.
void PackRow(DType dtype, const std::byte* row, int64_t cols, int lane, uint8_t* panel) {
  const PackedLayout l = LayoutOf(dtype);
  const DTypeInfo info = InfoOf(dtype);
  if (l.bits == 0) {
    const size_t size = static_cast<size_t>(info.block_bytes);
    for (int64_t i = 0; i < cols; ++i) {
      std::memcpy(panel + static_cast<size_t>(i * kPanelOutputs + lane) * size, row + static_cast<size_t>(i) * size,
                  size);
    }
    return;
  }
  uint8_t codes[kBlockInputs];
  for (int64_t b = 0; b < cols / info.block_elems; ++b, row += info.block_bytes, panel += l.SuperBytes()) {
    for (int j = 0; j < l.subs; ++j) {
      uint8_t* sub = panel + l.head_bytes + j * l.SubBytes();
      FileCodes(dtype, row, j, codes);
      PutScales(dtype, l, row, j, lane, panel, sub);
      PutCodes(l, codes, lane, sub + l.scale_bytes, sub + l.scale_bytes + l.high_bytes);
    }
  }
}

// The 32 values of one lane of a sub-block, computed as in DequantiseRow so that both agree exactly.
void DecodeSub(const PackedLayout& l, const uint8_t* head, const uint8_t* sub, int lane, float* out) {
  float d[2];
  float add = 0;
  if (!l.super) {
    d[0] = d[1] = HalfAt(sub, lane);
    add = l.minimum ? HalfAt(sub + 32, lane) : static_cast<float>(-l.offset) * d[0];
  } else if (l.split) {
    d[0] = HalfAt(head, lane) * static_cast<float>(static_cast<int8_t>(sub[lane]));
    d[1] = HalfAt(head, lane) * static_cast<float>(static_cast<int8_t>(sub[16 + lane]));
  } else {
    d[0] = d[1] = HalfAt(head, lane) * static_cast<float>(sub[lane]);
    add = -(HalfAt(head + 32, lane) * static_cast<float>(sub[16 + lane]));
  }
  const uint8_t* high = sub + l.scale_bytes;
  for (int i = 0; i < kBlockInputs; ++i) {
    const int q = CodeAt(l, high, high + l.high_bytes, lane, i);
    out[i] = l.split ? d[i / 16] * static_cast<float>(q - l.offset) : d[0] * static_cast<float>(q) + add;
  }
}

Status CheckParts(std::span<const HostMatrix> parts) {
  if (parts.empty()) return InvalidArgument("expected at least one matrix to pack, got none");
  const DType dtype = parts[0].dtype;
  const int64_t cols = parts[0].cols;
  const DTypeInfo info = InfoOf(dtype);
  if (cols < 1 || cols > kMaxCols || cols % info.block_elems != 0) {
    return InvalidArgument(std::string("expected a ") + info.name + " matrix to have a width of a multiple of " +
                           std::to_string(info.block_elems) + " up to " + std::to_string(kMaxCols) + ", got " +
                           std::to_string(cols));
  }
  int64_t rows = 0;
  for (const HostMatrix& m : parts) {
    if (m.dtype != dtype || m.cols != cols) {
      return InvalidArgument(std::string("expected stacked matrices to agree in type and width (") + info.name + ", " +
                             std::to_string(cols) + "), got " + InfoOf(m.dtype).name + ", " + std::to_string(m.cols));
    }
    if (m.rows < 1 || m.rows > kMaxRows - rows) {
      return InvalidArgument("expected stacked matrices to have 1 to " + std::to_string(kMaxRows) + " rows, got " +
                             std::to_string(m.rows) + " after " + std::to_string(rows));
    }
    rows += m.rows;
    const size_t want = BytesOf(dtype, static_cast<size_t>(cols)) * static_cast<size_t>(m.rows);
    if (m.data.size() != want) {
      return InvalidArgument(std::string("expected ") + std::to_string(want) + " bytes for a " + info.name +
                             " matrix of " + std::to_string(m.rows) + " x " + std::to_string(cols) + ", got " +
                             std::to_string(m.data.size()));
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<CpuMatrix> CpuMatrix::Pack(std::span<const HostMatrix> parts, ThreadPool* pool, PageArena* arena) {
  FS_RETURN_IF_ERROR(CheckParts(parts));
  CpuMatrix m;
  m.dtype_ = parts[0].dtype;
  m.cols_ = parts[0].cols;
  for (const HostMatrix& p : parts) m.rows_ += p.rows;
  const PackedLayout l = LayoutOf(m.dtype_);
  m.num_panels_ = (m.rows_ + kPanelOutputs - 1) / kPanelOutputs;
  m.panel_bytes_ = l.bits == 0 ? BytesOf(m.dtype_, static_cast<size_t>(m.cols_)) * kPanelOutputs
                               : static_cast<size_t>(m.cols_ / l.SuperInputs()) * static_cast<size_t>(l.SuperBytes());
  FS_ASSIGN_OR_RETURN(m.data_, arena->Allocate(m.bytes()));
  const size_t row_bytes = BytesOf(m.dtype_, static_cast<size_t>(m.cols_));
  pool->ParallelFor(m.num_panels_, [&](int64_t i, int) {
    auto* panel = reinterpret_cast<uint8_t*>(m.data_.data() + static_cast<size_t>(i) * m.panel_bytes_);
    for (int lane = 0; lane < kPanelOutputs; ++lane) {
      int64_t r = i * kPanelOutputs + lane;
      if (r >= m.rows_) break;
      size_t part = 0;
      while (r >= parts[part].rows) r -= parts[part++].rows;
      PackRow(m.dtype_, parts[part].data.data() + static_cast<size_t>(r) * row_bytes, m.cols_, lane, panel);
    }
  });
  return m;
}

void CpuMatrix::DecodeRow(int64_t r, float scale, float* out) const {
  const PackedLayout l = LayoutOf(dtype_);
  const auto* p = reinterpret_cast<const uint8_t*>(panel(r / kPanelOutputs));
  const int lane = static_cast<int>(r % kPanelOutputs);
  if (l.bits == 0) {
    const int size = InfoOf(dtype_).block_bytes;
    for (int64_t i = 0; i < cols_; ++i) {
      DequantiseRow(dtype_, reinterpret_cast<const std::byte*>(p + (i * kPanelOutputs + lane) * size), 1, out + i);
    }
  } else {
    for (int64_t b = 0; b < cols_ / kBlockInputs; ++b) {
      const uint8_t* head = p + b / l.subs * l.SuperBytes();
      DecodeSub(l, head, head + l.head_bytes + b % l.subs * l.SubBytes(), lane, out + b * kBlockInputs);
    }
  }
  for (int64_t i = 0; i < cols_; ++i) out[i] *= scale;
}

}  // namespace farsight
