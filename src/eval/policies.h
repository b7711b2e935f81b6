// Attention policies measured side by side.
#ifndef FARSIGHT_EVAL_POLICIES_H_
#define FARSIGHT_EVAL_POLICIES_H_

#include <memory>
#include <string>
#include <vector>

#include "farsight/engine.h"

namespace farsight::eval {

// A policy with its budget, as one row of a table.
struct Variant {
  AttentionOptions options;
  int blocks = 0;  // that a query attends to; 0: all, or not known before the model is
  std::string Name() const { return AttentionPolicyName(options.policy); }
  int Bits() const { return options.policy == AttentionPolicy::kSketch ? options.sketch_bits : 0; }
  std::string Label() const;  // "dense", "sketch 2 bits 24 blocks"
};

// Every policy with every budget and, for sketch, every number of bits; `dense` and `model` once. Empty lists: the
// value of `base`.
StatusOr<std::vector<Variant>> MakeVariants(const std::vector<AttentionPolicy>& policies,
                                            const std::vector<int>& top_k_blocks, const std::vector<int>& sketch_bits,
                                            const AttentionOptions& base);

// Engines that answer the same prompts under every variant. Variants that read a prompt alike (densely, with the same
// blocks) share one engine and so one reading of it: the next answer only repeats the key summaries.
class PolicyEngines {
 public:
  // `options.attention` is ignored, `options.forecast` is for kSparda alone. Refuses what the model can't run, naming
  // the variant.
  static StatusOr<PolicyEngines> Make(std::shared_ptr<Model> model, std::vector<Variant> variants,
                                      const EngineOptions& options);

  size_t size() const { return variants_.size(); }
  const Variant& variant(size_t i) const { return variants_[i]; }
  // The engine set to variant i. It stays valid until Use is called again.
  StatusOr<Engine*> Use(size_t i);

 private:
  PolicyEngines() = default;

  std::vector<Variant> variants_;
  std::vector<size_t> engine_of_;  // [variants]
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<size_t> set_to_;  // [engines] variant; at first none
};

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_POLICIES_H_
