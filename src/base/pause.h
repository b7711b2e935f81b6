// One turn of a loop that waits for another thread or the system without giving its core up.
#ifndef FARSIGHT_BASE_PAUSE_H_
#define FARSIGHT_BASE_PAUSE_H_

#if !defined(__x86_64__)
#include <thread>
#endif

namespace farsight {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace farsight

#endif  // FARSIGHT_BASE_PAUSE_H_
