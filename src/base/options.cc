#include "farsight/options.h"

#include <array>

#include "farsight/request.h"

namespace farsight {

const char* AttentionPolicyName(AttentionPolicy policy) {
  switch (policy) {
    case AttentionPolicy::kModel:
      return "model";
    case AttentionPolicy::kDense:
      return "dense";
    case AttentionPolicy::kInfLlm2:
      return "infllm2";
    case AttentionPolicy::kSketch:
      return "sketch";
    case AttentionPolicy::kSparda:
      return "sparda";
    case AttentionPolicy::kInfinigen:
      return "infinigen";
    case AttentionPolicy::kStale:
      return "stale";
    case AttentionPolicy::kNosa:
      return "nosa";
    case AttentionPolicy::kNsa:
      return "nsa";
  }
  return "?";
}

StatusOr<AttentionPolicy> ParseAttentionPolicy(const std::string& name) {
  for (auto p : {AttentionPolicy::kModel, AttentionPolicy::kDense, AttentionPolicy::kInfLlm2, AttentionPolicy::kSketch,
                 AttentionPolicy::kSparda, AttentionPolicy::kInfinigen, AttentionPolicy::kStale, AttentionPolicy::kNosa,
                 AttentionPolicy::kNsa}) {
    if (name == AttentionPolicyName(p)) return p;
  }
  return InvalidArgument("unknown attention policy '" + name +
                         "': expected model, dense, infllm2, sketch, sparda, infinigen, stale, nosa or nsa");
}

const char* DraftingName(Drafting drafting) {
  switch (drafting) {
    case Drafting::kOff:
      return "off";
    case Drafting::kAuto:
      return "auto";
    case Drafting::kNgram:
      return "ngram";
    case Drafting::kSuffix:
      return "suffix";
    case Drafting::kModel:
      return "model";
  }
  return "?";
}

StatusOr<Drafting> ParseDrafting(const std::string& name) {
  for (auto d : {Drafting::kOff, Drafting::kAuto, Drafting::kNgram, Drafting::kSuffix, Drafting::kModel}) {
    if (name == DraftingName(d)) return d;
  }
  return InvalidArgument("unknown drafter '" + name + "': expected off, auto, ngram, suffix or model");
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

constexpr std::array<const char*, 4> kPrecisionNames = {"strict", "reuse", "shared", "shared+reuse"};

const char* PrecisionClassName(PrecisionClass precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }

StatusOr<PrecisionClass> ParsePrecisionClass(const std::string& name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i) {
    if (name == kPrecisionNames[i]) return static_cast<PrecisionClass>(i);
  }
  return InvalidArgument("unknown precision class '" + name + "': expected strict, reuse, shared or shared+reuse");
}

const char* KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBF16:
      return "bf16";
  }
  return "?";
}

StatusOr<KvType> ParseKvType(const std::string& name) {
  for (auto t : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    if (name == KvTypeName(t)) return t;
  }
  return InvalidArgument("unknown KV type '" + name + "': expected f32, f16 or bf16");
}

Status Validate(const AttentionOptions& o) {
  const auto number = [](int64_t v) { return std::to_string(v); };
  if (o.block_size != 16 && o.block_size != 32 && o.block_size != 64 && o.block_size != 128 && o.block_size != 256) {
    return InvalidArgument("the block size must be 16, 32, 64, 128 or 256 tokens, not " + number(o.block_size));
  }
  if (o.top_k_blocks < 1) return InvalidArgument("top-k blocks must be at least 1, not " + number(o.top_k_blocks));
  if (o.query_blocks < 0 || o.query_blocks > o.top_k_blocks) {
    return InvalidArgument("query blocks must be between 0 and the top-k blocks, " + number(o.top_k_blocks) + ", not " +
                           number(o.query_blocks));
  }
  if (o.init_blocks < 0) return InvalidArgument("init blocks must not be negative, not " + number(o.init_blocks));
  if (o.local_window < 0)
    return InvalidArgument("the local window must not be negative, not " + number(o.local_window));
  if (o.dense_below < 0) return InvalidArgument("dense-below must not be negative, not " + number(o.dense_below));
  if (o.dense_layers < 0) return InvalidArgument("dense layers must not be negative, not " + number(o.dense_layers));
  if (o.kernel_stride < 1 || o.block_size % o.kernel_stride != 0) {
    return InvalidArgument("the kernel stride must divide the block size " + number(o.block_size) + ", but is " +
                           number(o.kernel_stride));
  }
  if (o.kernel_size < o.kernel_stride || o.kernel_size % o.kernel_stride != 0 || o.kernel_size > 4096) {
    return InvalidArgument("the kernel size must be a multiple of the kernel stride " + number(o.kernel_stride) +
                           " and at most 4096, but is " + number(o.kernel_size));
  }
  if (o.sketch_bits != 1 && o.sketch_bits != 2 && o.sketch_bits != 4) {
    return InvalidArgument("sketch bits must be 1, 2 or 4, not " + number(o.sketch_bits));
  }
  return OkStatus();
}

Status Validate(const EngineOptions& o) {
  if (o.context_tokens < 0 || o.context_tokens > (int64_t{1} << 24)) {
    return InvalidArgument("the context must be between 0 (the model's own) and 16777216 tokens, not " +
                           std::to_string(o.context_tokens));
  }
  if (o.max_sequences < 1 || o.max_sequences > 4096) {
    return InvalidArgument("the number of sequences must be between 1 and 4096, not " +
                           std::to_string(o.max_sequences));
  }
  if (o.prefill_chunk < 1 || o.prefill_chunk > 65536) {
    return InvalidArgument("the prefill chunk must be between 1 and 65536 tokens, not " +
                           std::to_string(o.prefill_chunk));
  }
  if (o.draft_max < 1 || o.draft_max > 64) {
    return InvalidArgument("a draft holds 1 to 64 tokens, not " + std::to_string(o.draft_max));
  }
  if (o.draft_group < 1 || o.draft_group > 64) {
    return InvalidArgument("1 to 64 rows of a draft load blocks together, not " + std::to_string(o.draft_group));
  }
  for (const int width : o.draft_tree) {
    if (width < 1 || width > 64) {
      return InvalidArgument("a token of a draft has 1 to 64 guesses after it, not " + std::to_string(width));
    }
  }
  if (o.draft_tree.size() > 64) {
    return InvalidArgument("a draft is at most 64 tokens deep, not " + std::to_string(o.draft_tree.size()));
  }
  if (o.drafting == Drafting::kModel && o.draft_model == nullptr) {
    return InvalidArgument("drafting by a model needs a draft model, and none was given");
  }
  if (o.kv_tokens < 0) return InvalidArgument("the KV tokens must not be negative, not " + std::to_string(o.kv_tokens));
  if (o.kv_memory < 0) return InvalidArgument("the KV memory must not be negative, not " + std::to_string(o.kv_memory));
  return Validate(o.attention);
}

}  // namespace farsight
