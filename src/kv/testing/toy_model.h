// A stand-in for a model over KV tiers: every page holds known bytes, every row reads blocks that follow from its
// position, and the answer of a sequence is a hash of all that was read. Whatever the tiers do, the answer must not
// change.
#ifndef FARSIGHT_KV_TESTING_TOY_MODEL_H_
#define FARSIGHT_KV_TESTING_TOY_MODEL_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "io/testing/fake_async_file.h"
#include "kv/sequence_cache.h"
#include "kv/tiers.h"

namespace farsight::testing {

inline uint64_t Mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

struct ToyShape {
  int32_t layers = 3;
  int32_t heads = 2;
  int32_t num_blocks = 64;
  int32_t block_tokens = 4;
  int32_t picks = 3;  // blocks a row reads beside the first and its own
  uint64_t page_bytes = 4096;
  uint64_t summary_row_bytes = 0;

  StoreGeometry geometry() const { return {layers, heads, page_bytes, summary_row_bytes, 4}; }
  TierNeeds needs(int rows, bool lookahead) const {
    return {layers,
            heads,
            1,
            std::min(num_blocks, rows * (picks + 2)),
            (rows + block_tokens - 2) / block_tokens + 1,
            lookahead ? 2 : 1};
  }
};

struct ToySequence {
  SequenceCache cache;
  uint64_t answer = 0;  // of all rows so far
};

class ToyModel {
 public:
  ToyModel(const ToyShape& toy, int64_t slots, std::unique_ptr<AsyncFile> file, RetentionOptions retention = {})
      : shape(toy),
        pool(toy.num_blocks),
        memory_(AllocateHost(static_cast<size_t>(slots) * toy.page_bytes + kIoAlignment).value()) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    auto store = std::make_unique<BlockStore>(std::move(file), toy.geometry(), 0, UINT64_MAX, false);
    const std::span<std::byte> bytes(memory_.data() + (RoundUpToIo(at) - at),
                                     static_cast<size_t>(slots) * toy.page_bytes);
    tiers = KvTiers::Create({toy.layers, toy.heads, toy.num_blocks, toy.page_bytes, retention}, bytes, std::move(store))
                .value();
  }

  ToySequence NewSequence() { return {SequenceCache(&pool, shape.block_tokens), 0}; }

  // Appends tokens to several sequences in one step and reads. On an error the answers are unchanged.
  Status Step(const std::vector<std::pair<ToySequence*, std::vector<int32_t>>>& work) {
    std::vector<BlockCopy> copies;
    for (const auto& [seq, tokens] : work) {
      if (!tokens.empty()) FS_RETURN_IF_ERROR(ReopenLast(&seq->cache));
      if (!seq->cache.Append(tokens, &copies)) return ResourceExhausted("the block pool is full");
    }
    FS_RETURN_IF_ERROR(tiers->Follow(pool));
    FS_RETURN_IF_ERROR(BeginFresh(work));
    tiers->BeginStep();
    for (int32_t l = 0; l < shape.layers; ++l) {
      for (const BlockCopy& copy : copies) FS_RETURN_IF_ERROR(Copy(l, copy));
    }
    std::vector<uint64_t> read(work.size(), 0);
    FetchTicket ahead;
    if (lookahead) FS_RETURN_IF_ERROR(Prepare(0, work, &ahead));
    for (int32_t l = 0; l < shape.layers; ++l) {
      FetchTicket ticket = ahead;
      Status status;
      if (!lookahead) status = Prepare(l, work, &ticket);
      if (!status.ok()) return status;
      Write(l, work);
      if (lookahead && l + 1 < shape.layers) status = Prepare(l + 1, work, &ahead);
      if (!status.ok()) {
        tiers->Finish(ticket);
        return status;
      }
      status = tiers->Wait(ticket);
      if (!status.ok()) {
        if (lookahead && l + 1 < shape.layers) tiers->Finish(ahead);
        return status;
      }
      for (size_t i = 0; i < work.size(); ++i) read[i] = Read(l, *work[i].first, work[i].second.size(), read[i]);
      tiers->Finish(ticket);
      tiers->EndAppend(l, Full(work));
    }
    for (size_t i = 0; i < work.size(); ++i) work[i].first->answer = Mix(work[i].first->answer ^ read[i]);
    return OkStatus();
  }

