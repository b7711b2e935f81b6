#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>

namespace farsight {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kHugePage = size_t{2} << 20;

void FreeSmall(std::byte* data, size_t) { ::operator delete[](data, std::align_val_t{kAlign}); }
void FreeMapped(std::byte* data, size_t size) { munmap(data, size); }

}  // namespace

StatusOr<Buffer> AllocateHost(size_t bytes) {
  const auto fail = [bytes] {
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes of memory");
  };
  if (bytes == 0) return Buffer();
  if (bytes > SIZE_MAX / 4) return fail();
  if (bytes < kHugePage) {
    void* p = ::operator new[](bytes, std::align_val_t{kAlign}, std::nothrow);
    if (p == nullptr) return fail();
    std::memset(p, 0, bytes);
    return Buffer(static_cast<std::byte*>(p), bytes, FreeSmall);
  }
  // Map one huge page more than needed, then cut the ends so that the range starts on a huge page.
  const size_t want = (bytes + 4095) / 4096 * 4096;
  void* raw =
      mmap(nullptr, want + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return fail();
  auto* start = static_cast<std::byte*>(raw);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(raw) % kHugePage) % kHugePage;
  std::byte* p = start + skip;
  if (skip > 0) munmap(start, skip);
  munmap(p + want, kHugePage - skip);
  (void)madvise(p, want, MADV_HUGEPAGE);  // advice: where it is refused, plain pages serve
  return Buffer(p, want, FreeMapped);
}

}  // namespace farsight
