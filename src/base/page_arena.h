// Buffers that share huge pages. A matrix of a small model is smaller than a huge page; on plain pages its own reading
// waits for address translation and the hardware stops fetching ahead at every 4 KiB, which halves the speed of a
// decode step. One after another in large chunks, matrices are read like one.
#ifndef FARSIGHT_BASE_PAGE_ARENA_H_
#define FARSIGHT_BASE_PAGE_ARENA_H_

#include <cstddef>
#include <mutex>

#include "base/buffer.h"
#include "farsight/status.h"

namespace farsight {

class PageArena {
 public:
  PageArena() = default;
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;
  ~PageArena();  // buffers may outlive it: a chunk goes back with the last buffer in it

  // As AllocateHost; any thread.
  StatusOr<Buffer> Allocate(size_t bytes);

 private:
  struct Chunk;
  static Chunk* MapChunk();
  static void Release(Chunk* chunk);
  static void Free(std::byte* data, size_t size);

  std::mutex mutex_;
  Chunk* chunk_ = nullptr;  // the one being filled
  size_t used_ = 0;         // bytes of it
};

}  // namespace farsight

#endif  // FARSIGHT_BASE_PAGE_ARENA_H_
