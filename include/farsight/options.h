// Every setting of the library, one plain struct a scope, each with its default, unit and meaning. Frozen once passed
// in.
#ifndef FARSIGHT_OPTIONS_H_
#define FARSIGHT_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "farsight/status.h"

namespace farsight {

// Which blocks a query attends to.
enum class AttentionPolicy {
  kModel,    // as the model was trained: dense for a dense-trained model, its own sparse configuration otherwise
  kDense,    // every block
  kInfLlm2,  // InfLLM-v2: the layer's own query over mean-pooled keys (arXiv 2509.24663), training-free on a dense
             // model
  kSketch,   // the layer's own query over few-bit sketches of every key: keeps a dense-trained model's answers
  kSparda,   // SparDA (arXiv 2606.04511): a trained projection of the layer before chooses the blocks, over pooled keys
             // or sketches as it was trained; without one (EngineOptions::forecast) the layer's own query does
  kInfinigen,  // InfiniGen's lookahead, training-free: a layer's query weights on the input of the layer before choose
               // its blocks, over what kSparda would use; a baseline
  kStale,  // an old list: a layer attends to the blocks that the layer before chose by its own query; a baseline that
           // knows its blocks as early as kSparda without training
  kNosa,   // NOSA (arXiv 2510.13602): InfLLM-v2 with two quotas: the query chooses some blocks and the importances of
           // tokens, which do not depend on it, the others; only for models that were trained with it
  kNsa,    // native sparse attention (arXiv 2502.11089): only for models that were trained with it, and all they run
};

// Which rows a sparse policy applies to. A prompt is prefill; generated tokens are decode.
enum class SparsePhase { kDecode, kAll };

// The type keys and values are stored in.
enum class KvType { kF32, kF16, kBF16 };

// Where the policy is the one the model was trained with (by name or as kModel), a constant left at its default here is
// the model's own. The shapes of NSA (block, kernel, window) are always the model's.
struct AttentionOptions {
  AttentionPolicy policy = AttentionPolicy::kModel;
  // Decode only is the default for dense-trained models (sparse prefill loses answers sooner); a model trained sparse
  // uses both phases.
  SparsePhase phase = SparsePhase::kDecode;
  int block_size = 64;     // tokens of a block, which is also the cache page: 16, 32, 64, 128 or 256
  int top_k_blocks = 24;   // blocks a query attends to, forced ones included
  int query_blocks = 0;    // models with importances: of these, what the query chooses, forced ones included
  int init_blocks = 1;     // always attended: the first blocks (attention sink)
  int local_window = 256;  // tokens; the row's own block and local_window / block_size before it are always attended
  int dense_below = 0;     // contexts shorter than this many tokens are attended densely
  int dense_layers = 2;    // the first layers that always attend densely
  int kernel_size = 32;    // kInfLlm2: tokens of a pooled window
  int kernel_stride = 16;  // kInfLlm2: tokens between windows; divides block_size and kernel_size
  int sketch_bits = 4;     // kSketch: 1, 2 or 4 bits a channel
};

// Who guesses the next tokens so that several are checked in one pass. The text never changes: a guess is kept only
// where it is the token that plain decoding gives, with the same seed.
enum class Drafting {
  kOff,
  kAuto,    // chosen and sized while running, by what was accepted and how long it took; off where it does not pay
  kNgram,   // what followed the last few tokens earlier in the text
  kSuffix,  // what followed the longest repeated end of the text, weighed by how often
  kModel,   // a small model with the same tokenizer: EngineOptions::draft_model
};

// What drafts may change of a text for less work: strict, nothing. Reuse: a layer may attend to the blocks that an
// earlier layer chose. Shared: guesses side by side may attend to the blocks that one of them chose. An approximation
// is used only where a profile holds measurements of it that pass, and its error is measured while it runs.
enum class PrecisionClass : uint8_t { kStrict, kReuse, kShared, kSharedReuse };

struct ModelOptions {
  int threads = 0;           // 0: one for each processor this process may use
  std::string isa = "best";  // "best", "amx", "avx512", "avx2", "scalar"
  // The double-precision reference backend instead of the fast one: hundreds of times slower, for checking.
  bool reference = false;
};

class Model;

struct EngineOptions {
  int64_t context_tokens = 0;  // longest sequence, prompt and answer together; 0: what the model was trained for
  int max_sequences = 1;       // sequences that run at once; others wait
  int prefill_chunk = 512;     // prompt tokens of one step
  // Tokens the cache can hold over all sequences; 0: context_tokens * max_sequences. With less, the newest sequence is
  // preempted when blocks run out and resumed later by recomputation.
  int64_t kv_tokens = 0;
  KvType kv_type = KvType::kF16;
  // Bytes of memory for keys and values of all sequences; the others lie in a file and are read when attention wants
  // them. 0: all are in memory. Never changes a result. Summaries and weights are not counted.
  int64_t kv_memory = 0;
  std::string kv_file = {};  // where that file lies: a name in the directory that shall hold it; empty: in /var/tmp
  // A session file: its tokens are there from the beginning like those of a finished request, and SaveSession keeps
  // what the last request had. Made where it does not exist. Empty: none. With it and no kv_memory all keys and values
  // that were read stay in memory.
  std::string session = {};
  // Read the blocks of a layer while the layer before computes, where they are known by then (they are with a Forecast,
  // and where a layer attends to everything).
  bool lookahead = true;
  AttentionOptions attention = {};
  // File of Forecast projections for this model, for kSparda now or by Engine::SetAttention; empty: none.
  std::string forecast = {};
  Drafting drafting = Drafting::kOff;
  // Drafted tokens of a sequence and step at most: 1 to 64. With the last token 31 fill whole tiles of rows.
  int draft_max = 31;
  // The most guesses a token may have at each depth: several make a draft a tree, as deep as this list is long. Empty:
  // one, a chain of draft_max. kAuto chooses for itself.
  std::vector<int> draft_tree = {};
  // How the rows of a draft are computed, which changes its time and never the text: how many load blocks together at
  // most, 1 to 64, and whether siblings of a tree stand side by side instead of the tokens of a path. kAuto chooses for
  // itself.
  int draft_group = 64;
  bool draft_breadth_first = false;
  std::shared_ptr<Model> draft_model = nullptr;  // for kModel; kAuto considers it where there is one
  PrecisionClass precision = PrecisionClass::kStrict;
  // A file written by `farsight profile` for this model and machine, to know from the first step what would be
  // learnt while writing. Empty: none. One that cannot be used costs nothing but a sentence in EngineStats.
  std::string profile = {};
};

const char* AttentionPolicyName(
    AttentionPolicy policy);  // "model", "dense", "infllm2", "sketch", "sparda", "infinigen", "stale", "nosa", "nsa"
StatusOr<AttentionPolicy> ParseAttentionPolicy(const std::string& name);
const char* DraftingName(Drafting drafting);  // "off", "auto", "ngram", "suffix", "model"
StatusOr<Drafting> ParseDrafting(const std::string& name);
const char* PrecisionClassName(PrecisionClass precision);  // "strict", "reuse", "shared", "shared+reuse"
StatusOr<PrecisionClass> ParsePrecisionClass(const std::string& name);
const char* KvTypeName(KvType type);  // "f32", "f16", "bf16"
StatusOr<KvType> ParseKvType(const std::string& name);

// One sentence about the first value that can never work.
Status Validate(const AttentionOptions& options);
Status Validate(const EngineOptions& options);

}  // namespace farsight

#endif  // FARSIGHT_OPTIONS_H_
