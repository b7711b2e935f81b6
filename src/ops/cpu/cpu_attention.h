// Cache pages, key summaries, block selection and paged attention on the CPU.
#ifndef FARSIGHT_OPS_CPU_CPU_ATTENTION_H_
#define FARSIGHT_OPS_CPU_CPU_ATTENTION_H_

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/cpu/isa.h"
#include "ops/params.h"

namespace farsight {

struct AttentionKernels;  // function table of one instruction set, in attention_kernels.h

// Pages: keys [D][B], so that a product with a query runs over tokens; values [B][D rounded up to 16].
// Pooled keys: f32 [B / stride][D], importances behind them. Compressed keys [D rounded up to 16][B / stride], then
// values [B / stride][D rounded up to 16]. Sketches: centre [D] f32, scales [B] f32, then codes by 32 tokens
// (attention_kernels.h).
class CpuAttention {
 public:
  // `pool` outlives this object or is replaced by SetPool; isa is concrete and available.
  CpuAttention(ThreadPool* pool, Isa isa);

  void SetPool(ThreadPool* pool);  // between steps
  Status Reserve(const OpLimits& limits);
  size_t KvPageBytes(const KvView& kv) const;
  size_t SummaryPageBytes(const KvView& kv, const SummaryView& summary) const;

  // As in ops/params.h. Sketch scores look up products with the query rounded to 7 bits.
  void AppendKv(const AppendKvParams& p);
  void Summarise(const SummariseParams& p);
  void Select(const SelectParams& p);
  void Attend(const AttendParams& p);
  static size_t AttendCarryBytes(int num_heads, int head_dim);
  void GateBranches(const GateBranchesParams& p);
  void CopyBlock(const CopyBlockParams& p);

 private:
  // Neighbouring rows of one sequence, or of several that have blocks in common.
  struct Tile {
    int first_row, num_rows;
  };
  struct TileWork;  // one thread's memory for a tile

  float* Scratch(int thread) { return scratch_.as<float>() + static_cast<size_t>(thread) * scratch_floats_; }
  // `across`: a tile may go on in another block table that begins with the same block.
  static int NumTiles(const RowBatch& rows, int rows_per_tile, bool across, Tile* tiles);
  void AttendBlocks(const AttendParams& p, const Tile& tile, int head, int first_block, int end_block,
                    TileWork& work) const;
  void SelectTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const;
  static int64_t PooledFloats(const OpLimits& limits);
  static void CompressWindow(const SummariseParams& p, int seq, int head, int pos);
  void CompressedTile(const SelectParams& p, const Tile& tile, int head, float* scratch) const;
  static bool NeedsScores(const SelectParams& p, int row);
  static int ScoredBlocks(const SelectParams& p, int row);
  void PickBlocks(const SelectParams& p, int row, int head, const float* scores, float* room) const;
  int PickImportant(const SelectParams& p, int row, int head, int want, int found, int32_t* ids, float* room) const;
  static void Weigh(const SummariseParams& p, int seq, int head, int pos);
  int64_t PooledStride(const SelectParams& p) const;
  float* BlockScratch(int block_tokens, float* scratch) const;
  static bool OnlyTops(const SelectParams& p);
  int64_t TopsStride() const;
  float* Tops(float* scratch, int row) const { return scratch + row * TopsStride() + 1; }
  void PooledTops(const SelectParams& p, const Tile& tile, int head, float* scratch) const;
  void PooledProducts(const SelectParams& p, const Tile& tile, int head, float* scratch) const;
  void PooledScores(const SelectParams& p, int row, int head, float* z, float* scores) const;
  void SketchParts(const SelectParams& p, int row, int head, int begin, int end, float* parts, float* room) const;
  void SketchScores(float* parts, int group, int num_blocks, float* scores) const;
  bool SelectBySplitSketch(const SelectParams& p);

  ThreadPool* pool_;
  const AttentionKernels* kernels_;
  OpLimits limits_;
  Buffer scratch_;  // one part a thread
  size_t scratch_floats_ = 0;
  int scratch_threads_ = 0;
  Buffer partials_;  // of attention split over the sequence
  Buffer tiles_;
};

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_CPU_ATTENTION_H_
