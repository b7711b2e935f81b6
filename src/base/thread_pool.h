// A fixed set of worker threads that spin briefly, then sleep. One fork-join costs well under a microsecond while hot.
#ifndef FARSIGHT_BASE_THREAD_POOL_H_
#define FARSIGHT_BASE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace farsight {

class ThreadPool {
 public:
  // num_threads >= 1 counts the calling thread; num_threads - 1 workers are started, fewer where the system refuses.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(thread_index) once on each of the num_threads threads (0 is the caller) and returns when all are done.
  // Not reentrant; one caller at a time.
  template <typename Fn>
  void RunOnAll(Fn&& fn) {
    if (num_threads_ == 1) {
      fn(0);
      return;
    }
    Dispatch([](void* ctx, int thread) { (*static_cast<std::remove_reference_t<Fn>*>(ctx))(thread); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Calls fn(task, thread) for every task in [0, num_tasks); tasks are handed out one by one, in ascending order.
  template <typename Fn>
  void ParallelFor(int64_t num_tasks, Fn&& fn) {
    if (num_tasks <= 0) return;
    if (num_threads_ == 1 || num_tasks == 1) {
      for (int64_t t = 0; t < num_tasks; ++t) fn(t, 0);
      return;
    }
    next_task_.store(0, std::memory_order_relaxed);
    RunOnAll([&](int thread) {
      for (int64_t t; (t = next_task_.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) fn(t, thread);
    });
  }

  using Call = void (*)(void* ctx, int thread);
  // Has the last worker call this before its part of the next RunOnAll or ParallelFor, while the others begin theirs.
  // RunAside, by the caller, at the end: whatever nobody came to is done there.
  void SetAside(Call call, void* ctx) {
    aside_ = call;
    aside_ctx_ = ctx;
  }
  void RunAside();

 private:
  void Dispatch(Call call, void* ctx);
  void Work(int thread);

  int num_threads_ = 1;
  Call call_ = nullptr;
  void* ctx_ = nullptr;
  Call aside_ = nullptr;
  void* aside_ctx_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};  // bumped to start a job
  alignas(64) std::atomic<int> running_{0};          // workers not yet done with the job
  alignas(64) std::atomic<int64_t> next_task_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace farsight

#endif  // FARSIGHT_BASE_THREAD_POOL_H_
