#include "kv/sequence_cache.h"

#include <utility>

#include "base/check.h"

namespace farsight {

SequenceCache::SequenceCache(SequenceCache&& o) noexcept
    : pool_(o.pool_),
      block_tokens_(o.block_tokens_),
      tokens_(std::exchange(o.tokens_, {})),
      blocks_(std::exchange(o.blocks_, {})) {}

SequenceCache& SequenceCache::operator=(SequenceCache&& o) noexcept {
  if (this != &o) {
    Truncate(0);
    pool_ = o.pool_;
    block_tokens_ = o.block_tokens_;
    tokens_ = std::exchange(o.tokens_, {});
    blocks_ = std::exchange(o.blocks_, {});
  }
  return *this;
}

int32_t SequenceCache::BlocksNeeded(int64_t n) const {
  if (n == 0) return 0;
  const int64_t total = (length() + n + block_tokens_ - 1) / block_tokens_;
  const bool copy = length() % block_tokens_ != 0 && pool_->Shared(blocks_.back());
  return static_cast<int32_t>(total - static_cast<int64_t>(blocks_.size())) + (copy ? 1 : 0);
}

bool SequenceCache::Append(std::span<const int32_t> tokens, std::vector<BlockCopy>* copies) {
  if (tokens.empty()) return true;
  if (BlocksNeeded(static_cast<int64_t>(tokens.size())) > pool_->num_free()) return false;
  if (length() % block_tokens_ != 0 && pool_->Shared(blocks_.back())) {
    const int32_t copy = pool_->Allocate();
    copies->push_back({blocks_.back(), copy});
    pool_->Release(blocks_.back());
    blocks_.back() = copy;
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  while (static_cast<int64_t>(blocks_.size()) * block_tokens_ < length()) blocks_.push_back(pool_->Allocate());
  return true;
}

void SequenceCache::Truncate(int64_t length) {
  FS_CHECK(length >= 0 && length <= this->length(), "a cache is truncated to at most its length");
  tokens_.resize(static_cast<size_t>(length));
  const auto keep = static_cast<size_t>((length + block_tokens_ - 1) / block_tokens_);
  while (blocks_.size() > keep) {
    pool_->Release(blocks_.back());
    blocks_.pop_back();
  }
}

SequenceCache SequenceCache::Fork(int64_t length) const {
  FS_CHECK(length >= 0 && length <= this->length(), "a fork is at most as long as its origin");
  SequenceCache out(pool_, block_tokens_);
  out.tokens_.assign(tokens_.begin(), tokens_.begin() + length);
  const auto keep = static_cast<size_t>((length + block_tokens_ - 1) / block_tokens_);
  for (size_t i = 0; i < keep; ++i) {
    pool_->AddOwner(blocks_[i]);
    out.blocks_.push_back(blocks_[i]);
  }
  return out;
}

}  // namespace farsight
