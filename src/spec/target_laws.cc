#include "spec/target_laws.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace farsight {

TargetLaws::TargetLaws(std::vector<Distribution> laws) : laws_(std::move(laws)), made_(laws_.size(), true) {}

TargetLaws::TargetLaws(const TokenTree& tree, std::span<const float> logits, const SamplingParams& params,
                       std::span<const int32_t> history, SamplerScratch* scratch)
    : laws_(tree.tokens.size()),
      made_(tree.tokens.size(), false),
      tree_(&tree),
      logits_(logits),
      params_(&params),
      history_(history),
      scratch_(scratch) {}

StatusOr<const Distribution*> TargetLaws::At(int node) {
  const auto u = static_cast<size_t>(node);
  FS_CHECK(node >= 0 && u < laws_.size(), "a law is asked for after a node of the draft");
  if (made_[u]) return &laws_[u];
  if (logits_.empty() || logits_.size() % laws_.size() != 0) {
    return InvalidArgument("a draft of " + std::to_string(laws_.size()) +
                           " nodes needs a row of logits for each, not " + std::to_string(logits_.size()) + " numbers");
  }
  std::span<const int32_t> history = history_;
  if (node > 0 && params_->penalty_window != 0) {
    // Only as much of the history as the penalties look at is copied.
    const auto wanted = static_cast<size_t>(params_->penalty_window > 0 ? params_->penalty_window : INT64_MAX);
    const auto tail = history_.last(std::min(wanted, history_.size()));
    path_history_.assign(tail.begin(), tail.end());
    for (int32_t v : PathTo(*tree_, node)) {
      if (v > 0) path_history_.push_back(tree_->tokens[static_cast<size_t>(v)]);
    }
    history = path_history_;
  }
  const size_t vocab = logits_.size() / laws_.size();
  FS_RETURN_IF_ERROR(Probabilities(logits_.subspan(u * vocab, vocab), *params_, history, *scratch_, &laws_[u]));
  made_[u] = true;
  ++num_made_;
  return &laws_[u];
}

}  // namespace farsight
