// Times the matrix products of a small model (SmolLM2-135M: 30 layers, hidden 576, Q4_1, a Q8_0 head) as a decode step
// and as a prefill chunk, against the machine's own limits measured in the same run.
//   bench_matmul [threads] [isa] [seconds per case]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace farsight {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Median seconds of fn, called until `budget` seconds are spent and at least five times.
template <typename Fn>
double Time(double budget, Fn&& fn) {
  fn();
  std::vector<double> samples;
  for (const double end = Now() + budget; Now() < end || samples.size() < 5;) {
    const double start = Now();
    fn();
    samples.push_back(Now() - start);
  }
  return Median(samples);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t SumWords(const uint64_t* p, size_t n) {
  __m256i s0 = _mm256_setzero_si256();
  __m256i s1 = s0;
  __m256i s2 = s0;
  __m256i s3 = s0;
  const auto* v = reinterpret_cast<const __m256i*>(p);
  for (size_t i = 0; i + 4 <= n / 4; i += 4) {
    s0 = _mm256_add_epi64(s0, _mm256_load_si256(v + i));
    s1 = _mm256_add_epi64(s1, _mm256_load_si256(v + i + 1));
    s2 = _mm256_add_epi64(s2, _mm256_load_si256(v + i + 2));
    s3 = _mm256_add_epi64(s3, _mm256_load_si256(v + i + 3));
  }
  s0 = _mm256_add_epi64(_mm256_add_epi64(s0, s1), _mm256_add_epi64(s2, s3));
  return static_cast<uint64_t>(_mm256_extract_epi64(s0, 0));
}
#else
uint64_t SumWords(const uint64_t* p, size_t n) {
  uint64_t s = 0;
  for (size_t i = 0; i < n; ++i) s += p[i];
  return s;
}
#endif

// GB/s of reading memory on all threads.
double ReadBandwidth(ThreadPool& pool, double budget) {
  constexpr size_t kBytes = size_t{256} << 20;
  auto buffer = AllocateHost(kBytes);
  if (!buffer.ok()) return 0;
  std::memset(buffer->data(), 1, kBytes);
  const size_t words = kBytes / 8 / static_cast<size_t>(pool.num_threads());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.num_threads()) * 8);
  const double s = Time(budget, [&] {
    pool.RunOnAll([&](int t) {
      const auto i = static_cast<size_t>(t);
      sums[8 * i] = SumWords(buffer->as<const uint64_t>() + i * words, words);
    });
  });
  if (sums[0] == 1) std::puts("");  // the sums are used
  return static_cast<double>(kBytes) / s / 1e9;
}

#if defined(__x86_64__)
// Twelve chains hide the latency of either instruction; the empty asm keeps each one in a register and alive.
#define FS_TWELVE(X) X(a0) X(a1) X(a2) X(a3) X(a4) X(a5) X(a6) X(a7) X(a8) X(a9) X(a10) X(a11)
__attribute__((target("avx2"))) void MaddubsLoop(int64_t n) {
  const __m256i w = _mm256_set1_epi8(3);
#define FS_DECLARE(a) __m256i a = w;
#define FS_STEP(a)                \
  a = _mm256_maddubs_epi16(w, a); \
  __asm__ volatile("" : "+x"(a));
  FS_TWELVE(FS_DECLARE)
  for (int64_t i = 0; i < n; ++i) {
    FS_TWELVE(FS_STEP)
  }
#undef FS_DECLARE
#undef FS_STEP
}
__attribute__((target("avx512f,avx512vnni"))) void DpbusdLoop(int64_t n) {
  const __m512i w = _mm512_set1_epi8(3);
#define FS_DECLARE(a) __m512i a = w;
#define FS_STEP(a)                  \
  a = _mm512_dpbusd_epi32(a, w, w); \
  __asm__ volatile("" : "+v"(a));
  FS_TWELVE(FS_DECLARE)
  for (int64_t i = 0; i < n; ++i) {
    FS_TWELVE(FS_STEP)
  }
#undef FS_DECLARE
#undef FS_STEP
}
#undef FS_TWELVE
#endif

