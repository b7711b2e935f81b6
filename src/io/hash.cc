#include "io/hash.h"

#define XXH_INLINE_ALL  // no library to link, and none for users of ours to find
#include <xxhash.h>

namespace farsight {

uint64_t Checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace farsight
