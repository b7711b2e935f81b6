// The oracle: naive loops in double. It is the specification of every op and keeps weights as they lie in the file.
#ifndef FARSIGHT_OPS_REF_REF_BACKEND_H_
#define FARSIGHT_OPS_REF_REF_BACKEND_H_

#include <vector>

#include "ops/backend.h"
#include "ops/share_lists.h"

namespace farsight {

class RefMatrix {
 public:
  RefMatrix() = default;
  RefMatrix(DType dtype, int64_t rows, int64_t cols) : dtype_(dtype), rows_(rows), cols_(cols) {}
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  size_t bytes() const { return data_.size(); }
  void Row(int64_t r, float* out) const;  // dequantised

  std::vector<std::byte> data_;

 private:
  DType dtype_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
};

class RefBackend {
 public:
  static constexpr uint32_t kPageLayout = 1;
  using Matrix = RefMatrix;

  StatusOr<Buffer> Allocate(size_t bytes) { return AllocateHost(bytes); }
  void CopyIn(Buffer& to, size_t offset, std::span<const std::byte> from);
  void CopyOut(const Buffer& from, size_t offset, std::span<std::byte> to);
  Status Reserve(const OpLimits&) { return OkStatus(); }
  StatusOr<RefMatrix> PrepareMatrix(std::span<const HostMatrix> parts);
  size_t KvPageBytes(const KvView& kv) const;
  size_t SummaryPageBytes(const KvView& kv, const SummaryView& summary) const;

  void Embed(const EmbedParams<RefMatrix>& p);
  void MatMul(const MatMulParams<RefMatrix>& p);
  void RmsNorm(const RmsNormParams& p);
  void RopeTable(const RopeTableParams& p);
  void Rope(const RopeParams& p);
  void SwiGlu(const SwiGluParams& p);
  void AppendKv(const AppendKvParams& p);
  void Summarise(const SummariseParams& p);
  void Select(const SelectParams& p);
  void Beside(void (*call)(void* ctx, int thread), void* ctx) { call(ctx, 0); }
  void Attend(const AttendParams& p);
  static size_t AttendCarryBytes(int num_heads, int head_dim);
  void ShareLists(const ShareListsParams& p) { ShareListsOnHost(p); }
  void GateBranches(const GateBranchesParams& p);
  void CopyBlock(const CopyBlockParams& p);

  // Selection in two halves, for tests: scores and importances [num blocks up to the row's own] of one row and KV head,
  // and the choice.
  std::vector<double> BlockScores(const SelectParams& p, int row, int kv_head) const;
  std::vector<double> BlockImportances(const SelectParams& p, int row, int kv_head) const;
  static std::vector<int32_t> PickBlocks(const std::vector<double>& scores, int top_k, int init_blocks,
                                         int local_blocks);

 private:
  // Softmax over the visible windows of one query head.
  std::vector<double> WindowShares(const SelectParams& p, int row, int head) const;
  void AttendCompressed(const SelectParams& p) const;
};
static_assert(Backend<RefBackend>);

}  // namespace farsight

#endif  // FARSIGHT_OPS_REF_REF_BACKEND_H_