// GOP/s (a multiplication and an addition are two) of the int8 instruction that the kernels are built on; 0: unknown.
double Int8Peak(ThreadPool& pool, Isa isa, double budget) {
#if defined(__x86_64__)
  if (isa == Isa::kScalar) return 0;
  constexpr int64_t kLoops = 1 << 18;
  const double s = Time(
      budget, [&] { pool.RunOnAll([&](int) { isa == Isa::kAvx512 ? DpbusdLoop(kLoops) : MaddubsLoop(kLoops); }); });
  const double ops = isa == Isa::kAvx512 ? 128 : 64;
  return static_cast<double>(kLoops) * 12 * ops * pool.num_threads() / s / 1e9;
#else
  return 0;
#endif
}

std::vector<std::byte> RandomWeight(DType type, int64_t rows, int64_t cols, std::mt19937& rng) {
  std::vector<std::byte> bytes(BytesOf(type, static_cast<size_t>(rows * cols)));
  for (auto& b : bytes) b = static_cast<std::byte>(rng());
  const size_t step = static_cast<size_t>(InfoOf(type).block_bytes);
  const uint16_t half = F32ToF16(0.01f);
  const bool two = type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kQ5_1 || type == DType::kQ5_K;
  const bool last = type == DType::kQ6_K;
  const bool plain = !IsQuantised(type);
  for (size_t at = 0; at < bytes.size(); at += step) {
    if (type == DType::kF32) {
      const float f = 0.01f * static_cast<float>(at % 7);
      std::memcpy(&bytes[at], &f, 4);
    } else {
      std::memcpy(&bytes[at + (last ? 208 : 0)], &half, 2);
    }
    if (two && !plain) std::memcpy(&bytes[at + 2], &half, 2);
  }
  return bytes;
}

struct Shape {
  int64_t n;
  int64_t k;
};

class Bench {
 public:
  Bench(int threads, std::unique_ptr<CpuBackend> backend, double budget)
      : pool_(threads), backend_(std::move(backend)), budget_(budget), in_(512 * 8192), out_(512 * 8192) {
    std::normal_distribution<float> normal;
    for (float& x : in_) x = normal(rng_);
  }

  void Limits() {
    read_gbs_ = ReadBandwidth(pool_, budget_);
    int8_gops_ = Int8Peak(pool_, backend_->isa(), budget_);
    std::printf("limit:read threads:%d GB/s:%.1f\nlimit:int8 threads:%d GOP/s:%.0f\n", pool_.num_threads(), read_gbs_,
                pool_.num_threads(), int8_gops_);
  }

  bool Add(DType type, Shape shape, int copies) {
    for (int i = 0; i < copies; ++i) {
      const std::vector<std::byte> bytes = RandomWeight(type, shape.n, shape.k, rng_);
      const HostMatrix host{type, shape.n, shape.k, bytes};
      auto m = backend_->PrepareMatrix({&host, 1});
      if (!m.ok() || (i == 0 && !Verify(host, *m))) return false;
      weights_.push_back(std::move(*m));
    }
    return true;
  }
  void Clear() { weights_.clear(); }

  void Run(const char* name, int rows) {
    double bytes = 0;
    double ops = 0;
    for (const CpuMatrix& w : weights_) {
      bytes += static_cast<double>(w.bytes());
      ops += 2.0 * static_cast<double>(w.rows() * w.cols()) * rows;
    }
    const double s = Time(budget_, [&] {
      for (const CpuMatrix& w : weights_) Multiply(w, rows);
    });
    std::printf("case:%s rows:%d threads:%d isa:%s ms:%.3f GB/s:%.1f read_share:%.2f GOP/s:%.0f int8_share:%.2f\n",
                name, rows, backend_->num_threads(), IsaName(backend_->isa()), s * 1e3, bytes / s / 1e9,
                bytes / s / 1e9 / read_gbs_, ops / s / 1e9, int8_gops_ > 0 ? ops / s / 1e9 / int8_gops_ : 0.0);
    std::fflush(stdout);
  }

