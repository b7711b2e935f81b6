// How often the program asked for memory with new, for tests that a path asks for none.
#ifndef FARSIGHT_KV_TESTING_COUNT_ALLOCATIONS_H_
#define FARSIGHT_KV_TESTING_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace farsight::testing {
int64_t CountAllocations();
}  // namespace farsight::testing

#endif  // FARSIGHT_KV_TESTING_COUNT_ALLOCATIONS_H_
