// What the benchmarks share: a clock, medians, and the machine's own limits, measured in the same run as the cases.
#ifndef FARSIGHT_BENCH_MEASURE_H_
#define FARSIGHT_BENCH_MEASURE_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/read_memory.h"
#include "base/thread_pool.h"
#include "ops/cpu/cpu_backend.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace farsight {

// Median seconds of fn, called until `budget` seconds are spent and at least five times. One thread is measured in its
// own processor time, which other work on the machine disturbs less; several in wall time.
class Timer {
 public:
  Timer(int threads, double budget)
      : clock_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC), budget_(budget) {}

  template <typename Fn>
  double Median(Fn&& fn) const {
    fn();
    std::vector<double> samples;
    for (const double end = Now() + budget_; Now() < end || samples.size() < 5;) {
      const double start = Now();
      fn();
      samples.push_back(Now() - start);
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  double Now() const {
    timespec t;
    clock_gettime(clock_, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  clockid_t clock_;
  double budget_;
};

// GB/s of reading memory on all threads.
inline double ReadBandwidth(ThreadPool& pool, const Timer& timer) {
  constexpr size_t kBytes = size_t{256} << 20;
  auto buffer = AllocateHost(kBytes);
  if (!buffer.ok()) return 0;
  std::memset(buffer->data(), 1, kBytes);
  const size_t words = kBytes / 8 / static_cast<size_t>(pool.num_threads());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.num_threads()) * 8);
  const double s = timer.Median([&] {
    pool.RunOnAll([&](int t) {
      const auto i = static_cast<size_t>(t);
      sums[8 * i] = SumWords(buffer->as<const uint64_t>() + i * words, words);
    });
  });
  if (sums[0] == 1) std::puts("");  // the sums are used
  return static_cast<double>(kBytes) / s / 1e9;
}

#if defined(__x86_64__)
// Loops of one instruction: twelve chains hide its latency, and the empty asm keeps each one in a register and alive.
#define FS_TWELVE(X) X(a0) X(a1) X(a2) X(a3) X(a4) X(a5) X(a6) X(a7) X(a8) X(a9) X(a10) X(a11)
#define FS_LOOP(name, isa, type, start, step, constraint)    \
  __attribute__((target(isa))) inline void name(int64_t n) { \
    const type w = start;                                    \
    FS_TWELVE(FS_DECLARE)                                    \
    for (int64_t i = 0; i < n; ++i) {                        \
      FS_TWELVE(step)                                        \
    }                                                        \
  }
#define FS_DECLARE(a) auto a = w;
#define FS_STEP_MADDUBS(a)        \
  a = _mm256_maddubs_epi16(w, a); \
  __asm__ volatile("" : "+x"(a));
#define FS_STEP_DPBUSD(a)           \
  a = _mm512_dpbusd_epi32(a, w, w); \
  __asm__ volatile("" : "+v"(a));
#define FS_STEP_FMA256(a)       \
  a = _mm256_fmadd_ps(w, a, w); \
  __asm__ volatile("" : "+x"(a));
#define FS_STEP_FMA512(a)       \
  a = _mm512_fmadd_ps(w, a, w); \
  __asm__ volatile("" : "+v"(a));
FS_LOOP(MaddubsLoop, "avx2", __m256i, _mm256_set1_epi8(3), FS_STEP_MADDUBS, x)
FS_LOOP(DpbusdLoop, "avx512f,avx512vnni", __m512i, _mm512_set1_epi8(3), FS_STEP_DPBUSD, v)
FS_LOOP(Fma256Loop, "avx2,fma", __m256, _mm256_set1_ps(1.0f), FS_STEP_FMA256, x)
FS_LOOP(Fma512Loop, "avx512f", __m512, _mm512_set1_ps(1.0f), FS_STEP_FMA512, v)
#undef FS_TWELVE
#undef FS_LOOP
#undef FS_DECLARE
#undef FS_STEP_MADDUBS
#undef FS_STEP_DPBUSD
#undef FS_STEP_FMA256
#undef FS_STEP_FMA512
#endif

// Operations (a multiplication and an addition are two) a second on all threads, in 1e9, of the instruction that the
// kernels are built on; 0: unknown.
enum class Arithmetic { kInt8, kFloat };
inline double PeakGops(ThreadPool& pool, Isa isa, Arithmetic kind, const Timer& timer) {
#if defined(__x86_64__)
  if (isa == Isa::kScalar) return 0;
  constexpr int64_t kLoops = 1 << 18;
  const bool wide = isa == Isa::kAvx512 || isa == Isa::kAmx;
  const auto loop = kind == Arithmetic::kInt8 ? (wide ? DpbusdLoop : MaddubsLoop) : (wide ? Fma512Loop : Fma256Loop);
  const double ops = (kind == Arithmetic::kInt8 ? 64 : 16) * (wide ? 2 : 1);
  const double s = timer.Median([&] { pool.RunOnAll([&](int) { loop(kLoops); }); });
  return static_cast<double>(kLoops) * 12 * ops * pool.num_threads() / s / 1e9;
#else
  return 0;
#endif
}

// NAME [threads] [isa] [seconds per case] [substring of the cases wanted]
struct BenchArgs {
  int threads = 2;
  double budget = 1.0;
  const char* only = "";
  std::unique_ptr<CpuBackend> backend;  // null: a message was printed
};
inline BenchArgs ParseBenchArgs(const char* name, int argc, char** argv) {
  BenchArgs a;
  if (argc > 1) a.threads = std::atoi(argv[1]);
  if (argc > 3) a.budget = std::atof(argv[3]);
  if (argc > 4) a.only = argv[4];
  const auto isa = ParseIsa(argc > 2 ? argv[2] : "best");
  auto backend = isa.ok() ? CpuBackend::Create(a.threads, *isa) : StatusOr<std::unique_ptr<CpuBackend>>(isa.status());
  if (backend.ok()) {
    a.backend = std::move(*backend);
  } else {
    std::fprintf(stderr, "%s: %s\n", name, backend.status().message().c_str());
  }
  return a;
}

// A benchmark of kernels that wait for memory or for arithmetic: the two limits, measured first.
class KernelBench {
 protected:
  explicit KernelBench(BenchArgs args)
      : pool_(args.threads), timer_(args.threads, args.budget), only_(args.only), backend_(std::move(args.backend)) {}

  void Limits(Arithmetic kind) {
    read_gbs_ = ReadBandwidth(pool_, timer_);
    peak_gops_ = PeakGops(pool_, backend_->isa(), kind, timer_);
    const bool f = kind == Arithmetic::kFloat;
    std::printf("limit:read threads:%d GB/s:%.1f\nlimit:%s threads:%d %s:%.0f\n", pool_.num_threads(), read_gbs_,
                f ? "fma" : "int8", pool_.num_threads(), f ? "GFLOP/s" : "GOP/s", peak_gops_);
  }

  ThreadPool pool_;
  Timer timer_;
  std::string only_;
  std::unique_ptr<CpuBackend> backend_;
  double read_gbs_ = 1;
  double peak_gops_ = 0;  // of the arithmetic that was asked for
};

template <class Bench>
int RunBench(const char* name, int argc, char** argv) {
  BenchArgs args = ParseBenchArgs(name, argc, argv);
  if (args.backend == nullptr) return 2;
  return Bench(std::move(args)).Main();
}

}  // namespace farsight

#endif  // FARSIGHT_BENCH_MEASURE_H_
