// Times the matrix products of a small model (SmolLM2-135M: 30 layers, hidden 576, Q4_1, a Q8_0 head) as a decode step
// and as a prefill chunk, against the machine's own limits measured in the same run.
//   bench_matmul [threads] [isa] [seconds per case] [substring of the cases wanted]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "measure.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

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

class Bench : KernelBench {
 public:
  explicit Bench(BenchArgs args) : KernelBench(std::move(args)), in_(512 * 8192), out_(512 * 8192) {
    std::normal_distribution<float> normal;
    for (float& x : in_) x = normal(rng_);
  }

  int Main() {
    OpLimits limits;
    limits.max_rows = 512;
    limits.max_width = 8192;
    limits.num_heads = limits.num_kv_heads = 1;
    limits.max_seqs = limits.max_blocks = 1;
    limits.head_dim = 64;
    if (!backend_->Reserve(limits).ok()) return 1;
    Limits(Arithmetic::kInt8);
    const Shape layer[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
    for (const DType type : {DType::kQ8_0, DType::kQ4_1}) {
      const std::string name = std::string("layers_") + InfoOf(type).name;
      Clear();
      if (!Wanted(name) && !(type == DType::kQ4_1 && Wanted("token_Q4_1_with_Q8_0_head"))) continue;
      for (const Shape s : layer) {
        if (!Add(type, s, 30)) return 1;
      }
      for (const int rows : {1, 2, 4, 8, 16, 32, 128, 512}) Run(name.c_str(), rows);
    }
    if (Wanted("token_Q4_1_with_Q8_0_head")) {
      if (!Add(DType::kQ8_0, {49152, 576}, 1)) return 1;
      for (const int rows : {1, 4, 8}) Run("token_Q4_1_with_Q8_0_head", rows);
    }
    for (const DType type : {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kBF16}) {
      Clear();
      if (!Wanted(InfoOf(type).name)) continue;
      if (!Add(type, {4096, 2048}, 12)) return 1;
      for (const int rows : {1, 4, 8, 128}) Run(InfoOf(type).name, rows);
    }
    return 0;
  }

 private:
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

  bool Wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }

  void Run(const char* name, int rows) {
    if (!Wanted(name)) return;
    double bytes = 0;
    double ops = 0;
    for (const CpuMatrix& w : weights_) {
      bytes += static_cast<double>(w.bytes());
      ops += 2.0 * static_cast<double>(w.rows() * w.cols()) * rows;
    }
    const double s = timer_.Median([&] {
      for (const CpuMatrix& w : weights_) Multiply(w, rows);
    });
    std::printf("case:%s rows:%d threads:%d isa:%s ms:%.3f GB/s:%.1f read_share:%.2f GOP/s:%.0f int8_share:%.2f\n",
                name, rows, backend_->num_threads(), IsaName(backend_->isa()), s * 1e3, bytes / s / 1e9,
                bytes / s / 1e9 / read_gbs_, ops / s / 1e9, peak_gops_ > 0 ? ops / s / 1e9 / peak_gops_ : 0.0);
    std::fflush(stdout);
  }

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

  std::mt19937 rng_{7};
  std::vector<CpuMatrix> weights_;
  std::vector<float> in_;
  std::vector<float> out_;
};

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::RunBench<farsight::Bench>("bench_matmul", argc, argv); }
