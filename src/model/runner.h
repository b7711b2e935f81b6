// What the engine sees of a model: give it a batch of rows, get logits. One indirect call a step.
#ifndef FARSIGHT_MODEL_RUNNER_H_
#define FARSIGHT_MODEL_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention_plan.h"
#include "io/async_file.h"
#include "io/model_file.h"
#include "kv/sequence_cache.h"  // BlockCopy
#include "model/config.h"
#include "model/forecast_file.h"

namespace farsight {

// Rows [first, first + count) of a step whose keys and values belong to the table `seq` as well as to their own: the
// beginning that a path of a tree of guesses shares with an earlier one.
struct RowEcho {
  int first = 0;
  int count = 0;  // at most kMaxEcho
  int seq = 0;
};
inline constexpr int kMaxEcho = 64;

// The input of a step, in host memory. Rows of a block table are contiguous and their positions ascend by one; their
// blocks are already in the table. The paths of a tree of guesses are tables of their own.
struct Batch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int32_t> positions;     // [T]
  std::vector<int32_t> row_seq;       // [T] row of block_tables
  std::vector<uint8_t> selects;       // [T] 1: the row selects blocks in the layers that do
  std::vector<int32_t> block_tables;  // [S, max_blocks], -1 past a sequence's end
  std::vector<int32_t> logit_rows;    // rows whose logits are wanted, ascending
  std::vector<BlockCopy> copies;      // carried out before anything is written
  // With tiers: blocks that no later step writes to (those of earlier steps are welcome), and how many are written to
  // again over all sequences that are kept, this step's and its forks' included.
  std::vector<int32_t> full_blocks;
  int open_blocks = 0;
  std::vector<RowEcho> echoes;
  int num_seqs = 0;
  // Approximations, for rows that select. list_sources: [T] the row whose list each row attends to, itself or one of
  // its sequence; empty: each its own. refresh: [layers] 0: the layer attends to the list of the last one that selects;
  // empty: every layer selects for itself.
  std::vector<int32_t> list_sources;
  std::vector<uint8_t> refresh;
  int group_rows = 0;        // rows that load a block together at most; 0: as many as suit the backend
  bool want_lists = false;   // also fetch which blocks were chosen, not only how many
  bool want_scores = false;  // also fetch by which scores; needs RunnerOptions::scores

  void Clear();
  int num_rows() const { return static_cast<int>(tokens.size()); }
};

// The output of a step; spans stay valid until the next one.
struct StepResult {
  std::span<const float> logits;  // [logit_rows, vocab]
  // Chosen blocks of the layers that select, in layer order: counts [T, Hkv], -1 for a row that attended to all.
  struct LayerLists {
    int layer = 0;
    std::span<const int32_t> counts;  // [T, Hkv]
    std::span<const int32_t> ids;     // [T, Hkv, top_k] when want_lists
    std::span<const float> scores;    // [T, Hkv, max_blocks] when want_scores
  };
  std::vector<LayerLists> lists;
  double select_seconds = 0;  // of the step: choosing blocks, the products of Forecasts included
};

// What a layer computed for the rows of a step, copied to host memory; valid during the call.
struct LayerRows {
  int layer = 0;
  int num_rows = 0;               // T
  const float* hidden = nullptr;  // [T, hidden]: the attention's input, after its norm
  const float* qkv = nullptr;     // [T, Hq * D queries, then keys, then values]: before RoPE
  int64_t qkv_width = 0;          // floats of a row of qkv
};

// Keys and values of which memory holds a part and a file the rest (kv/tiers.h).
struct RunnerTiers {
  uint64_t memory_bytes = 0;  // for keys and values; 0: no tiers, all of them are in memory
  std::function<StatusOr<std::unique_ptr<AsyncFile>>()> open_file = {};  // an empty one
  // Ask for the blocks of a layer while the layer before computes, where its list is known by then; else only when
  // they are needed.
  bool lookahead = true;
  int open_blocks = 1;  // unfilled blocks at once, over all sequences that are kept
  // Trees of guesses: tables of a step that are forks of others, of RunnerOptions::max_seqs at most, and blocks that
  // these have to themselves, for which there must be room.
  int fork_tables = 0;
  int fork_blocks = 0;
};

class KvTiers;

struct RunnerOptions {
  int64_t context_tokens = 0;  // longest sequence
  int max_rows = 0;
  int max_seqs = 0;
  int max_logit_rows = 0;
  int32_t num_blocks = 0;  // physical
  DType kv_dtype = DType::kF16;
  RunnerTiers tiers = {};
  AttentionPlan plan;
  bool scores = false;                 // keep room for the scores of steps of at most max_logit_rows rows
  const Forecast* forecast = nullptr;  // for plans with sources kForecast; read while the runner is made
  // Called for every layer of a step, in order; for training on a frozen model. Copies make such a step slower.
  std::function<void(const LayerRows&)> observe_layer = {};
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  // An error (of tiers: of the file, or a memory that is too small) leaves the step undone in some layers; the blocks
  // that it wrote to have no content that may be relied on.
  virtual Status Step(const Batch& batch, StepResult* result) = 0;
  // Other attention for the steps to come, with the same block size and no tiers. Unless the plans share
  // summaries, those of cached blocks are gone until Summarise. On an error nothing changes.
  virtual Status SetPlan(const AttentionPlan& plan) = 0;
  // Makes the summaries of rows whose keys are cached, as the step that wrote them would have. Of `batch` only tokens,
  // positions, row_seq, block_tables and num_seqs count.
  virtual void Summarise(const Batch& batch) = 0;
  virtual KvTiers* tiers() = 0;  // null: everything is in memory
  // Blocks that there is memory for, in a step's forks by themselves, beside what every step needs.
  virtual int64_t fork_blocks() const = 0;
  // What a session keeps of a block beside its pages: the summaries of every layer that selects, one after another.
  virtual size_t summary_row_bytes() const = 0;  // 0: no layer selects
  virtual void GetSummaries(int32_t block, std::span<std::byte> row) = 0;
  virtual void PutSummaries(int32_t block, std::span<const std::byte> row) = 0;
  virtual uint32_t page_layout() const = 0;     // differs where the order of bytes in a page or a summary does
  virtual int max_blocks() const = 0;           // row length of block tables
  virtual int64_t page_bytes() const = 0;       // keys and values of one block, layer and KV head
  virtual int64_t summary_bytes() const = 0;    // its summary, in a layer that selects; 0: none selects
  virtual int64_t bytes_per_block() const = 0;  // keys, values and summaries of one block over all layers
};

// Weights on a backend. Immutable but for SetThreads; runners keep a reference to it.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;
  virtual StatusOr<std::unique_ptr<ModelRunner>> NewRunner(const RunnerOptions& options) = 0;
  virtual std::string backend_name() const = 0;
  virtual int threads() const = 0;
  virtual void SetThreads(int threads) = 0;
  virtual std::string fingerprint() const = 0;     // ModelFingerprint of the file
  virtual int64_t weight_bytes() const = 0;        // in memory
  virtual int64_t weight_bytes_token() const = 0;  // read for one decoded token
};

enum class WeightNames { kGguf, kHuggingFace };

StatusOr<std::unique_ptr<LoadedModel>> LoadOnCpu(const ModelFile& file, const ModelConfig& config, WeightNames names,
                                                 int threads, const std::string& isa);
StatusOr<std::unique_ptr<LoadedModel>> LoadOnReference(const ModelFile& file, const ModelConfig& config,
                                                       WeightNames names);

}  // namespace farsight

#endif  // FARSIGHT_MODEL_RUNNER_H_
