#include "ops/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "ops/cpu/matmul_expanded.h"
#include "ops/cpu/op_kernels.h"
#include "ops/cpu/packed_layout.h"

namespace farsight {
namespace {

constexpr int kMaxThreads = 1024;
// Rows of a precise product at once; each is two, and two tiles of sixteen hold as many.
constexpr int kPreciseRows = 16;
// Work of an op, in values touched, below which a fork-join costs more than it saves.
constexpr int64_t kMinParallelValues = 4 * 1024;
// A block of rows is multiplied by every panel of a task before the next one, so its activations should stay in the
// second-level cache beside a panel.
constexpr int64_t kRowBlockBytes = 160 * 1024;
constexpr int64_t kTasksPerThread = 8;
// A task this small still amortises its hand-out, and streams enough for the prefetchers.
constexpr int64_t kMinTaskBytes = 16 * 1024;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls fn(begin, end) over row ranges that cover [0, num_rows), on all threads when the work is worth it.
template <typename Fn>
void ForRows(ThreadPool& pool, int num_rows, int64_t values_per_row, Fn&& fn) {
  if (num_rows <= 0) return;
  if (num_rows == 1 || num_rows * values_per_row < kMinParallelValues) return fn(0, num_rows);
  const int64_t tasks = std::min<int64_t>(num_rows, pool.num_threads() * kTasksPerThread);
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    fn(static_cast<int>(num_rows * task / tasks), static_cast<int>(num_rows * (task + 1) / tasks));
  });
}

// Calls fn(task) for every task in [0, num_tasks). A thread starts with a range of its own, so that it reads a weight
// in one piece, as the hardware expects when it fetches ahead; one that is done takes what the others have left.
template <typename Fn>
void ForTasks(ThreadPool& pool, int64_t num_tasks, Fn&& fn) {
  constexpr int kMaxRanges = 32;
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  Range ranges[kMaxRanges];
  const int n = std::min(pool.num_threads(), kMaxRanges);
  for (int i = 0; i < n; ++i) {
    ranges[i].next.store(num_tasks * i / n, std::memory_order_relaxed);
    ranges[i].end = num_tasks * (i + 1) / n;
  }
  pool.RunOnAll([&](int thread) {
    for (int i = 0; i < n; ++i) {
      Range& r = ranges[(thread + i) % n];
      for (int64_t t; (t = r.next.fetch_add(1, std::memory_order_relaxed)) < r.end;) fn(t);
    }
  });
}

// How a product is cut into tasks: every task is a range of panels times a range of rows.
struct Grid {
  int64_t panel_tasks = 1;
  int64_t row_tasks = 1;
  int64_t rows_per_task = 1;
};

Grid MakeGrid(const CpuMatrix& w, int rows, int64_t row_bytes, int num_threads) {
  Grid g;
  g.rows_per_task = std::clamp<int64_t>(kRowBlockBytes / row_bytes / kMaxTileRows * kMaxTileRows, kMaxTileRows, rows);
  g.row_tasks = CeilDiv(rows, g.rows_per_task);
  g.rows_per_task = CeilDiv(CeilDiv(rows, g.row_tasks), kMaxTileRows) * kMaxTileRows;
  g.row_tasks = CeilDiv(rows, g.rows_per_task);
  const int64_t work = static_cast<int64_t>(w.bytes()) * CeilDiv(g.rows_per_task, kMaxTileRows);
  const int64_t wanted = std::min(num_threads * kTasksPerThread, std::max<int64_t>(work / kMinTaskBytes, 1));
  g.panel_tasks = std::min(w.num_panels(), wanted);
  return g;
}

ManyRows ManyRowsOf(const MatMulParams<CpuMatrix>& p, const uint8_t* in, int64_t row_bytes, int64_t panel_begin,
                    int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const CpuMatrix& w = *p.weight;
  ManyRows m;
  m.panel_bytes = static_cast<int64_t>(w.panel_bytes());
  m.num_panels = panel_end - panel_begin;
  m.num_rows = row_end - row_begin;
  const int64_t first = panel_begin * kPanelOutputs;
  m.tile.panel = reinterpret_cast<const uint8_t*>(w.panel(panel_begin));
  m.tile.in = in + row_begin * row_bytes;
  m.tile.in_stride_bytes = row_bytes;
  m.tile.cols = w.cols();
  m.tile.bias = p.bias != nullptr ? p.bias + first : nullptr;
  m.tile.out = p.out + row_begin * p.out_stride + first;
  m.tile.out_stride = p.out_stride;
  m.tile.alpha = p.alpha;
  m.tile.accumulate = p.accumulate;
  m.tile.width = static_cast<int>(std::min<int64_t>(kPanelOutputs, w.rows() - (panel_end - 1) * kPanelOutputs));
  return m;
}