  // The bytes a page must hold: tokens of the sequence up to its length.
  bool Holds(int32_t layer, const SequenceCache& cache, size_t block, int32_t head) {
    const std::byte* page = tiers->PageData(layer, cache.blocks()[block] * shape.heads + head);
    if (page == nullptr) return false;
    for (int32_t i = 0; i < shape.block_tokens; ++i) {
      const auto pos = static_cast<int64_t>(block) * shape.block_tokens + i;
      if (pos >= cache.length()) return true;
      uint64_t value;
      std::memcpy(&value, page + TokenAt(i), sizeof(value));
      if (value != Value(layer, head, pos, cache.tokens()[static_cast<size_t>(pos)])) return false;
    }
    return true;
  }

  ToyShape shape;
  BlockPool pool;
  bool lookahead = true;
  int32_t home = 0;  // store of fresh blocks

 private:
  Buffer memory_;  // outlives the tiers

 public:
  std::unique_ptr<KvTiers> tiers;

 private:
  using Work = std::vector<std::pair<ToySequence*, std::vector<int32_t>>>;

  size_t TokenAt(int32_t i) const {
    return static_cast<size_t>(i) * (shape.page_bytes / static_cast<size_t>(shape.block_tokens));
  }
  static uint64_t Value(int32_t layer, int32_t head, int64_t pos, int32_t token) {
    return Mix(static_cast<uint64_t>(token) * 1000003u + static_cast<uint64_t>(pos) * 64u +
               static_cast<uint64_t>(layer) * 8u + static_cast<uint64_t>(head));
  }

  // A partly filled last block that was full before, or was read from a session, is written again.
  Status ReopenLast(SequenceCache* cache) {
    if (cache->length() % shape.block_tokens == 0 || pool.Shared(cache->blocks().back())) return OkStatus();
    return tiers->Reopen(cache->blocks().back());
  }

  Status BeginFresh(const Work& work) {
    for (const auto& [seq, tokens] : work) {
      const int64_t first = seq->cache.length() - static_cast<int64_t>(tokens.size());
      const auto blocks = seq->cache.blocks();
      for (auto b = static_cast<size_t>((first + shape.block_tokens - 1) / shape.block_tokens); b < blocks.size();
           ++b) {
        if (home != 0) FS_RETURN_IF_ERROR(tiers->Begin(blocks[b], home));
      }
    }
    return OkStatus();
  }

  Status Copy(int32_t layer, const BlockCopy& copy) {
    std::vector<int32_t> pages;
    for (int32_t h = 0; h < shape.heads; ++h) pages.push_back(copy.from * shape.heads + h);
    FS_ASSIGN_OR_RETURN(const FetchTicket ticket, tiers->Request(layer, pages));
    FS_RETURN_IF_ERROR(tiers->Wait(ticket));
    FS_RETURN_IF_ERROR(tiers->BeginAppend(layer, {&copy.to, 1}));
    for (int32_t h = 0; h < shape.heads; ++h) {
      std::memcpy(tiers->PageData(layer, copy.to * shape.heads + h),
                  tiers->PageData(layer, copy.from * shape.heads + h), shape.page_bytes);
    }
    tiers->Finish(ticket);
    return OkStatus();
  }

  // Block of row `pos` number `pick`: the first, its own, and some before it, the near ones more often.
  int64_t Pick(int32_t layer, int32_t head, int64_t pos, int32_t pick) const {
    const int64_t own = pos / shape.block_tokens;
    if (pick < 2) return pick == 0 ? 0 : own;
    const uint64_t r = Mix(static_cast<uint64_t>(pos / 3) * 77u + static_cast<uint64_t>(layer * 8 + head) * 1009u +
                           static_cast<uint64_t>(pick));
    return static_cast<int64_t>(r % static_cast<uint64_t>(own + 1));
  }

