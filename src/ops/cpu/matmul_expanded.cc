#include "ops/cpu/matmul_expanded.h"

#include <algorithm>

#include "ops/cpu/packed_layout.h"

namespace farsight {
namespace {

// Of a panel, unpacked at once: stays in the first-level cache beside four rows.
constexpr int64_t kChunkBytes = 18 * 1024;
// Rows whose sums between chunks are kept on the stack.
constexpr int64_t kSlab = 128;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Inputs of a chunk: equal parts of a row that fit, in whole blocks of the format.
int64_t ChunkInputs(int64_t cols, int64_t sub_bytes, int64_t block_inputs) {
  const int64_t most = kChunkBytes / (sub_bytes * block_inputs / kBlockInputs);
  const int64_t blocks = cols / block_inputs;
  return CeilDiv(blocks, CeilDiv(blocks, most)) * block_inputs;
}

}  // namespace

void MultiplyExpanded(const OpKernels& kernels, const MatMulParams<CpuMatrix>& p, const uint8_t* in, int64_t row_bytes,
                      int64_t panel_begin, int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const CpuMatrix& w = *p.weight;
  const int type = static_cast<int>(w.dtype());
  const PackedLayout layout = LayoutOf(w.dtype());
  alignas(64) uint8_t expanded[kChunkBytes];
  alignas(64) float partial[kSlab * kPanelOutputs];
  const int64_t chunk = ChunkInputs(w.cols(), kernels.expanded_sub_bytes[type], layout.SuperInputs());
  ExpandedTile e;
  MatMulTile& t = e.tile;
  t.panel = expanded;
  t.in_stride_bytes = row_bytes;
  t.out_stride = p.out_stride;
  t.alpha = p.alpha;
  t.accumulate = p.accumulate;
  for (int64_t i = panel_begin; i < panel_end; ++i) {
    const int64_t first = i * kPanelOutputs;
    const auto* panel = reinterpret_cast<const uint8_t*>(w.panel(i));
    t.bias = p.bias != nullptr ? p.bias + first : nullptr;
    t.width = static_cast<int>(std::min<int64_t>(kPanelOutputs, w.rows() - first));
    for (int64_t slab = row_begin; slab < row_end; slab += kSlab) {
      const int64_t slab_end = std::min(slab + kSlab, row_end);
      for (int64_t col = 0; col < w.cols(); col += chunk) {
        t.cols = std::min(chunk, w.cols() - col);
        e.first = col == 0;
        e.last = col + t.cols == w.cols();
        kernels.expand[type](panel + col / layout.SuperInputs() * layout.SuperBytes(), t.cols, expanded);
        for (int64_t r = slab; r < slab_end; r += kExpandedRows) {
          e.rows = static_cast<int>(std::min<int64_t>(kExpandedRows, slab_end - r));
          e.partial = partial + (r - slab) * kPanelOutputs;
          t.in = in + r * row_bytes + col / kBlockInputs * static_cast<int64_t>(sizeof(QuantBlock));
          t.out = p.out + r * p.out_stride + first;
          kernels.matmul_expanded[type](e);
        }
      }
    }
  }
}

}  // namespace farsight
