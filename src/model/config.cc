#include "model/config.h"

#include <cmath>

namespace farsight {
namespace {

constexpr double kPi = 3.14159265358979323846;

StatusOr<int> SmallInt(const ModelFile& file, const std::string& key, int64_t low, int64_t high) {
  FS_ASSIGN_OR_RETURN(const int64_t v, file.GetInt(key));
  if (v < low || v > high) {
    return DataLoss("metadata key '" + key + "' is " + std::to_string(v) + "; " + std::to_string(low) + " to " +
                    std::to_string(high) + " was expected");
  }
  return static_cast<int>(v);
}

std::vector<double> FactorsOf(const FileTensor& t) {
  std::vector<double> out;
  const auto* values = reinterpret_cast<const float*>(t.data.data());
  for (int64_t i = 0; i < t.num_elements(); ++i) out.push_back(values[i]);
  return out;
}

Status ReadRope(const ModelFile& file, const std::string& arch, ModelConfig* c) {
  RopeConfig& r = c->rope;
  FS_ASSIGN_OR_RETURN(r.theta, file.OptFloat(arch + ".rope.freq_base", 10000.0));
  FS_ASSIGN_OR_RETURN(const int64_t dims, file.OptInt(arch + ".rope.dimension_count", c->head_dim));
  r.dims = static_cast<int>(dims);
  FS_ASSIGN_OR_RETURN(r.original_context, file.OptInt(arch + ".rope.scaling.original_context_length", c->context));
  FS_ASSIGN_OR_RETURN(r.factor, file.OptFloat(arch + ".rope.scaling.factor", 1.0));
  FS_ASSIGN_OR_RETURN(r.attention_factor, file.OptFloat(arch + ".rope.scaling.attn_factor", 0.0));
  FS_ASSIGN_OR_RETURN(const std::string type, file.OptString(arch + ".rope.scaling.type", "none"));
  const FileTensor* freqs = file.FindTensor("rope_freqs.weight");
  const FileTensor* longs = file.FindTensor("rope_factors_long.weight");
  const FileTensor* shorts = file.FindTensor("rope_factors_short.weight");
  for (const FileTensor* t : {freqs, longs, shorts}) {
    if (t != nullptr && (t->dtype != DType::kF32 || t->num_elements() != r.dims / 2)) {
      return DataLoss("tensor '" + t->name + "' should hold " + std::to_string(r.dims / 2) + " F32 factors");
    }
  }
  if (freqs != nullptr) {
    r.scaling = RopeScaling::kFactors;
    r.short_factors = FactorsOf(*freqs);
  } else if (longs != nullptr && shorts != nullptr) {
    r.scaling = RopeScaling::kLongRope;
    r.long_factors = FactorsOf(*longs);
    r.short_factors = FactorsOf(*shorts);
  } else if (type == "linear") {
    r.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    r.scaling = RopeScaling::kYarn;
  } else if (type != "none") {
    return Unimplemented("RoPE scaling '" + type + "' of '" + file.path() + "' is not supported");
  }
  return OkStatus();
}

Status ReadSparse(const ModelFile& file, const std::string& arch, ModelConfig* c) {
  AttentionOptions& a = c->attention;
  a.policy = AttentionPolicy::kInfLlm2;
  a.phase = SparsePhase::kAll;
  a.dense_layers = 0;
  const auto read = [&](const char* key, int* out) -> Status {
    FS_ASSIGN_OR_RETURN(const int64_t v, file.OptInt(arch + "." + key, *out));
    if (v < 0 || v > (1 << 24)) return DataLoss("metadata key '" + arch + "." + key + "' is " + std::to_string(v));
    *out = static_cast<int>(v);
    return OkStatus();
  };
  FS_RETURN_IF_ERROR(read("kernel_size", &a.kernel_size));
  FS_RETURN_IF_ERROR(read("kernel_stride", &a.kernel_stride));
  FS_RETURN_IF_ERROR(read("block_size", &a.block_size));
  FS_RETURN_IF_ERROR(read("init_blocks", &a.init_blocks));
  FS_RETURN_IF_ERROR(read("local_window", &a.local_window));
  FS_RETURN_IF_ERROR(read("top_k_blocks", &a.top_k_blocks));
  FS_RETURN_IF_ERROR(read("dense_len", &a.dense_below));
  FS_ASSIGN_OR_RETURN(c->nope_scores, file.OptBool(arch + ".use_nope", false));
  return Validate(a);
}

Status ReadNsa(const ModelFile& file, ModelConfig* c) {
  AttentionOptions& a = c->attention;
  NsaConfig& n = c->nsa;
  a.policy = AttentionPolicy::kNsa;
  a.phase = SparsePhase::kAll;
  a.dense_layers = 0;
  a.dense_below = 0;
  const auto read = [&](const char* key, int low, int* out) -> Status {
    FS_ASSIGN_OR_RETURN(*out, SmallInt(file, std::string("nsa.") + key, low, 1 << 20));
    return OkStatus();
  };
  int local_blocks = 0;
  FS_RETURN_IF_ERROR(read("compress_len", 1, &a.kernel_size));
  FS_RETURN_IF_ERROR(read("compress_stride", 1, &a.kernel_stride));
  FS_RETURN_IF_ERROR(read("block", 1, &a.block_size));
  FS_RETURN_IF_ERROR(read("top_n", 1, &a.top_k_blocks));
  FS_RETURN_IF_ERROR(read("window", 1, &n.window));
  FS_RETURN_IF_ERROR(read("init_blocks", 0, &a.init_blocks));
  FS_RETURN_IF_ERROR(read("local_blocks", 1, &local_blocks));
  FS_RETURN_IF_ERROR(read("kv_sets", 1, &n.kv_sets));
  if (local_blocks > 4096) return DataLoss("'nsa.local_blocks' is " + std::to_string(local_blocks));
  FS_RETURN_IF_ERROR(Validate(a));
  a.local_window = (local_blocks - 1) * a.block_size;
  if (n.kv_sets != 1 && n.kv_sets != 3) {
    return Unimplemented("'nsa.kv_sets' of '" + file.path() + "' is " + std::to_string(n.kv_sets) +
                         "; 1 and 3 are supported");
  }
  FS_ASSIGN_OR_RETURN(const std::string rope, file.OptString("nsa.compress_rope", "none"));
  if (rope == "none") {
    n.compress_rope = CompressRope::kNone;
  } else if (rope == "post") {
    n.compress_rope = CompressRope::kPost;
  } else if (rope == "start") {
    n.compress_rope = CompressRope::kStart;
  } else {
    return Unimplemented("'nsa.compress_rope' of '" + file.path() + "' is '" + rope +
                         "'; none, post and start are supported");
  }
  FS_ASSIGN_OR_RETURN(const std::string compressor, file.OptString("nsa.compressor", "softmax"));
  if (compressor != "softmax" && compressor != "mean") {
    return Unimplemented("'nsa.compressor' of '" + file.path() + "' is '" + compressor +
                         "'; softmax and mean are supported");
  }
  n.learned_compressor = compressor == "softmax";
  FS_ASSIGN_OR_RETURN(const std::string gate, file.OptString("nsa.gate", "sigmoid"));
  if (gate != "sigmoid" && gate != "sigmoid_bias") {
    return Unimplemented("'nsa.gate' of '" + file.path() + "' is '" + gate +
                         "'; sigmoid and sigmoid_bias are supported");
  }
  n.gate_bias = gate == "sigmoid_bias";
  return OkStatus();
}

}  // namespace

StatusOr<ModelConfig> ConfigFromGguf(const ModelFile& file) {
  ModelConfig c;
  FS_ASSIGN_OR_RETURN(c.architecture, file.GetString("general.architecture"));
  const std::string& arch = c.architecture;
  if (arch != "llama" && arch != "qwen2" && arch != "qwen3" && arch != "minicpm" && arch != "infllm" &&
      arch != "nosa" && arch != "nsa") {
    return Unimplemented("the architecture '" + arch + "' of '" + file.path() +
                         "' is not supported (llama, qwen2, qwen3, minicpm, infllm, nosa and nsa are)");
  }
  FS_ASSIGN_OR_RETURN(c.name, file.OptString("general.name", ""));
  FS_ASSIGN_OR_RETURN(c.layers, SmallInt(file, arch + ".block_count", 1, 1024));
  FS_ASSIGN_OR_RETURN(c.hidden, SmallInt(file, arch + ".embedding_length", 1, 1 << 17));
  FS_ASSIGN_OR_RETURN(c.ffn, SmallInt(file, arch + ".feed_forward_length", 1, 1 << 20));
  FS_ASSIGN_OR_RETURN(c.heads, SmallInt(file, arch + ".attention.head_count", 1, 1024));
  FS_ASSIGN_OR_RETURN(const int64_t kv_heads, file.OptInt(arch + ".attention.head_count_kv", c.heads));
  if (kv_heads < 1 || kv_heads > c.heads) {
    return DataLoss("'" + arch + ".attention.head_count_kv' is " + std::to_string(kv_heads) + " with " +
                    std::to_string(c.heads) + " query heads");
  }
  c.kv_heads = static_cast<int>(kv_heads);
  FS_ASSIGN_OR_RETURN(const int64_t head_dim, file.OptInt(arch + ".attention.key_length", c.hidden / c.heads));
  FS_ASSIGN_OR_RETURN(const int64_t value_dim, file.OptInt(arch + ".attention.value_length", head_dim));
  if (value_dim != head_dim) {
    return Unimplemented("'" + file.path() + "' has keys of " + std::to_string(head_dim) + " and values of " +
                         std::to_string(value_dim) + " channels; equal sizes are supported");
  }
  if (head_dim < 1 || head_dim > 4096) return DataLoss("the head size is " + std::to_string(head_dim));
  c.head_dim = static_cast<int>(head_dim);
  FS_ASSIGN_OR_RETURN(c.context, file.GetInt(arch + ".context_length"));
  FS_ASSIGN_OR_RETURN(c.rms_eps, file.GetFloat(arch + ".attention.layer_norm_rms_epsilon"));
  FS_ASSIGN_OR_RETURN(const int64_t experts, file.OptInt(arch + ".expert_count", 0));
  if (experts > 0) return Unimplemented("'" + file.path() + "' is a mixture of experts, which is not supported");
  const FileTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return DataLoss("'" + file.path() + "' lacks the tensor 'token_embd.weight'");
  c.vocab = embedding->shape[0];
  c.qk_norm = arch == "qwen3";
  c.interleaved_rope = arch == "llama" || arch == "minicpm";
  if (arch == "minicpm" || arch == "infllm") {
    FS_ASSIGN_OR_RETURN(c.embedding_scale, file.OptFloat(arch + ".embedding_scale", 1.0));
    FS_ASSIGN_OR_RETURN(c.residual_scale, file.OptFloat(arch + ".residual_scale", 1.0));
    FS_ASSIGN_OR_RETURN(const double divisor, file.OptFloat(arch + ".logit_scale", 1.0));
    if (!(divisor > 0)) return DataLoss("'" + arch + ".logit_scale' must be positive");
    c.logit_scale = 1.0 / divisor;
  }
  c.attention.policy = AttentionPolicy::kDense;
  if (arch == "infllm") FS_RETURN_IF_ERROR(ReadSparse(file, arch, &c));
  if (arch == "nosa") {
    FS_RETURN_IF_ERROR(ReadSparse(file, arch, &c));
    c.importances = true;
    c.attention.policy = AttentionPolicy::kNosa;
    FS_ASSIGN_OR_RETURN(c.attention.query_blocks, SmallInt(file, "nosa.query_blocks", 1, c.attention.top_k_blocks));
  }
  if (arch == "nsa") FS_RETURN_IF_ERROR(ReadNsa(file, &c));
  FS_RETURN_IF_ERROR(ReadRope(file, arch, &c));
  FS_RETURN_IF_ERROR(ValidateConfig(c));
  return c;
}

Status ValidateConfig(const ModelConfig& c) {
  const auto bad = [](const std::string& what) { return DataLoss("the model's configuration is impossible: " + what); };
  if (c.heads % c.kv_heads != 0) {
    return bad(std::to_string(c.heads) + " query heads are not a multiple of " + std::to_string(c.kv_heads) +
               " KV heads");
  }
  if (c.head_dim % 8 != 0 || c.head_dim > 256) {
    return Unimplemented("heads of " + std::to_string(c.head_dim) +
                         " channels are not supported (multiples of 8 up to 256 are)");
  }
  if (c.rope.dims < 2 || c.rope.dims > c.head_dim || c.rope.dims % 2 != 0) {
    return bad("RoPE turns " + std::to_string(c.rope.dims) + " of " + std::to_string(c.head_dim) + " channels");
  }
  if (!(c.rope.theta > 0) || !std::isfinite(c.rope.theta)) return bad("the RoPE base must be positive");
  if (!(c.rms_eps > 0) || c.rms_eps > 0.1) return bad("the RMSNorm epsilon is " + std::to_string(c.rms_eps));
  if (c.context < 1 || c.context > (int64_t{1} << 24))
    return bad("a context of " + std::to_string(c.context) + " tokens");
  if (c.vocab < 1 || c.vocab > (1 << 24)) return bad("a vocabulary of " + std::to_string(c.vocab));
  return OkStatus();
}

StatusOr<RopeTableSpec> ResolveRope(const RopeConfig& r, int64_t trained_context, int64_t engine_context) {
  const int half = r.dims / 2;
  RopeTableSpec out;
  for (int i = 0; i < half; ++i) out.inv_freq.push_back(std::pow(r.theta, -2.0 * i / r.dims));
  const auto original = static_cast<double>(r.original_context > 0 ? r.original_context : trained_context);
  switch (r.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& f : out.inv_freq) f /= r.factor;
      break;
    case RopeScaling::kFactors:
      for (int i = 0; i < half; ++i) out.inv_freq[static_cast<size_t>(i)] /= r.short_factors[static_cast<size_t>(i)];
      break;
    case RopeScaling::kLlama3:
      for (double& f : out.inv_freq) {
        const double wavelength = 2 * kPi / f;
        if (wavelength > original / r.low_freq_factor) {
          f /= r.factor;
        } else if (wavelength > original / r.high_freq_factor) {
          const double smooth = (original / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
          f = (1 - smooth) * f / r.factor + smooth * f;
        }
      }
      break;
    case RopeScaling::kLongRope: {
      // The list is fixed for the engine: switching once keys are cached would contradict them.
      const bool is_long = engine_context > static_cast<int64_t>(original);
      const auto& factors = is_long ? r.long_factors : r.short_factors;
      for (int i = 0; i < half; ++i) out.inv_freq[static_cast<size_t>(i)] /= factors[static_cast<size_t>(i)];
      const double stretch = static_cast<double>(trained_context) / original;
      if (stretch > 1) out.magnitude = std::sqrt(1 + std::log(stretch) / std::log(original));
      break;
    }
    case RopeScaling::kYarn: {
      const auto bound = [&](double rotations) {
        return r.dims * std::log(original / (rotations * 2 * kPi)) / (2 * std::log(r.theta));
      };
      const double low = std::max(std::floor(bound(r.beta_fast)), 0.0);
      double high = std::min(std::ceil(bound(r.beta_slow)), r.dims - 1.0);
      if (low == high) high += 0.001;
      for (int i = 0; i < half; ++i) {
        const double ramp = std::min(std::max((i - low) / (high - low), 0.0), 1.0);
        double& f = out.inv_freq[static_cast<size_t>(i)];
        f = f / r.factor * ramp + f * (1 - ramp);
      }
      const auto scale = [&](double m) { return r.factor <= 1 ? 1.0 : 0.1 * m * std::log(r.factor) + 1.0; };
      out.magnitude = r.mscale > 0 && r.mscale_all_dim > 0 ? scale(r.mscale) / scale(r.mscale_all_dim) : scale(1);
      break;
    }
  }
  if (r.attention_factor > 0) out.magnitude = r.attention_factor;
  for (double f : out.inv_freq) {
    if (!std::isfinite(f) || f <= 0) return DataLoss("the model's RoPE factors give an impossible frequency");
  }
  return out;
}

}  // namespace farsight
