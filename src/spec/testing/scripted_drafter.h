// Drafters that follow a script: right, wrong, or both in turn, whatever the sequence says.
#ifndef FARSIGHT_SPEC_TESTING_SCRIPTED_DRAFTER_H_
#define FARSIGHT_SPEC_TESTING_SCRIPTED_DRAFTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "spec/drafter.h"

namespace farsight::testing {

// draft(tokens so far, how many to draft) -> a chain. Its length is not checked: an over-long script is a test too.
class ScriptedDrafter final : public Drafter {
 public:
  using Script = std::function<std::vector<int32_t>(const std::vector<int32_t>&, int)>;
  explicit ScriptedDrafter(Script script) : script_(std::move(script)) {}

  DrafterKind kind() const override { return DrafterKind::kModel; }
  Status Begin(uint64_t sequence) override {
    texts_[sequence];
    return OkStatus();
  }
  void End(uint64_t sequence) override { texts_.erase(sequence); }
  Status Observe(uint64_t sequence, std::span<const int32_t> tokens) override {
    texts_[sequence].insert(texts_[sequence].end(), tokens.begin(), tokens.end());
    return OkStatus();
  }
  Status Truncate(uint64_t sequence, int64_t length) override {
    texts_[sequence].resize(static_cast<size_t>(length));
    return OkStatus();
  }
  Status Propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto& text = texts_[requests[i].sequence];
      const int n = std::min(requests[i].max_tokens, requests[i].shape.max_nodes);
      drafts[i] = {MakeChain(text.back(), script_(text, n)), Drawing::kDeterministic, {}};
    }
    return OkStatus();
  }

 private:
  Script script_;
  std::map<uint64_t, std::vector<int32_t>> texts_;
};

// The continuation of `answer`, the whole text that the sequence will become.
inline ScriptedDrafter::Script PerfectScript(std::vector<int32_t> answer) {
  return [answer = std::move(answer)](const std::vector<int32_t>& text, int n) {
    const size_t begin = std::min(text.size(), answer.size());
    const size_t end = std::min(begin + static_cast<size_t>(n), answer.size());
    return std::vector<int32_t>(answer.begin() + static_cast<std::ptrdiff_t>(begin),
                                answer.begin() + static_cast<std::ptrdiff_t>(end));
  };
}

// The same with every token replaced by its neighbour in a vocabulary of `vocab` tokens.
inline ScriptedDrafter::Script WrongScript(std::vector<int32_t> answer, int32_t vocab) {
  return [right = PerfectScript(std::move(answer)), vocab](const std::vector<int32_t>& text, int n) {
    auto draft = right(text, n);
    for (int32_t& token : draft) token = (token + 1) % vocab;
    return draft;
  };
}

// Every second token of a draft is wrong.
inline ScriptedDrafter::Script AlternatingScript(std::vector<int32_t> answer, int32_t vocab) {
  return [right = PerfectScript(std::move(answer)), vocab](const std::vector<int32_t>& text, int n) {
    auto draft = right(text, n);
    for (size_t i = 1; i < draft.size(); i += 2) draft[i] = (draft[i] + 1) % vocab;
    return draft;
  };
}

}  // namespace farsight::testing

#endif  // FARSIGHT_SPEC_TESTING_SCRIPTED_DRAFTER_H_
