// CHECK for our own broken invariants, always on; DCHECK for hot loops. Never for input from outside: that gets a
// Status.
#ifndef FARSIGHT_BASE_CHECK_H_
#define FARSIGHT_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace farsight {
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* text) {
  std::fprintf(stderr, "farsight: broken invariant at %s:%d: %s\n", file, line, text);
  std::abort();
}
}  // namespace farsight

#define FS_CHECK(cond, text)                                        \
  do {                                                              \
    if (!(cond)) ::farsight::CheckFailed(__FILE__, __LINE__, text); \
  } while (0)
#ifdef NDEBUG
#define FS_DCHECK(cond, text) \
  do {                        \
  } while (0)
#else
#define FS_DCHECK(cond, text) FS_CHECK(cond, text)
#endif

#endif  // FARSIGHT_BASE_CHECK_H_
