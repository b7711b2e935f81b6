#include "engine/speculator.h"

#include "engine/draft_model.h"

namespace farsight {

StatusOr<std::unique_ptr<Speculator>> Speculator::Create(const EngineOptions& options, const Model& target) {
  std::unique_ptr<Speculator> s;
  if (options.drafting == Drafting::kOff) return s;
  s = std::make_unique<Speculator>();
  s->shape_ = ChainShape(options.draft_max);
  switch (options.drafting) {
    case Drafting::kNgram: {
      FS_ASSIGN_OR_RETURN(s->drafter_, MakeNgramDrafter({}));
      break;
    }
    case Drafting::kModel: {
      FS_ASSIGN_OR_RETURN(s->drafter_, MakeModelDrafter(options.draft_model, target, options.max_sequences));
      break;
    }
    default: {
      FS_ASSIGN_OR_RETURN(s->drafter_, MakeSuffixDrafter({}));
      break;
    }
  }
  return s;
}

Status Speculator::Begin(uint64_t sequence, std::span<const int32_t> tokens) {
  FS_RETURN_IF_ERROR(drafter_->Begin(sequence));
  return drafter_->Observe(sequence, tokens);
}

Status Speculator::Propose(std::span<const Ask> asks, std::vector<Draft>* drafts) {
  requests_.clear();
  for (const Ask& a : asks) {
    DraftRequest r;
    r.sequence = a.sequence;
    r.shape = shape_;
    r.max_tokens = a.room;
    requests_.push_back(std::move(r));
  }
  drafts->assign(asks.size(), {});
  return drafter_->Propose(requests_, *drafts);
}

StatusOr<Accepted> Speculator::Judge(const Draft& draft, std::span<const float> logits, const SamplingParams& sampling,
                                     std::span<const int32_t> history, SamplerScratch* scratch) {
  TargetLaws laws(draft.tree, logits, sampling, history, scratch);
  VerifyParams params;
  params.rule = VerifyRule::kMatch;
  params.seed = sampling.seed;
  params.root_position = history.size() - 1;
  return Verify(params, draft, &laws);
}

}  // namespace farsight
