// The numbers and flags that distinguish one model from another. One forward pass reads them; a family is a
// combination.
#ifndef FARSIGHT_MODEL_CONFIG_H_
#define FARSIGHT_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "farsight/options.h"
#include "io/model_file.h"

namespace farsight {

// How rotary frequencies are stretched beyond the trained length.
enum class RopeScaling {
  kNone,
  kLinear,    // every frequency divided by `factor`
  kFactors,   // frequency i divided by factors[i] (Llama 3 files carry these as a tensor)
  kLlama3,    // factors computed from low/high frequency bounds
  kLongRope,  // short or long factors, chosen once for an engine by its context
  kYarn,
};

struct RopeConfig {
  double theta = 10000;
  int dims = 0;  // rotated channels of a head
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double low_freq_factor = 1;   // kLlama3
  double high_freq_factor = 4;  // kLlama3
  double beta_fast = 32;        // kYarn
  double beta_slow = 1;         // kYarn
  double mscale = 0;            // kYarn; 0: not given
  double mscale_all_dim = 0;    // kYarn; 0: not given
  double attention_factor = 0;  // multiplies cos and sin; 0: derived from the scaling
  int64_t original_context = 0;
  std::vector<double> short_factors;  // kFactors, kLongRope: [dims / 2]
  std::vector<double> long_factors;   // kLongRope
};

// What the compressed keys of NSA know of positions.
enum class CompressRope {
  kNone,   // pooled unrotated keys, unrotated query
  kPost,   // pooled rotated keys, rotated query
  kStart,  // pooled unrotated keys, rotated as the window's first token; rotated query
};

struct NsaConfig {
  int kv_sets = 0;  // 3: own keys and values a branch, 1: shared; 0: not an NSA model
  CompressRope compress_rope = CompressRope::kNone;
  bool learned_compressor = true;  // softmax weights; otherwise the mean
  bool gate_bias = false;
  int window = 0;  // tokens of the sliding window
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3", "minicpm", "infllm", "nosa", "nsa"
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int64_t vocab = 0;
  int64_t context = 0;
  double rms_eps = 1e-5;
  bool qk_norm = false;           // per-head RMSNorm of q and k before RoPE (Qwen3)
  bool interleaved_rope = false;  // the file's q and k rows are permuted for pairs (2i, 2i+1); loading undoes it
  double embedding_scale = 1;     // MiniCPM: times the embedding
  double residual_scale = 1;      // MiniCPM: times both sublayer outputs
  double logit_scale = 1;         // times the logits
  RopeConfig rope;
  bool nope_scores = false;  // InfLLM-v2 (use_nope): blocks are scored with queries and keys before RoPE
  NsaConfig nsa;
  bool importances = false;    // NOSA: tokens have an importance for each KV head, from their values
  AttentionOptions attention;  // policy kDense unless the model was trained with block-sparse attention
};

// From the metadata of a GGUF file. An architecture or option we cannot run is refused by name with the reason.
StatusOr<ModelConfig> ConfigFromGguf(const ModelFile& file);

// From the text of a Hugging Face config.json.
StatusOr<ModelConfig> ConfigFromJson(const std::string& json, const std::string& path);

// Frequencies [dims / 2] and the factor of cos and sin for an engine with this context.
struct RopeTableSpec {
  std::vector<double> inv_freq;
  double magnitude = 1;
};
StatusOr<RopeTableSpec> ResolveRope(const RopeConfig& rope, int64_t trained_context, int64_t engine_context);

// Cross-checks that hold for every model: heads divide, sizes positive and bounded.
Status ValidateConfig(const ModelConfig& config);

}  // namespace farsight

#endif  // FARSIGHT_MODEL_CONFIG_H_
