// Drafts for the decoding sequences of a step, and the verdict on them. The engine feeds the drafts to the one forward
// as further rows of their sequences.
#ifndef FARSIGHT_ENGINE_SPECULATOR_H_
#define FARSIGHT_ENGINE_SPECULATOR_H_

#include <map>
#include <memory>
#include <span>

#include "farsight/engine.h"
#include "spec/drafter.h"
#include "spec/verify.h"

namespace farsight {

class Speculator {
 public:
  // nullptr where options.drafting is kOff.
  static StatusOr<std::unique_ptr<Speculator>> Create(const EngineOptions& options, const Model& target);

  // A sequence that starts to decode, with all of its tokens so far.
  Status Begin(uint64_t sequence, std::span<const int32_t> tokens);
  void End(uint64_t sequence) { drafter_->End(sequence); }
  Status Observe(uint64_t sequence, std::span<const int32_t> tokens) { return drafter_->Observe(sequence, tokens); }

  // Drafts of at most room[i] tokens for sequence[i]; an empty one where nothing is guessed.
  struct Ask {
    uint64_t sequence = 0;
    int room = 0;
  };
  Status Propose(std::span<const Ask> asks, std::vector<Draft>* drafts);

  // What the target says of a draft whose rows have these logits [nodes, vocab]. Emits what plain decoding would.
  StatusOr<Accepted> Judge(const Draft& draft, std::span<const float> logits, const SamplingParams& sampling,
                           std::span<const int32_t> history, SamplerScratch* scratch);

 private:
  std::unique_ptr<Drafter> drafter_;
  TreeShape shape_;
  std::vector<DraftRequest> requests_;
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_SPECULATOR_H_
