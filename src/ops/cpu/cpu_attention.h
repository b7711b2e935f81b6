// Cache pages, key summaries, block selection and paged attention on the CPU.
#ifndef FARSIGHT_OPS_CPU_CPU_ATTENTION_H_
#define FARSIGHT_OPS_CPU_CPU_ATTENTION_H_

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/cpu/isa.h"
#include "ops/params.h"

namespace farsight {

struct AttentionKernels;  // function table of one instruction set, in attention_kernels.h

class CpuAttention {
 public:
  // `pool` outlives this object or is replaced by SetPool; isa is concrete and available.
  CpuAttention(ThreadPool* pool, Isa isa);

  void SetPool(ThreadPool* pool) { pool_ = pool; }
  Status Reserve(const OpLimits& limits);
  size_t KvPageBytes(const KvView& kv) const;
  size_t SummaryPageBytes(const KvView& kv, const SummaryView& summary) const;

  // As in ops/params.h.
  void AppendKv(const AppendKvParams& p);
  void Summarise(const SummariseParams& p);
  void Select(const SelectParams& p);
  void Attend(const AttendParams& p);
  void CopyBlock(const CopyBlockParams& p);

 private:
  ThreadPool* pool_;
  const AttentionKernels* kernels_;
  OpLimits limits_;
  Buffer scratch_;
};

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_CPU_ATTENTION_H_
