// Where things lie inside cache and summary pages; shared by the files that write and read them.
#ifndef FARSIGHT_OPS_CPU_ATTENTION_PAGES_H_
#define FARSIGHT_OPS_CPU_ATTENTION_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ops/cpu/attention_kernels.h"  // kSecondLevel
#include "ops/params.h"

namespace farsight {

// Query vectors of a tile: enough to amortise reading a page, few enough that scores and outputs stay in the caches.
inline constexpr int kTileQueries = 96;
// Blocks whose pooled keys meet a tile of queries at once.
inline constexpr int kPooledBlocks = 16;
inline int64_t WholePools(int blocks) {  // blocks, rounded up to whole groups of these
  return (static_cast<int64_t>(blocks) + kPooledBlocks - 1) / kPooledBlocks * kPooledBlocks;
}

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxBlockTokens = 256;

inline int PaddedDim(int head_dim) { return (head_dim + 15) / 16 * 16; }
inline int TypeIndex(DType t) { return t == DType::kF32 ? 0 : t == DType::kF16 ? 1 : 2; }  // of kernel tables
inline int64_t ElemBytes(DType t) { return InfoOf(t).block_bytes; }

// Importances lie behind the pooled keys: [B] of tokens, then [B / stride] means of windows.
inline float* ImportancePage(const KvView& kv, const SummaryView& s, int32_t block, int head) {
  return reinterpret_cast<float*>(s.Page(block, head)) + static_cast<int64_t>(kv.block_tokens / s.stride) * kv.head_dim;
}

// Physical block of a logical one. The index is checked: a list from elsewhere must never become an address.
inline int32_t PhysicalBlock(const RowBatch& rows, int seq, int block) {
  FS_CHECK(block >= 0 && block < rows.max_blocks, "a logical block is inside the block table");
  const int32_t id = rows.block_tables[static_cast<int64_t>(seq) * rows.max_blocks + block];
  FS_CHECK(id >= 0, "a block that is read or written has a physical block");
  return id;
}

// Asks for `bytes` of a page that is needed soon: pages lie anywhere, so the hardware cannot guess the next one.
inline void Prefetch(const std::byte* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, kSecondLevel);
}

// The parts of a sketch page.
struct SketchPage {
  float* centre;   // [D], used in block 0 only
  float* scales;   // [B]
  uint8_t* codes;  // [B / 32, rounded up][bytes of a token][32]: attention_kernels.h says which byte is whose
};
inline int SketchTokenBytes(int head_dim, int bits) { return head_dim * bits / 8; }
inline SketchPage SketchPageAt(const KvView& kv, const SummaryView& s, int32_t block, int head) {
  auto* base = reinterpret_cast<float*>(s.Page(block, head));
  return {base, base + kv.head_dim, reinterpret_cast<uint8_t*>(base + kv.head_dim + kv.block_tokens)};
}

inline float LoadKv(DType dtype, const std::byte* base, int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(base)[i];
  const uint16_t h = reinterpret_cast<const uint16_t*>(base)[i];
  return dtype == DType::kF16 ? F16ToF32(h) : BF16ToF32(h);
}
inline void StoreKv(DType dtype, std::byte* base, int64_t i, float x) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(base)[i] = x;
  } else {
    reinterpret_cast<uint16_t*>(base)[i] = dtype == DType::kF16 ? F32ToF16(x) : F32ToBF16(x);
  }
}

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ATTENTION_PAGES_H_
