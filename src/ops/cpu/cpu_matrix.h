// A weight packed for the CPU kernels (packed_layout.h says how).
#ifndef FARSIGHT_OPS_CPU_CPU_MATRIX_H_
#define FARSIGHT_OPS_CPU_CPU_MATRIX_H_

#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/page_arena.h"
#include "base/thread_pool.h"
#include "farsight/status.h"
#include "ops/params.h"

namespace farsight {

class CpuMatrix {
 public:
  CpuMatrix() = default;

  // Stacks the parts (one dtype, one width) and packs them on all threads of the pool into memory of the arena.
  // kInvalidArgument when the parts do not fit together or their data has the wrong size, kResourceExhausted when
  // memory is short.
  static StatusOr<CpuMatrix> Pack(std::span<const HostMatrix> parts, ThreadPool* pool, PageArena* arena);

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  size_t bytes() const { return static_cast<size_t>(num_panels_) * panel_bytes_; }
  int64_t num_panels() const { return num_panels_; }  // of 16 outputs, the last one padded with zeros
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const { return data_.data() + static_cast<size_t>(i) * panel_bytes_; }

  // Row r as f32 times scale, [cols()]: exactly the values of DequantiseRow times scale.
  void DecodeRow(int64_t r, float scale, float* out) const;

 private:
  DType dtype_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t num_panels_ = 0;
  size_t panel_bytes_ = 0;
  Buffer data_;
};

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_CPU_MATRIX_H_
