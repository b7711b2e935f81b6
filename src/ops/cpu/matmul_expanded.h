// Products of many rows with panels that are unpacked once for all of them.
#ifndef FARSIGHT_OPS_CPU_MATMUL_EXPANDED_H_
#define FARSIGHT_OPS_CPU_MATMUL_EXPANDED_H_

#include <cstdint>

#include "ops/cpu/cpu_matrix.h"
#include "ops/cpu/op_kernels.h"

namespace farsight {

// Rows from which unpacking pays.
inline constexpr int64_t kMinExpandedRows = 24;

inline bool CanExpand(const OpKernels& kernels, const CpuMatrix& w) {
  return kernels.expand[static_cast<int>(w.dtype())] != nullptr;
}

// Rows [row_begin, row_end) times the panels [panel_begin, panel_end), where CanExpand. `in` is row 0 as QuantBlock
// records. Every row's result is the one that the kernels for few rows give, bit for bit.
void MultiplyExpanded(const OpKernels& kernels, const MatMulParams<CpuMatrix>& p, const uint8_t* in, int64_t row_bytes,
                      int64_t panel_begin, int64_t panel_end, int64_t row_begin, int64_t row_end);

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_MATMUL_EXPANDED_H_
