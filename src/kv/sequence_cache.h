// The cached tokens of one sequence and the physical blocks they lie in.
#ifndef FARSIGHT_KV_SEQUENCE_CACHE_H_
#define FARSIGHT_KV_SEQUENCE_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace farsight {

// A block to copy (all layers and heads) before the next step writes into `to`.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// Key summaries need no books of their own: a block's summary depends on nothing after the block, so truncating the
// tokens truncates them, and a shared block shares its summary.
class SequenceCache {
 public:
  SequenceCache(BlockPool* pool, int block_tokens) : pool_(pool), block_tokens_(block_tokens) {}
  ~SequenceCache() { Truncate(0); }
  SequenceCache(SequenceCache&& o) noexcept;
  SequenceCache& operator=(SequenceCache&& o) noexcept;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> blocks() const { return blocks_; }

  // Free blocks that appending n tokens would take, a copy of a shared last block included.
  int32_t BlocksNeeded(int64_t n) const;
  // Appends tokens, allocating blocks; false (and nothing changed) when the pool has too few. A partly filled last
  // block with another owner is replaced by a copy, which the caller must carry out before writing.
  [[nodiscard]] bool Append(std::span<const int32_t> tokens, std::vector<BlockCopy>* copies);
  // Drops all tokens from `length` on and the blocks that become empty.
  void Truncate(int64_t length);
  // A second sequence with the first `length` tokens, sharing their blocks.
  SequenceCache Fork(int64_t length) const;

 private:
  BlockPool* pool_;
  int block_tokens_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_;  // physical block of each logical block
};

}  // namespace farsight

#endif  // FARSIGHT_KV_SEQUENCE_CACHE_H_
