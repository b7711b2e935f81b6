// The configuration of a safetensors directory: a Hugging Face config.json.
#include <cmath>

#include "io/json.h"
#include "model/config.h"

namespace farsight {
namespace {

// Typed access to one JSON object; every error names the file and the key.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  StatusOr<double> Number(const char* key) const {
    if (!Has(key)) return DataLoss(path_ + " lacks the key '" + key + "'");
    if (!object_[key].is_number()) return DataLoss(path_ + ": '" + key + "' should be a number");
    return object_[key].get<double>();
  }
  StatusOr<double> Number(const char* key, double fallback) const {
    return Has(key) ? Number(key) : StatusOr<double>(fallback);
  }
  StatusOr<int> Int(const char* key, int64_t low, int64_t high) const {
    FS_ASSIGN_OR_RETURN(const double v, Number(key));
    if (v != std::floor(v) || v < static_cast<double>(low) || v > static_cast<double>(high)) {
      return DataLoss(path_ + ": '" + key + "' should be a whole number from " + std::to_string(low) + " to " +
                      std::to_string(high) + ", not " + object_[key].dump());
    }
    return static_cast<int>(v);
  }
  StatusOr<int> Int(const char* key, int64_t low, int64_t high, int fallback) const {
    return Has(key) ? Int(key, low, high) : StatusOr<int>(fallback);
  }
  bool True(const char* key) const { return Has(key) && object_[key].is_boolean() && object_[key].get<bool>(); }
  std::string Text(const char* key, const std::string& fallback) const {
    return Has(key) && object_[key].is_string() ? object_[key].get<std::string>() : fallback;
  }
  StatusOr<std::vector<double>> Numbers(const char* key) const {
    std::vector<double> out;
    if (!Has(key) || !object_[key].is_array()) return DataLoss(path_ + ": '" + key + "' should be a list of numbers");
    for (const auto& v : object_[key]) {
      if (!v.is_number()) return DataLoss(path_ + ": '" + key + "' should be a list of numbers");
      out.push_back(v.get<double>());
    }
    return out;
  }

 private:
  const Json& object_;
  std::string path_;
};

Status ReadRopeScaling(const Json& scaling, const std::string& path, ModelConfig* c) {
  RopeConfig& r = c->rope;
  const Fields f(scaling, path + " (RoPE)");
  FS_ASSIGN_OR_RETURN(r.theta, f.Number("rope_theta", r.theta));
  const std::string type = f.Text("rope_type", f.Text("type", "default"));
  FS_ASSIGN_OR_RETURN(r.factor, f.Number("factor", 1.0));
  FS_ASSIGN_OR_RETURN(const double original,
                      f.Number("original_max_position_embeddings", static_cast<double>(c->context)));
  r.original_context = static_cast<int64_t>(original);
  FS_ASSIGN_OR_RETURN(r.attention_factor, f.Number("attention_factor", 0.0));
  if (type == "default") return OkStatus();
  if (type == "linear") {
    r.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    r.scaling = RopeScaling::kLlama3;
    FS_ASSIGN_OR_RETURN(r.low_freq_factor, f.Number("low_freq_factor"));
    FS_ASSIGN_OR_RETURN(r.high_freq_factor, f.Number("high_freq_factor"));
    if (!(r.factor > 0 && r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor)) {
      return DataLoss(path + ": the llama3 RoPE factors are impossible");
    }
  } else if (type == "longrope" || type == "su") {
    r.scaling = RopeScaling::kLongRope;
    FS_ASSIGN_OR_RETURN(r.short_factors, f.Numbers("short_factor"));
    FS_ASSIGN_OR_RETURN(r.long_factors, f.Numbers("long_factor"));
    const auto half = static_cast<size_t>(r.dims / 2);
    if (r.short_factors.size() != half || r.long_factors.size() != half) {
      return DataLoss(path + ": the LongRoPE lists should hold " + std::to_string(half) + " factors each");
    }
  } else if (type == "yarn") {
    r.scaling = RopeScaling::kYarn;
    FS_ASSIGN_OR_RETURN(r.beta_fast, f.Number("beta_fast", 32.0));
    FS_ASSIGN_OR_RETURN(r.beta_slow, f.Number("beta_slow", 1.0));
    FS_ASSIGN_OR_RETURN(r.mscale, f.Number("mscale", 0.0));
    FS_ASSIGN_OR_RETURN(r.mscale_all_dim, f.Number("mscale_all_dim", 0.0));
  } else {
    return Unimplemented("RoPE scaling '" + type + "' of " + path + " is not supported");
  }
  return OkStatus();
}

