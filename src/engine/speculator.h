// Drafts for the decoding sequences of a step, and the verdict on them. The engine feeds the drafts to the one forward
// as further rows of their sequences.
#ifndef FARSIGHT_ENGINE_SPECULATOR_H_
#define FARSIGHT_ENGINE_SPECULATOR_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "farsight/engine.h"
#include "spec/drafter.h"
#include "spec/planner.h"
#include "spec/verify.h"

namespace farsight {

// `of` with the way of drafting that `drafting` says; kInvalidArgument for drafts of more than `room` tokens.
StatusOr<EngineOptions> OtherDrafting(const EngineOptions& of, const EngineOptions& drafting, int room);

// Blocks that the forks of a sequence have to themselves at most while a draft of the shape runs.
int ForkBlocks(const TreeShape& shape, int block_tokens);

class Speculator {
 public:
  // nullptr where options.drafting is kOff. kAuto takes trees whose forks have at most `fork_blocks` to themselves.
  static StatusOr<std::unique_ptr<Speculator>> Create(const EngineOptions& options, const Model& target,
                                                      int64_t fork_blocks);

  // A sequence that starts to decode, with all of its tokens so far.
  Status Begin(uint64_t sequence, std::span<const int32_t> tokens);
  void End(uint64_t sequence);
  Status Observe(uint64_t sequence, std::span<const int32_t> tokens);

  struct Ask {
    uint64_t sequence = 0;
    int room = 0;        // tokens a draft may have
    int64_t length = 0;  // of the sequence
  };
  // Drafts for the sequences, [asks]; the root alone, or nothing at all, where nothing is guessed. `pure`: the step
  // will do nothing but decode these sequences, so that its time tells what drafting costs; others draft nothing on
  // kAuto.
  Status Propose(std::span<const Ask> asks, bool pure, std::vector<Draft>* drafts);

  // How the rows of the step's drafts run; nullptr: there are none.
  const VerifyMode* mode() const { return mode_; }
  // Is this one of the steps that also run exactly, to measure the error? Asked once a step with an approximate mode.
  bool Measures() { return measured_++ % kMeasureEvery == 0; }

  // What the target says of a draft whose rows have these logits [nodes, vocab]. Emits what plain decoding would.
  StatusOr<Accepted> Judge(const Draft& draft, std::span<const float> logits, const SamplingParams& sampling,
                           std::span<const int32_t> history, SamplerScratch* scratch);

  // How the step of the last Propose ended, for kAuto: tokens that a sequence got, then the time of the whole step.
  void Record(uint64_t sequence, const Accepted& accepted);
  void FinishStep(double forward_us, double step_us);

  // Strategies by steps, those of most steps first.
  std::vector<StrategyUse> Used() const;
  // Why options.profile is not used; empty where it is, or none was named.
  // What kAuto chooses from.
  std::span<const Strategy> menu() const {
    return planner_ ? std::span<const Strategy>(planner_->menu()) : std::span<const Strategy>();
  }
  const std::string& profile_fault() const { return profile_fault_; }

 private:
  // What an idle lookup would have drafted, and the tokens that came since: its worth is learnt for nothing.
  struct Shadow {
    TokenTree tree;  // empty: none at hand
    int match = 0;   // Draft::match
    int room = 0;    // tokens it might have had
    std::vector<int32_t> emitted;
  };

  Drafter* Of(DrafterKind kind) { return drafters_[static_cast<size_t>(kind)].get(); }
  Status Rehearse(uint64_t sequence, std::span<const int32_t> tokens, Drafter* drafter);
  Status CastShadows(std::span<const Ask> asks, DrafterKind used);
  void FollowShadows(uint64_t sequence, std::span<const int32_t> tokens);

  std::array<std::unique_ptr<Drafter>, kNumDrafterKinds> drafters_;
  std::optional<Planner> planner_;  // on kAuto
  std::string profile_fault_;
  Strategy fixed_;  // otherwise
  std::vector<DraftRequest> requests_;

  static constexpr int64_t kMeasureEvery = 32;
  int64_t measured_ = 0;
  const VerifyMode* mode_ = nullptr;  // of the step at hand

  // The step at hand, on kAuto.
  bool planned_ = false;
  StepReport report_;
  std::vector<uint64_t> sequences_;
  std::vector<TokenTree> trees_;
  std::vector<Draft> uncut_;  // chains of lookups as they were proposed; no tree: not one of these

  // On kAuto, by sequence and drafter.
  std::map<uint64_t, std::array<Shadow, kNumDrafterKinds>> shadows_;
  double shadow_us_ = 0;       // of the step at hand
  double shadow_left_us_ = 0;  // that shadows may take still
  int64_t steps_ = 0;          // of a fixed strategy
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_SPECULATOR_H_
