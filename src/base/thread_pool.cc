#include "base/thread_pool.h"

#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/pause.h"

namespace farsight {
namespace {

// About 100 us of spinning: longer than any gap between two ops of a step, shorter than a person notices on an idle
// engine. Past it a worker sleeps, so an idle process uses no CPU.
constexpr int kSpins = 20000;

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  FS_CHECK(num_threads >= 1, "a pool has at least one thread");
  // Workers look at num_threads_ only after they were given work.
  for (; num_threads_ < num_threads; ++num_threads_) {
    try {
      workers_.emplace_back([this, t = num_threads_] { Work(t); });
    } catch (const std::system_error&) {
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::RunAside() {
  if (const Call call = std::exchange(aside_, nullptr); call != nullptr) call(aside_ctx_, num_threads_ - 1);
}

void ThreadPool::Dispatch(Call call, void* ctx) {
  call_ = call;
  ctx_ = ctx;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);  // seq_cst: ordered before the read of sleepers_
  if (sleepers_.load() > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  call(ctx, 0);
  // A worker that the system descheduled can be late by milliseconds: give its core up rather than fight it.
  for (int spin = 0; running_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::Work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) Pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (thread == num_threads_ - 1) RunAside();
    call_(ctx_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace farsight
