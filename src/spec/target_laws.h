// The target's laws over the next token, one after each node of a draft, made when first asked for: a rule that stops
// early never pays for the nodes that it does not reach.
#ifndef FARSIGHT_SPEC_TARGET_LAWS_H_
#define FARSIGHT_SPEC_TARGET_LAWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "farsight/sampling.h"
#include "farsight/status.h"
#include "sample/sampler.h"
#include "spec/token_tree.h"

namespace farsight {

class TargetLaws {
 public:
  // Laws as given, [nodes].
  explicit TargetLaws(std::vector<Distribution> laws);
  // Laws of logits [nodes, vocab], row u after node u, under the sampler settings. `history` is the sequence so far
  // with the root as its last token; penalties after a node see the tokens on its path too. Everything is borrowed and
  // must outlive this object; `params` passed Validate().
  TargetLaws(const TokenTree& tree, std::span<const float> logits, const SamplingParams& params,
             std::span<const int32_t> history, SamplerScratch* scratch);

  int size() const { return static_cast<int>(laws_.size()); }
  // The law after `node`; valid as long as this object. Errors are those of Probabilities(), and kInvalidArgument where
  // the logits are not a row a node.
  StatusOr<const Distribution*> At(int node);
  // How many laws were made from logits.
  int num_made() const { return num_made_; }

 private:
  std::vector<Distribution> laws_;
  std::vector<bool> made_;  // [nodes]
  int num_made_ = 0;
  const TokenTree* tree_ = nullptr;  // nullptr: the laws were given
  std::span<const float> logits_;
  const SamplingParams* params_ = nullptr;
  std::span<const int32_t> history_;
  SamplerScratch* scratch_ = nullptr;
  std::vector<int32_t> path_history_;
};

}  // namespace farsight

#endif  // FARSIGHT_SPEC_TARGET_LAWS_H_
