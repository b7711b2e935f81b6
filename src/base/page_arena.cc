#include "base/page_arena.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <string>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FS_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define FS_ADDRESS_SANITIZER 1
#endif

namespace farsight {
namespace {

// A chunk is aligned to its size, so that the chunk of a buffer follows from its address. Only what is used of it takes
// memory.
constexpr size_t kChunkBytes = size_t{16} << 20;
// Larger requests have huge pages of their own.
constexpr size_t kMaxShared = size_t{4} << 20;
constexpr size_t kAlign = 64;

}  // namespace

// Lies at the start of its chunk.
struct PageArena::Chunk {
  std::atomic<int64_t> users{1};  // buffers, and the arena while it fills the chunk
};

PageArena::~PageArena() {
  if (chunk_ != nullptr) Release(chunk_);
}

PageArena::Chunk* PageArena::MapChunk() {
  void* raw =
      mmap(nullptr, 2 * kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  const size_t skip = (kChunkBytes - reinterpret_cast<uintptr_t>(raw) % kChunkBytes) % kChunkBytes;
  if (skip > 0) munmap(start, skip);
  munmap(start + skip + kChunkBytes, kChunkBytes - skip);
  (void)madvise(start + skip, kChunkBytes, MADV_HUGEPAGE);  // advice: where it is refused, plain pages serve
  return new (start + skip) Chunk;
}

void PageArena::Release(Chunk* chunk) {
  if (chunk->users.fetch_sub(1, std::memory_order_acq_rel) == 1) munmap(chunk, kChunkBytes);
}

void PageArena::Free(std::byte* data, size_t) {
  Release(reinterpret_cast<Chunk*>(data - reinterpret_cast<uintptr_t>(data) % kChunkBytes));
}

StatusOr<Buffer> PageArena::Allocate(size_t bytes) {
#if defined(FS_ADDRESS_SANITIZER)
  return AllocateHost(bytes);  // every buffer with its own guards
#endif
  if (bytes == 0 || bytes > kMaxShared) return AllocateHost(bytes);
  const std::lock_guard lock(mutex_);
  const size_t padded = (bytes + kAlign - 1) / kAlign * kAlign;
  if (chunk_ == nullptr || padded > kChunkBytes - used_) {
    Chunk* fresh = MapChunk();
    if (fresh == nullptr) return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes of memory");
    if (chunk_ != nullptr) Release(chunk_);
    chunk_ = fresh;
    used_ = kAlign;  // behind the Chunk itself
  }
  std::byte* data = reinterpret_cast<std::byte*>(chunk_) + used_;
  used_ += padded;
  chunk_->users.fetch_add(1, std::memory_order_relaxed);
  return Buffer(data, bytes, Free);
}

}  // namespace farsight