 private:
  void Multiply(const CpuMatrix& w, int rows) {
    MatMulParams<CpuMatrix> p;
    p.weight = &w;
    p.in = in_.data();
    p.in_stride = w.cols();
    p.num_rows = rows;
    // The head's logits are wanted for few rows only; wide outputs share the buffer by wrapping around.
    p.out_stride = w.rows();
    if (static_cast<size_t>(rows * w.rows()) > out_.size()) out_.resize(static_cast<size_t>(rows * w.rows()));
    p.out = out_.data();
    backend_->MatMul(p);
  }

  // The first rows of a product against the reference, to the size of the inputs' quantisation.
  bool Verify(const HostMatrix& host, const CpuMatrix& w) {
    RefBackend ref;
    HostMatrix head = host;
    head.rows = 16;
    head.data = host.data.first(host.data.size() / static_cast<size_t>(host.rows) * 16);
    const auto rw = ref.PrepareMatrix({&head, 1});
    if (!rw.ok()) return false;
    Multiply(w, 5);
    std::vector<float> want(5 * 16);
    MatMulParams<RefMatrix> p;
    p.weight = &*rw;
    p.in = in_.data();
    p.out = want.data();
    p.in_stride = w.cols();
    p.out_stride = 16;
    p.num_rows = 5;
    ref.MatMul(p);
    double error = 0;
    double size = 0;
    for (int t = 0; t < 5; ++t) {
      for (int j = 0; j < 16; ++j) {
        const double x = want[static_cast<size_t>(16 * t + j)];
        error += std::pow(x - out_[static_cast<size_t>(t * w.rows() + j)], 2);
        size += x * x;
      }
    }
    if (error <= 4e-4 * size) return true;
    std::fprintf(stderr, "bench_matmul: %s products are off by %.3g of their size\n", InfoOf(host.dtype).name,
                 std::sqrt(error / size));
    return false;
  }

  ThreadPool pool_;
  std::unique_ptr<CpuBackend> backend_;
  double budget_;
  double read_gbs_ = 1;
  double int8_gops_ = 0;
  std::mt19937 rng_{7};
  std::vector<CpuMatrix> weights_;
  std::vector<float> in_;
  std::vector<float> out_;
};

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto isa = ParseIsa(argc > 2 ? argv[2] : "best");
  const double budget = argc > 3 ? std::atof(argv[3]) : 1.0;
  auto backend = isa.ok() ? CpuBackend::Create(threads, *isa) : StatusOr<std::unique_ptr<CpuBackend>>(isa.status());
  if (!backend.ok()) {
    std::fprintf(stderr, "bench_matmul: %s\n", backend.status().message().c_str());
    return 2;
  }
  OpLimits limits;
  limits.max_rows = 512;
  limits.max_width = 8192;
  limits.num_heads = limits.num_kv_heads = 1;
  limits.max_seqs = limits.max_blocks = 1;
  limits.head_dim = 64;
  if (!(*backend)->Reserve(limits).ok()) return 1;
  Bench bench(threads, std::move(*backend), budget);
  bench.Limits();
  for (const Shape s : {Shape{960, 576}, {576, 576}, {3072, 576}, {576, 1536}}) {
    if (!bench.Add(DType::kQ4_1, s, 30)) return 1;
  }
  for (const int rows : {1, 2, 4, 8, 16, 128, 512}) bench.Run("layers_Q4_1", rows);
  if (!bench.Add(DType::kQ8_0, {49152, 576}, 1)) return 1;
  for (const int rows : {1, 4}) bench.Run("token_Q4_1_with_Q8_0_head", rows);
  for (const DType type : {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kBF16}) {
    bench.Clear();
    if (!bench.Add(type, {4096, 2048}, 12)) return 1;
    for (const int rows : {1, 4, 128}) bench.Run(InfoOf(type).name, rows);
  }
  return 0;
}

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::Main(argc, argv); }
