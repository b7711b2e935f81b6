// XXH3, 64 bits: checksums against broken disks and memory. Not a signature: whoever can write the bytes can also write
// the sum.
#ifndef FARSIGHT_IO_HASH_H_
#define FARSIGHT_IO_HASH_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace farsight {

uint64_t Checksum(std::span<const std::byte> bytes);

}  // namespace farsight

#endif  // FARSIGHT_IO_HASH_H_