  Status Prepare(int32_t layer, const Work& work, FetchTicket* ticket) {
    blocks_.clear();
    pages_.clear();
    for (const auto& [seq, tokens] : work) {
      const auto table = seq->cache.blocks();
      const int64_t first = seq->cache.length() - static_cast<int64_t>(tokens.size());
      for (int64_t b = first / shape.block_tokens; !tokens.empty() && b < static_cast<int64_t>(table.size()); ++b) {
        blocks_.push_back(table[static_cast<size_t>(b)]);
      }
      for (int64_t pos = first; pos < seq->cache.length(); ++pos) {
        for (int32_t h = 0; h < shape.heads; ++h) {
          for (int32_t k = 0; k < shape.picks + 2; ++k) {
            pages_.push_back(table[static_cast<size_t>(Pick(layer, h, pos, k))] * shape.heads + h);
          }
        }
      }
    }
    FS_RETURN_IF_ERROR(tiers->BeginAppend(layer, blocks_));
    FS_ASSIGN_OR_RETURN(*ticket, tiers->Request(layer, pages_));
    return OkStatus();
  }

  void Write(int32_t layer, const Work& work) {
    for (const auto& [seq, tokens] : work) {
      const int64_t first = seq->cache.length() - static_cast<int64_t>(tokens.size());
      for (int64_t pos = first; pos < seq->cache.length(); ++pos) {
        const int32_t block = seq->cache.blocks()[static_cast<size_t>(pos / shape.block_tokens)];
        for (int32_t h = 0; h < shape.heads; ++h) {
          const uint64_t v = Value(layer, h, pos, seq->cache.tokens()[static_cast<size_t>(pos)]);
          std::byte* page = tiers->PageData(layer, block * shape.heads + h);
          std::memcpy(page + TokenAt(static_cast<int32_t>(pos % shape.block_tokens)), &v, sizeof(v));
        }
      }
    }
  }

  uint64_t Read(int32_t layer, const ToySequence& seq, size_t rows, uint64_t hash) const {
    const int64_t first = seq.cache.length() - static_cast<int64_t>(rows);
    const int32_t* slots = tiers->slots(layer);
    for (int64_t pos = first; pos < seq.cache.length(); ++pos) {
      for (int32_t h = 0; h < shape.heads; ++h) {
        for (int32_t k = 0; k < shape.picks + 2; ++k) {
          const int64_t b = Pick(layer, h, pos, k);
          const int32_t page = seq.cache.blocks()[static_cast<size_t>(b)] * shape.heads + h;
          FS_CHECK(slots[page] >= 0, "a page that was waited for has a slot");
          const std::byte* data = tiers->PageData(layer, page);
          for (int32_t i = 0; i < shape.block_tokens && b * shape.block_tokens + i <= pos; ++i) {
            uint64_t v;
            std::memcpy(&v, data + TokenAt(i), sizeof(v));
            hash = Mix(hash * 31 + v);
          }
        }
      }
    }
    return hash;
  }

  const std::vector<int32_t>& Full(const Work& work) {
    blocks_.clear();
    for (const auto& [seq, tokens] : work) {
      const int64_t first = seq->cache.length() - static_cast<int64_t>(tokens.size());
      for (int64_t b = first / shape.block_tokens; b < seq->cache.length() / shape.block_tokens; ++b) {
        blocks_.push_back(seq->cache.blocks()[static_cast<size_t>(b)]);
      }
    }
    return blocks_;
  }

  std::vector<int32_t> blocks_, pages_;
};

inline std::vector<int32_t> ToyTokens(size_t n, uint64_t seed) {
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(Mix(seed * 7919 + i) % 1000);
  return out;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_KV_TESTING_TOY_MODEL_H_
