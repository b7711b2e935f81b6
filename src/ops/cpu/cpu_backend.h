// The CPU backend: own kernels, one file per instruction set, chosen once when the backend is made.
#ifndef FARSIGHT_OPS_CPU_CPU_BACKEND_H_
#define FARSIGHT_OPS_CPU_CPU_BACKEND_H_

#include <memory>

#include "base/page_arena.h"
#include "base/thread_pool.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_attention.h"  // CpuAttention: cache, summaries, selection, attention
#include "ops/cpu/cpu_matrix.h"     // CpuMatrix: a packed weight
#include "ops/cpu/isa.h"            // Isa
#include "ops/share_lists.h"

namespace farsight {

struct OpKernels;  // function table of one instruction set, in op_kernels.h

class CpuBackend {
 public:
  static constexpr uint32_t kPageLayout = 3;
  using Matrix = CpuMatrix;

  // Isa::kBest takes the best set this processor has. A set it does not have is refused by name.
  static StatusOr<std::unique_ptr<CpuBackend>> Create(int num_threads, Isa isa = Isa::kBest);

  Isa isa() const { return isa_; }
  int num_threads() const { return pool_->num_threads(); }
  void SetThreads(int num_threads);  // between steps

  StatusOr<Buffer> Allocate(size_t bytes) { return arena_.Allocate(bytes); }
  void CopyIn(Buffer& to, size_t offset, std::span<const std::byte> from);
  void CopyOut(const Buffer& from, size_t offset, std::span<std::byte> to);
  Status Reserve(const OpLimits& limits);
  StatusOr<CpuMatrix> PrepareMatrix(std::span<const HostMatrix> parts);
  size_t KvPageBytes(const KvView& kv) const { return attention_->KvPageBytes(kv); }
  size_t SummaryPageBytes(const KvView& kv, const SummaryView& s) const { return attention_->SummaryPageBytes(kv, s); }

  void Embed(const EmbedParams<CpuMatrix>& p);
  void MatMul(const MatMulParams<CpuMatrix>& p);
  void RmsNorm(const RmsNormParams& p);
  void RopeTable(const RopeTableParams& p);
  void Rope(const RopeParams& p);
  void SwiGlu(const SwiGluParams& p);
  void AppendKv(const AppendKvParams& p) { attention_->AppendKv(p); }
  void Summarise(const SummariseParams& p) { attention_->Summarise(p); }
  void Select(const SelectParams& p) { attention_->Select(p); }
  void Beside(ThreadPool::Call call, void* ctx) {
    if (num_threads() == 1) {
      call(ctx, 0);
    } else {
      pool_->SetAside(call, ctx);
    }
  }
  void Attend(const AttendParams& p) {
    attention_->Attend(p);
    pool_->RunAside();
  }
  size_t AttendCarryBytes(int num_heads, int head_dim) const {
    return CpuAttention::AttendCarryBytes(num_heads, head_dim);
  }
  void ShareLists(const ShareListsParams& p) { ShareListsOnHost(p); }
  void GateBranches(const GateBranchesParams& p) { attention_->GateBranches(p); }
  void CopyBlock(const CopyBlockParams& p) { attention_->CopyBlock(p); }

 private:
  CpuBackend(int num_threads, Isa isa);

  PageArena arena_;
  Isa isa_;
  const OpKernels* kernels_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<CpuAttention> attention_;
  // Rows rounded twice: what the first rounding lost is a row of its own, beside it.
  void MultiplyPrecisely(const MatMulParams<CpuMatrix>& p);

  Buffer scratch_;      // activations quantised for integer products
  Buffer precise_in_;   // [kPreciseRows][2] rows quantised, then what the first of each two lost
  Buffer precise_out_;  // [kPreciseRows][2] rows of outputs
  int64_t max_precise_ = 0;
  int precise_width_ = 0;
};
static_assert(Backend<CpuBackend>);

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_CPU_BACKEND_H_
