// A tiny random model of each family as the bytes of a GGUF file, for tests that need a whole engine.
#ifndef FARSIGHT_ENGINE_TESTING_TINY_MODEL_H_
#define FARSIGHT_ENGINE_TESTING_TINY_MODEL_H_

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "io/testing/gguf_writer.h"

namespace farsight::testing {

inline constexpr int kHidden = 64, kHeads = 4, kKvHeads = 2, kDim = 16, kFfn = 96, kLayers = 3, kVocab = 259;

inline std::string Random(std::mt19937& rng, int64_t n, float scale, float centre = 0) {
  std::normal_distribution<float> normal(centre, scale);
  std::string out;
  for (int64_t i = 0; i < n; ++i) {
    const float v = normal(rng);
    out.append(reinterpret_cast<const char*>(&v), 4);
  }
  return out;
}

// A model of one family with 256 byte tokens and three control tokens; large weights, so that tokens differ clearly.
// `frozen`: no layer changes the residual stream, all have the same norm, and the query heads of a group are one: what
// a layer selects can then be known from the layer before. `broken_token`: one whose embedding is no number.
inline std::string TinyModel(const std::string& arch, bool frozen = false, int broken_token = -1) {
  GgufWriter w;
  std::mt19937 rng(11);
  w.String("general.architecture", arch);
  w.U32(arch + ".block_count", kLayers)
      .U32(arch + ".embedding_length", kHidden)
      .U32(arch + ".feed_forward_length", kFfn);
  w.U32(arch + ".attention.head_count", kHeads).U32(arch + ".attention.head_count_kv", kKvHeads);
  w.U32(arch + ".attention.key_length", kDim).U32(arch + ".attention.value_length", kDim);
  w.U32(arch + ".context_length", 4096).F32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  if (arch == "nosa") {
    w.U32("nosa.kernel_size", 8).U32("nosa.kernel_stride", 4).U32("nosa.block_size", 16).U32("nosa.init_blocks", 1);
    w.U32("nosa.local_window", 32).U32("nosa.top_k_blocks", 8).U32("nosa.query_blocks", 6);
  }
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {  // the byte alphabet of byte-level vocabularies
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    const uint32_t c = printable ? b : next++;
    std::string s;
    if (c < 0x80) {
      s.push_back(static_cast<char>(c));
    } else {
      s.push_back(static_cast<char>(0xc0 | (c >> 6)));
      s.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    }
    tokens.push_back(s);
    types.push_back(1);
  }
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(control);
    types.push_back(3);
  }
  w.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "smollm");
  w.Strings("tokenizer.ggml.tokens", tokens);
  w.Numbers<int32_t>("tokenizer.ggml.token_type", GgufValue::kI32, types);
  w.Strings("tokenizer.ggml.merges", {});
  w.U32("tokenizer.ggml.eos_token_id", 258);
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float gain = 2.0f) {
    w.AddTensor(name, DType::kF32, {rows, cols}, Random(rng, rows * cols, gain / std::sqrt(static_cast<float>(cols))));
  };
  const auto vector = [&](const std::string& name, int64_t n, float centre) {
    w.AddTensor(name, DType::kF32, {n}, Random(rng, n, frozen ? 0.0f : 0.1f, centre));
  };
  std::string embedding = Random(rng, int64_t{kVocab} * kHidden, 8.0f / std::sqrt(static_cast<float>(kHidden)));
  if (broken_token >= 0) {  // of its own, so that other tokens' logits stay numbers
    embedding.replace(static_cast<size_t>(broken_token * kHidden) * 4, size_t{kHidden} * 4, size_t{kHidden} * 4,
                      '\xff');
    matrix("output.weight", kVocab, kHidden);
  }
  w.AddTensor("token_embd.weight", DType::kF32, {kVocab, kHidden}, embedding);
  vector("output_norm.weight", kHidden, 1);
  for (int l = 0; l < kLayers; ++l) {
    const std::string p = "blk." + std::to_string(l) + ".";
    vector(p + "attn_norm.weight", kHidden, 1);
    vector(p + "ffn_norm.weight", kHidden, 1);
    if (frozen) {
      std::string rows;
      for (int h = 0; h < kKvHeads; ++h) {
        const std::string head = Random(rng, int64_t{kDim} * kHidden, 2.0f / std::sqrt(static_cast<float>(kHidden)));
        for (int g = 0; g < kHeads / kKvHeads; ++g) rows += head;
      }
      w.AddTensor(p + "attn_q.weight", DType::kF32, {int64_t{kHeads} * kDim, kHidden}, rows);
    } else {
      matrix(p + "attn_q.weight", kHeads * kDim, kHidden);
    }
    matrix(p + "attn_k.weight", kKvHeads * kDim, kHidden);
    matrix(p + "attn_v.weight", kKvHeads * kDim, kHidden);
    matrix(p + "attn_output.weight", kHidden, kHeads * kDim, frozen ? 0.0f : 2.0f);
    matrix(p + "ffn_gate.weight", kFfn, kHidden);
    matrix(p + "ffn_up.weight", kFfn, kHidden);
    matrix(p + "ffn_down.weight", kHidden, kFfn, frozen ? 0.0f : 2.0f);
    if (arch == "nosa") {
      vector(p + "attn_importance.weight", kKvHeads, 0.5f);
      matrix(p + "attn_importance_delta.weight", kKvHeads, kKvHeads * kDim);
      vector(p + "attn_importance_delta.bias", kKvHeads, 0);
    }
    if (arch == "qwen2") {
      vector(p + "attn_q.bias", kHeads * kDim, 0);
      vector(p + "attn_k.bias", kKvHeads * kDim, 0);
      vector(p + "attn_v.bias", kKvHeads * kDim, 0);
    }
    if (arch == "qwen3") {
      vector(p + "attn_q_norm.weight", kDim, 1);
      vector(p + "attn_k_norm.weight", kDim, 1);
    }
  }
  return w.Build();
}

}  // namespace farsight::testing

#endif  // FARSIGHT_ENGINE_TESTING_TINY_MODEL_H_
