// Where things lie in the reference backend's pages; shared by the files that write and read them.
#ifndef FARSIGHT_OPS_REF_REF_PAGES_H_
#define FARSIGHT_OPS_REF_REF_PAGES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/params.h"

namespace farsight {

// Importances lie behind the pooled keys: [B] of tokens, then [B / stride] means of windows.
inline float* ImportancePage(const KvView& kv, const SummaryView& s, int32_t block, int head) {
  auto* page = reinterpret_cast<float*>(s.Page(block, head));
  return page + static_cast<size_t>(kv.block_tokens / s.stride) * static_cast<size_t>(kv.head_dim);
}

inline int32_t PhysicalBlock(const RowBatch& rows, int seq, int block) {
  FS_CHECK(block >= 0 && block < rows.max_blocks, "a logical block is inside the block table");
  const int32_t id = rows.block_tables[static_cast<int64_t>(seq) * rows.max_blocks + block];
  FS_CHECK(id >= 0, "a block that is read or written has a physical block");
  return id;
}

inline float LoadElem(DType dtype, const std::byte* base, int64_t i) {
  if (dtype == DType::kF32) {
    float f;
    std::memcpy(&f, base + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, base + 2 * i, 2);
  return dtype == DType::kF16 ? F16ToF32(h) : BF16ToF32(h);
}

inline void StoreElem(DType dtype, std::byte* base, int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(base + 4 * i, &value, 4);
    return;
  }
  const uint16_t h = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
  std::memcpy(base + 2 * i, &h, 2);
}

// Reads key or value `token` (absolute position) of a sequence's KV head.
struct KvReader {
  const KvView& kv;
  const RowBatch& rows;
  int seq;
  int head;

  const std::byte* PageOf(int token) const { return kv.Page(PhysicalBlock(rows, seq, token / kv.block_tokens), head); }
  float K(int token, int d) const {
    return LoadElem(kv.dtype, PageOf(token), static_cast<int64_t>(token % kv.block_tokens) * kv.head_dim + d);
  }
  float V(int token, int d) const {
    return LoadElem(kv.dtype, PageOf(token),
                    static_cast<int64_t>(kv.block_tokens + token % kv.block_tokens) * kv.head_dim + d);
  }
};

inline void SoftmaxInto(std::vector<double>* z) {
  const double m = *std::max_element(z->begin(), z->end());
  double sum = 0;
  for (double& v : *z) sum += v = std::exp(v - m);
  for (double& v : *z) v /= sum;
}

}  // namespace farsight

#endif  // FARSIGHT_OPS_REF_REF_PAGES_H_