// Rows [row_begin, row_end) times the panels [panel_begin, panel_end). `in` is what the kernels read for row 0.
void MultiplyPanels(const OpKernels& kernels, const MatMulParams<CpuMatrix>& p, const uint8_t* in, int64_t row_bytes,
                    int64_t panel_begin, int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const CpuMatrix& w = *p.weight;
  const int64_t rows = row_end - row_begin;
  const auto many = kernels.matmul_many[static_cast<int>(w.dtype())];
  if (many != nullptr && rows >= kernels.min_many_rows[static_cast<int>(w.dtype())]) {
    return many(ManyRowsOf(p, in, row_bytes, panel_begin, panel_end, row_begin, row_end));
  }
  if (rows >= kMinExpandedRows && CanExpand(kernels, w)) {
    return MultiplyExpanded(kernels, p, in, row_bytes, panel_begin, panel_end, row_begin, row_end);
  }
  const auto& by_rows = kernels.matmul[static_cast<int>(w.dtype())];
  MatMulTile t;
  t.in_stride_bytes = row_bytes;
  t.cols = w.cols();
  t.out_stride = p.out_stride;
  t.alpha = p.alpha;
  t.accumulate = p.accumulate;
  for (int64_t i = panel_begin; i < panel_end; ++i) {
    const int64_t first = i * kPanelOutputs;
    t.panel = reinterpret_cast<const uint8_t*>(w.panel(i));
    t.bias = p.bias != nullptr ? p.bias + first : nullptr;
    t.width = static_cast<int>(std::min<int64_t>(kPanelOutputs, w.rows() - first));
    for (int64_t r = row_begin; r < row_end; r += kMaxTileRows) {
      t.in = in + r * row_bytes;
      t.out = p.out + r * p.out_stride + first;
      by_rows[std::min<int64_t>(kMaxTileRows, row_end - r) - 1](t);
    }
  }
}

void Multiply(ThreadPool& pool, const OpKernels& kernels, const MatMulParams<CpuMatrix>& p, const uint8_t* in,
              int64_t row_bytes) {
  const int64_t panels = p.weight->num_panels();
  const Grid g = MakeGrid(*p.weight, p.num_rows, row_bytes, pool.num_threads());
  const auto run = [&](int64_t task) {
    const int64_t panel_task = task % g.panel_tasks;
    const int64_t row = task / g.panel_tasks * g.rows_per_task;
    MultiplyPanels(kernels, p, in, row_bytes, panels * panel_task / g.panel_tasks,
                   panels * (panel_task + 1) / g.panel_tasks, row,
                   std::min<int64_t>(p.num_rows, row + g.rows_per_task));
  };
  // Rows of several tasks meet each panel while it is in the shared cache: those stay together.
  if (g.row_tasks == 1) return ForTasks(pool, g.panel_tasks, run);
  pool.ParallelFor(g.panel_tasks * g.row_tasks, [&](int64_t task, int) { run(task); });
}

// A row quantised, and behind it what that lost, quantised too. `lost` is scratch for `cols` floats.
void QuantiseTwice(const OpKernels& kernels, const float* in, int64_t cols, uint8_t* out, float* lost) {
  const int64_t blocks = cols / kBlockInputs;
  kernels.quantise(in, cols, out);
  for (int64_t b = 0; b < blocks; ++b) {
    QuantBlock block;
    std::memcpy(&block, out + b * static_cast<int64_t>(sizeof(QuantBlock)), sizeof(QuantBlock));
    for (int64_t i = 0; i < kBlockInputs; ++i) {
      const int64_t at = b * kBlockInputs + i;
      lost[at] = in[at] - block.scale * static_cast<float>(block.codes[i]);
    }
  }
  kernels.quantise(lost, cols, out + blocks * static_cast<int64_t>(sizeof(QuantBlock)));
}

}  // namespace

