// Two small languages, a target's and a drafter's, whose joint laws can be enumerated: the next token depends on the
// last two.
#ifndef FARSIGHT_SPEC_TESTING_TOY_LANGUAGE_H_
#define FARSIGHT_SPEC_TESTING_TOY_LANGUAGE_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/check.h"
#include "farsight/sampling.h"
#include "sample/sampler.h"

namespace farsight::testing {

class ToyLanguage {
 public:
  static constexpr int32_t kVocab = 5;

  // Logits: a blend of a language that `seed` gives to target and drafter alike and of one that is the drafter's own.
  ToyLanguage(uint32_t seed, double own, const SamplingParams& params) {
    std::mt19937 rng(seed), own_rng(seed + 1000);
    std::normal_distribution<double> normal(0, 1.3);
    SamplerScratch scratch;
    for (int context = 0; context < kVocab * kVocab; ++context) {
      std::vector<float> logits;
      for (int32_t t = 0; t < kVocab; ++t) {
        logits.push_back(static_cast<float>((1 - own) * normal(rng) + own * normal(own_rng)));
      }
      laws_.emplace_back();
      FS_CHECK(Probabilities(logits, params, {}, scratch, &laws_.back()).ok(), "toy logits are finite");
      logits_.push_back(std::move(logits));
    }
  }

  const Distribution& Law(int32_t before, int32_t last) const {
    return laws_[static_cast<size_t>(before * kVocab + last)];
  }
  const std::vector<float>& Logits(int32_t before, int32_t last) const {
    return logits_[static_cast<size_t>(before * kVocab + last)];
  }

  // The law of the `n` tokens after 0 0, indexed with the first token as the highest digit.
  std::vector<double> JointLaw(int n) const {
    std::vector<double> law = {1};
    std::vector<std::pair<int32_t, int32_t>> contexts = {{0, 0}};
    for (int i = 0; i < n; ++i) {
      std::vector<double> next;
      std::vector<std::pair<int32_t, int32_t>> next_contexts;
      for (size_t j = 0; j < law.size(); ++j) {
        std::vector<double> probs(kVocab, 0);
        const Distribution& d = Law(contexts[j].first, contexts[j].second);
        for (size_t k = 0; k < d.ids.size(); ++k) probs[static_cast<size_t>(d.ids[k])] = d.probs[k];
        for (int32_t t = 0; t < kVocab; ++t) {
          next.push_back(law[j] * probs[static_cast<size_t>(t)]);
          next_contexts.emplace_back(contexts[j].second, t);
        }
      }
      law = std::move(next);
      contexts = std::move(next_contexts);
    }
    return law;
  }

 private:
  std::vector<Distribution> laws_;
  std::vector<std::vector<float>> logits_;
};

}  // namespace farsight::testing

#endif  // FARSIGHT_SPEC_TESTING_TOY_LANGUAGE_H_
