// Reading memory and nothing else: what a machine's bandwidth is measured with.
#ifndef FARSIGHT_BASE_READ_MEMORY_H_
#define FARSIGHT_BASE_READ_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace farsight {

// The sum of n words, modulo 2^64. A function of this library because the compiler has to make vectors of it: word by
// word a core adds slower than memory gives.
uint64_t SumWords(const uint64_t* p, size_t n);

}  // namespace farsight

#endif  // FARSIGHT_BASE_READ_MEMORY_H_