const OpKernels& OpKernelsFor(Isa isa) {
#if defined(FARSIGHT_X86_KERNELS)
  if (isa == Isa::kAvx2) return Avx2OpKernels();
  if (isa == Isa::kAvx512) return Avx512OpKernels();
  if (isa == Isa::kAmx) return AmxOpKernels();
#endif
  FS_CHECK(isa == Isa::kScalar, "the instruction set was resolved before its kernels are asked for");
  return ScalarOpKernels();
}

CpuBackend::CpuBackend(int num_threads, Isa isa)
    : isa_(isa),
      kernels_(&OpKernelsFor(isa)),
      pool_(std::make_unique<ThreadPool>(num_threads)),
      attention_(std::make_unique<CpuAttention>(pool_.get(), isa)) {}

StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(int num_threads, Isa isa) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return InvalidArgument("expected 1 to " + std::to_string(kMaxThreads) + " threads, got " +
                           std::to_string(num_threads));
  }
  FS_ASSIGN_OR_RETURN(const Isa concrete, ResolveIsa(isa));
  return std::unique_ptr<CpuBackend>(new CpuBackend(num_threads, concrete));
}

void CpuBackend::SetThreads(int num_threads) {
  FS_CHECK(num_threads >= 1 && num_threads <= kMaxThreads, "the number of threads is in range");
  if (num_threads == pool_->num_threads()) return;
  pool_ = std::make_unique<ThreadPool>(num_threads);
  attention_->SetPool(pool_.get());
}

void CpuBackend::CopyIn(Buffer& to, size_t offset, std::span<const std::byte> from) {
  FS_CHECK(offset <= to.size() && from.size() <= to.size() - offset, "CopyIn stays inside the buffer");
  if (!from.empty()) std::memcpy(to.data() + offset, from.data(), from.size());
}

void CpuBackend::CopyOut(const Buffer& from, size_t offset, std::span<std::byte> to) {
  FS_CHECK(offset <= from.size() && to.size() <= from.size() - offset, "CopyOut stays inside the buffer");
  if (!to.empty()) std::memcpy(to.data(), from.data() + offset, to.size());
}

Status CpuBackend::Reserve(const OpLimits& limits) {
  if (limits.max_rows < 0 || limits.max_width < 0) {
    return InvalidArgument("expected limits of ops to be at least 0, got " + std::to_string(limits.max_rows) +
                           " rows of " + std::to_string(limits.max_width));
  }
  const size_t row = static_cast<size_t>(CeilDiv(limits.max_width, kBlockInputs)) * sizeof(QuantBlock);
  const size_t bytes = row * static_cast<size_t>(limits.max_rows + kRowsPastEnd);
  if (bytes > scratch_.size()) {
    FS_ASSIGN_OR_RETURN(scratch_, arena_.Allocate(bytes));
  }
  if (limits.max_precise > max_precise_ || limits.max_width > precise_width_) {
    max_precise_ = std::max(max_precise_, limits.max_precise);
    precise_width_ = std::max(precise_width_, limits.max_width);
    const size_t widest = static_cast<size_t>(CeilDiv(precise_width_, kBlockInputs));
    FS_ASSIGN_OR_RETURN(precise_in_, AllocateHost(widest * ((2 * kPreciseRows + kRowsPastEnd) * sizeof(QuantBlock) +
                                                            kPreciseRows * kBlockInputs * sizeof(float))));
    FS_ASSIGN_OR_RETURN(precise_out_,
                        AllocateHost(2 * kPreciseRows * static_cast<size_t>(max_precise_) * sizeof(float)));
  }
  return attention_->Reserve(limits);
}

StatusOr<CpuMatrix> CpuBackend::PrepareMatrix(std::span<const HostMatrix> parts) {
  return CpuMatrix::Pack(parts, pool_.get(), &arena_);
}

void CpuBackend::Embed(const EmbedParams<CpuMatrix>& p) {
  const int64_t dim = p.table->cols();
  ForRows(*pool_, p.num_rows, dim, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) p.table->DecodeRow(p.tokens[t], p.scale, p.out + t * dim);
  });
}

