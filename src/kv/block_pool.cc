#include "kv/block_pool.h"

#include "base/check.h"

namespace farsight {

BlockPool::BlockPool(int32_t num_blocks)
    : owners_(static_cast<size_t>(num_blocks), 0), generations_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(owners_.size());
  for (int32_t b = num_blocks - 1; b >= 0; --b) free_.push_back(b);  // block 0 is handed out first
}

int32_t BlockPool::Allocate() {
  if (free_.empty()) return -1;
  const int32_t b = free_.back();
  free_.pop_back();
  owners_[static_cast<size_t>(b)] = 1;
  ++generations_[static_cast<size_t>(b)];
  return b;
}

void BlockPool::AddOwner(int32_t block) {
  FS_CHECK(owners_[static_cast<size_t>(block)] > 0, "only an allocated block gets another owner");
  ++owners_[static_cast<size_t>(block)];
}

void BlockPool::Release(int32_t block) {
  auto& n = owners_[static_cast<size_t>(block)];
  FS_CHECK(n > 0, "a block is released once by each owner");
  if (--n == 0) free_.push_back(block);
}

}  // namespace farsight
