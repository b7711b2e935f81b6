// The concept every backend satisfies. The forward pass is a template over it, so there is no virtual call per op.
// Ops are enqueued in order and see each other's results; CopyOut waits for what was enqueued before it.
#ifndef FARSIGHT_OPS_BACKEND_H_
#define FARSIGHT_OPS_BACKEND_H_

#include <concepts>
#include <span>

#include "base/buffer.h"
#include "farsight/status.h"
#include "ops/params.h"

namespace farsight {

template <typename B>
concept Backend = requires(B b, const B cb, Buffer& buffer, const Buffer& const_buffer, size_t n,
                           std::span<const std::byte> in, std::span<std::byte> out, std::span<const HostMatrix> parts,
                           const typename B::Matrix& matrix) {
  // Memory. Offsets and sizes in bytes; the range is inside the buffer.
  { b.Allocate(n) } -> std::same_as<StatusOr<Buffer>>;  // zeroed
  {b.CopyIn(buffer, n, in)};
  {b.CopyOut(const_buffer, n, out)};
  // Scratch for ops up to these limits. Called once before the first step; may be called again with larger limits.
  { b.Reserve(OpLimits{}) } -> std::same_as<Status>;
  // Stacks matrices of one dtype and width into one weight, repacked as the backend likes it.
  { b.PrepareMatrix(parts) } -> std::same_as<StatusOr<typename B::Matrix>>;
  { matrix.rows() } -> std::same_as<int64_t>;
  { matrix.cols() } -> std::same_as<int64_t>;
  { matrix.bytes() } -> std::same_as<size_t>;           // what one product reads
  { B::kPageLayout } -> std::convertible_to<uint32_t>;  // another number wherever bytes lie in another order
  // Geometry of the pages this backend writes, bytes for one (block, KV head).
  { cb.KvPageBytes(KvView{}) } -> std::same_as<size_t>;
  { cb.SummaryPageBytes(KvView{}, SummaryView{}) } -> std::same_as<size_t>;  // 0 for kNone
  { cb.AttendCarryBytes(1, 1) } -> std::same_as<size_t>;                     // of a row, by query heads and head size
  // Ops.
  {b.Embed(EmbedParams<typename B::Matrix>{})};
  {b.MatMul(MatMulParams<typename B::Matrix>{})};
  {b.RmsNorm(RmsNormParams{})};
  {b.RopeTable(RopeTableParams{})};
  {b.Rope(RopeParams{})};
  {b.SwiGlu(SwiGluParams{})};
  {b.AppendKv(AppendKvParams{})};
  {b.Summarise(SummariseParams{})};
  {b.Select(SelectParams{})};
  {b.ShareLists(ShareListsParams{})};
  // Calls the function once, on any thread, beside an op that follows, at the latest before the next Attend returns.
  {b.Beside([](void*, int) {}, static_cast<void*>(nullptr))};
  {b.Attend(AttendParams{})};
  {b.GateBranches(GateBranchesParams{})};
  {b.CopyBlock(CopyBlockParams{})};
};

}  // namespace farsight

#endif  // FARSIGHT_OPS_BACKEND_H_
