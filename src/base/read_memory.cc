#include "base/read_memory.h"

namespace farsight {

uint64_t SumWords(const uint64_t* p, size_t n) {
  uint64_t s[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) s[j] += p[i + j];
  }
  for (; i < n; ++i) s[0] += p[i];
  for (size_t j = 1; j < 8; ++j) s[0] += s[j];
  return s[0];
}

}  // namespace farsight