// Newer files list the kind of every layer; older ones have one switch.
Status RefuseOtherLayers(const Fields& f, const Json& json, const std::string& path) {
  if (f.True("use_sliding_window")) {
    return Unimplemented(path + " uses sliding-window layers, which are not supported");
  }
  if (!f.Has("layer_types")) return OkStatus();
  if (!json["layer_types"].is_array()) return DataLoss(path + ": 'layer_types' should be a list");
  for (const auto& type : json["layer_types"]) {
    if (type != "full_attention") {
      return Unimplemented(path + " has layers of the type " + type.dump(-1, ' ', true).substr(0, 100) +
                           ", which are not supported ('full_attention' is)");
    }
  }
  return OkStatus();
}

// `window` and `top_k`: what the family means where its file says nothing.
Status ReadSparse(const Json& json, const std::string& path, int window, int default_top_k, ModelConfig* c) {
  const Fields s(json, path + " (sparse_config)");
  AttentionOptions& a = c->attention;
  if (s.True("use_nope")) {
    return Unimplemented(path + " selects blocks with un-rotated queries and keys (use_nope), which is not supported");
  }
  a.policy = AttentionPolicy::kInfLlm2;
  a.phase = SparsePhase::kAll;
  a.dense_layers = 0;
  FS_ASSIGN_OR_RETURN(a.kernel_size, s.Int("kernel_size", 1, 4096, 32));
  FS_ASSIGN_OR_RETURN(a.kernel_stride, s.Int("kernel_stride", 1, 4096, 16));
  FS_ASSIGN_OR_RETURN(a.block_size, s.Int("block_size", 16, 256, 64));
  FS_ASSIGN_OR_RETURN(a.init_blocks, s.Int("init_blocks", 0, 1024, 1));
  FS_ASSIGN_OR_RETURN(a.local_window, s.Int("window_size", 0, 1 << 20, window));
  FS_ASSIGN_OR_RETURN(const int top_k, s.Int("topk", 1, 1 << 16, default_top_k));
  // The reference adds the window's blocks to its top-k: 64 means 96 blocks in all.
  a.top_k_blocks = top_k + a.local_window / a.block_size;
  FS_ASSIGN_OR_RETURN(a.dense_below, s.Int("dense_len", -1, 1 << 24, 8192));
  a.dense_below = a.dense_below < 0 ? 0 : a.dense_below;
  return Validate(a);
}

Status ReadMiniCpm(const Fields& f, const Json& json, const std::string& path, ModelConfig* c) {
  FS_ASSIGN_OR_RETURN(c->embedding_scale, f.Number("scale_emb", 1.0));
  FS_ASSIGN_OR_RETURN(const double depth, f.Number("scale_depth", 1.0));
  c->residual_scale = f.Has("scale_depth") ? depth / std::sqrt(static_cast<double>(c->layers)) : 1.0;
  FS_ASSIGN_OR_RETURN(const double base, f.Number("dim_model_base", static_cast<double>(c->hidden)));
  if (!(base > 0)) return DataLoss(path + ": 'dim_model_base' must be positive");
  c->logit_scale = base / c->hidden;
  return f.Has("sparse_config") ? ReadSparse(json["sparse_config"], path, 2048, 64, c) : OkStatus();
}

