#include "eval/policies.h"

#include <fmt/format.h>

#include <algorithm>

namespace farsight::eval {

std::string Variant::Label() const {
  std::string label = Name();
  if (Bits() > 0) label += fmt::format(" {} bit{}", Bits(), Bits() == 1 ? "" : "s");
  if (blocks > 0) label += fmt::format(" {} block{}", blocks, blocks == 1 ? "" : "s");
  return label;
}

StatusOr<std::vector<Variant>> MakeVariants(const std::vector<AttentionPolicy>& policies,
                                            const std::vector<int>& top_k_blocks, const std::vector<int>& sketch_bits,
                                            const AttentionOptions& base) {
  const std::vector<int> budgets = top_k_blocks.empty() ? std::vector<int>{base.top_k_blocks} : top_k_blocks;
  const std::vector<int> all_bits = sketch_bits.empty() ? std::vector<int>{base.sketch_bits} : sketch_bits;
  std::vector<Variant> variants;
  for (const AttentionPolicy policy : policies) {
    const bool selects = policy == AttentionPolicy::kInfLlm2 || policy == AttentionPolicy::kSketch ||
                         policy == AttentionPolicy::kSparda || policy == AttentionPolicy::kInfinigen ||
                         policy == AttentionPolicy::kStale;
    for (const int bits : policy == AttentionPolicy::kSketch ? all_bits : std::vector<int>{base.sketch_bits}) {
      for (const int blocks : selects ? budgets : std::vector<int>{base.top_k_blocks}) {
        Variant v;
        v.options = base;
        v.options.policy = policy;
        v.options.sketch_bits = bits;
        v.options.top_k_blocks = blocks;
        v.blocks = selects && !top_k_blocks.empty() ? blocks : 0;
        FS_RETURN_IF_ERROR(Validate(v.options));
        variants.push_back(v);
      }
    }
  }
  if (variants.empty()) return InvalidArgument("no attention policy was named; at least one was expected");
  return variants;
}

namespace {

bool ReadsDensely(const Engine& engine) {
  const AttentionOptions o = engine.stats().attention;
  return o.policy == AttentionPolicy::kDense || o.phase == SparsePhase::kDecode;
}

}  // namespace

StatusOr<PolicyEngines> PolicyEngines::Make(std::shared_ptr<Model> model, std::vector<Variant> variants,
                                            const EngineOptions& options) {
  PolicyEngines out;
  size_t shared = variants.size();  // the engine of all variants that read densely
  for (auto& variant : variants) {
    if (shared < out.engines_.size() && out.engines_[shared]->SetAttention(variant.options).ok() &&
        ReadsDensely(*out.engines_[shared])) {
      out.engine_of_.push_back(shared);
    } else {
      EngineOptions o = options;
      o.attention = variant.options;
      auto engine = Engine::Create(model, o);
      if (!engine.ok()) {
        const Status& s = engine.status();
        return variants.size() == 1 ? s : Status(s.code(), variant.Label() + ": " + s.message());
      }
      out.engine_of_.push_back(out.engines_.size());
      if (shared >= variants.size() && ReadsDensely(**engine)) shared = out.engines_.size();
      out.engines_.push_back(std::move(*engine));
    }
    const AttentionOptions runs = out.engines_[out.engine_of_.back()]->stats().attention;
    variant.blocks = runs.policy == AttentionPolicy::kDense ? 0 : runs.top_k_blocks;
    out.variants_.push_back(std::move(variant));
  }
  out.set_to_.resize(out.engines_.size(), out.size());
  return out;
}

StatusOr<Engine*> PolicyEngines::Use(size_t i) {
  const size_t e = engine_of_[i];
  const bool is_alone = std::count(engine_of_.begin(), engine_of_.end(), e) == 1;
  if (set_to_[e] != i && !is_alone) FS_RETURN_IF_ERROR(engines_[e]->SetAttention(variants_[i].options));
  set_to_[e] = i;
  return engines_[e].get();
}

}  // namespace farsight::eval