void CpuBackend::MatMul(const MatMulParams<CpuMatrix>& p) {
  if (p.num_rows <= 0) return;
  if (!IsQuantised(p.weight->dtype())) {
    Multiply(*pool_, *kernels_, p, reinterpret_cast<const uint8_t*>(p.in),
             p.in_stride * static_cast<int64_t>(sizeof(float)));
    return;
  }
  if (p.precise && p.weight->rows() <= max_precise_) return MultiplyPrecisely(p);
  const int64_t cols = p.weight->cols();
  const int64_t row_bytes = cols / kBlockInputs * static_cast<int64_t>(sizeof(QuantBlock));
  const int64_t reserved = static_cast<int64_t>(scratch_.size()) / row_bytes - kRowsPastEnd;
  FS_CHECK(reserved >= 1, "Reserve saw the widest product");
  // Rows do not depend on each other, so more rows than were reserved are done in slices.
  const int64_t slice = std::min<int64_t>(p.num_rows, reserved);
  auto* codes = scratch_.as<uint8_t>();
  for (int64_t first = 0; first < p.num_rows; first += slice) {
    MatMulParams<CpuMatrix> part = p;
    part.num_rows = static_cast<int>(std::min<int64_t>(slice, p.num_rows - first));
    part.in += first * p.in_stride;
    part.out += first * p.out_stride;
    ForRows(*pool_, part.num_rows, cols, [&](int begin, int end) {
      for (int t = begin; t < end; ++t) kernels_->quantise(part.in + t * p.in_stride, cols, codes + t * row_bytes);
    });
    Multiply(*pool_, *kernels_, part, codes, row_bytes);
  }
}

void CpuBackend::MultiplyPrecisely(const MatMulParams<CpuMatrix>& p) {
  const int64_t cols = p.weight->cols();
  const int64_t outputs = p.weight->rows();
  const int64_t row_bytes = cols / kBlockInputs * static_cast<int64_t>(sizeof(QuantBlock));
  auto* codes = precise_in_.as<uint8_t>();
  auto* lost = reinterpret_cast<float*>(codes + (2 * kPreciseRows + kRowsPastEnd) * row_bytes);
  auto* sums = precise_out_.as<float>();
  for (int first = 0; first < p.num_rows; first += kPreciseRows) {
    const int rows = std::min(kPreciseRows, p.num_rows - first);
    ForRows(*pool_, rows, cols, [&](int begin, int end) {
      for (int t = begin; t < end; ++t) {
        QuantiseTwice(*kernels_, p.in + (first + t) * p.in_stride, cols, codes + 2 * t * row_bytes, lost + t * cols);
      }
    });
    MatMulParams<CpuMatrix> both = p;
    both.precise = false;
    both.bias = nullptr;
    both.num_rows = 2 * rows;
    both.out = sums;
    both.out_stride = outputs;
    Multiply(*pool_, *kernels_, both, codes, row_bytes);
    const int64_t parts = std::min<int64_t>(CeilDiv(outputs, kMinParallelValues), pool_->num_threads());
    pool_->ParallelFor(parts, [&](int64_t part, int) {
      for (int t = 0; t < rows; ++t) {
        float* out = p.out + (first + t) * p.out_stride;
        const float* sum = sums + 2 * t * outputs;
        for (int64_t j = outputs * part / parts; j < outputs * (part + 1) / parts; ++j) {
          out[j] = sum[j] + sum[outputs + j] + (p.bias == nullptr ? 0.0f : p.alpha * p.bias[j]);
        }
      }
    });
  }
}

void CpuBackend::RmsNorm(const RmsNormParams& p) {
  ForRows(*pool_, p.num_rows, static_cast<int64_t>(p.groups) * p.dim,
          [&](int begin, int end) { kernels_->rms_norm(p, begin, end); });
}

void CpuBackend::RopeTable(const RopeTableParams& p) {
  // A sine and a cosine in double cost about as much as 32 values of other ops.
  ForRows(*pool_, p.num_rows, int64_t{32} * p.half_dim, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      for (int i = 0; i < p.half_dim; ++i) {
        const double angle = p.positions[t] * p.inv_freq[i];
        p.cos[static_cast<int64_t>(t) * p.half_dim + i] = static_cast<float>(std::cos(angle) * p.magnitude);
        p.sin[static_cast<int64_t>(t) * p.half_dim + i] = static_cast<float>(std::sin(angle) * p.magnitude);
      }
    }
  });
}

void CpuBackend::Rope(const RopeParams& p) {
  ForRows(*pool_, p.num_rows, int64_t{2} * p.num_heads * p.half_dim,
          [&](int begin, int end) { kernels_->rope(p, begin, end); });
}

void CpuBackend::SwiGlu(const SwiGluParams& p) {
  ForRows(*pool_, p.num_rows, int64_t{8} * p.ffn, [&](int begin, int end) { kernels_->swiglu(p, begin, end); });
}

}  // namespace farsight