// A Llama with a sparse_config is a NOSA model.
Status ReadNosa(const Fields& f, const Json& json, const std::string& path, ModelConfig* c) {
  if (!f.Has("sparse_config")) return OkStatus();
  FS_RETURN_IF_ERROR(ReadSparse(json["sparse_config"], path, 1024, 80, c));
  c->architecture = "nosa";
  c->importances = true;
  AttentionOptions& a = c->attention;
  a.policy = AttentionPolicy::kNosa;
  const Fields s(json["sparse_config"], path + " (sparse_config)");
  FS_ASSIGN_OR_RETURN(const int free, s.Int("select_blocks", 0, 1 << 16, 24));
  // The reference counts its query's blocks beyond the initial ones and the window, in which the row's own is one more.
  a.query_blocks = a.init_blocks + a.local_window / a.block_size + free;
  if (a.query_blocks < 1) return DataLoss(path + ": no block is chosen by the query");
  return Validate(a);
}

}  // namespace

StatusOr<ModelConfig> ConfigFromJson(const std::string& text, const std::string& path) {
  FS_ASSIGN_OR_RETURN(const Json json, ParseJson(text, {}, "'" + path + "'"));
  if (!json.is_object()) return DataLoss("'" + path + "' should be a JSON object");
  const Fields f(json, "'" + path + "'");
  ModelConfig c;
  c.architecture = f.Text("model_type", "");
  const std::string& arch = c.architecture;
  if (arch != "llama" && arch != "qwen2" && arch != "qwen3" && arch != "minicpm") {
    return Unimplemented("the model type '" + arch + "' of '" + path +
                         "' is not supported (llama, qwen2, qwen3 and minicpm are)");
  }
  c.name = f.Text("_name_or_path", "");
  FS_ASSIGN_OR_RETURN(c.layers, f.Int("num_hidden_layers", 1, 1024));
  FS_ASSIGN_OR_RETURN(c.hidden, f.Int("hidden_size", 1, 1 << 17));
  FS_ASSIGN_OR_RETURN(c.ffn, f.Int("intermediate_size", 1, 1 << 20));
  FS_ASSIGN_OR_RETURN(c.heads, f.Int("num_attention_heads", 1, 1024));
  FS_ASSIGN_OR_RETURN(c.kv_heads, f.Int("num_key_value_heads", 1, c.heads, c.heads));
  FS_ASSIGN_OR_RETURN(c.head_dim, f.Int("head_dim", 1, 4096, c.hidden / c.heads));
  FS_ASSIGN_OR_RETURN(const int vocab, f.Int("vocab_size", 1, 1 << 24));
  c.vocab = vocab;
  FS_ASSIGN_OR_RETURN(const int context, f.Int("max_position_embeddings", 1, 1 << 24));
  c.context = context;
  FS_ASSIGN_OR_RETURN(c.rms_eps, f.Number("rms_norm_eps", 1e-6));
  c.qk_norm = arch == "qwen3";
  if (const std::string act = f.Text("hidden_act", "silu"); act != "silu") {
    return Unimplemented("the activation '" + act + "' of '" + path + "' is not supported (silu is)");
  }
  FS_RETURN_IF_ERROR(RefuseOtherLayers(f, json, "'" + path + "'"));
  c.rope.dims = c.head_dim;
  c.rope.original_context = c.context;
  FS_ASSIGN_OR_RETURN(c.rope.theta, f.Number("rope_theta", 10000.0));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (f.Has(key) && json[key].is_object()) FS_RETURN_IF_ERROR(ReadRopeScaling(json[key], "'" + path + "'", &c));
  }
  c.attention.policy = AttentionPolicy::kDense;
  if (arch == "minicpm") FS_RETURN_IF_ERROR(ReadMiniCpm(f, json, "'" + path + "'", &c));
  if (arch == "llama") FS_RETURN_IF_ERROR(ReadNosa(f, json, "'" + path + "'", &c));
  FS_RETURN_IF_ERROR(ValidateConfig(c));
  return c;
}

}  // namespace farsight
