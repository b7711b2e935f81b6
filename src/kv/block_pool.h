// Books over physical KV blocks: which are free and how many owners each has. Ids and counts only, never a byte of KV.
#ifndef FARSIGHT_KV_BLOCK_POOL_H_
#define FARSIGHT_KV_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace farsight {

// A physical block holds block_tokens tokens of every layer and KV head. Blocks with more than one owner are read-only:
// an owner that wants to write takes a copy first (copy on write).
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(owners_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  int32_t Allocate();            // one owner; -1 when none is free
  void AddOwner(int32_t block);  // of an allocated block
  void Release(int32_t block);   // one owner less; free again at zero
  bool Shared(int32_t block) const { return owners_[static_cast<size_t>(block)] > 1; }
  bool Owned(int32_t block) const { return owners_[static_cast<size_t>(block)] > 0; }
  // Differs whenever the block was handed out again: what was known of it before is no longer true.
  uint32_t generation(int32_t block) const { return generations_[static_cast<size_t>(block)]; }

 private:
  std::vector<int32_t> owners_;        // [num_blocks]
  std::vector<uint32_t> generations_;  // [num_blocks] times it was handed out
  std::vector<int32_t> free_;          // a stack: the block freed last is warm in the caches
};

}  // namespace farsight

#endif  // FARSIGHT_KV_BLOCK_POOL_H_
