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
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(raw, aligned - start);
  const uintptr_t end = aligned + want;
  const uintptr_t raw_end = start + want + kHugePage;
  if (raw_end > end) munmap(reinterpret_cast<void*>(end), raw_end - end);
  auto* p = reinterpret_cast<std::byte*>(aligned);
  (void)madvise(p, want, MADV_HUGEPAGE);  // advice: where it is refused, plain pages serve
  return Buffer(p, want, FreeMapped);
}

}  // namespace farsight
