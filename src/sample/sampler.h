// Pure functions from logits to a token. Nothing is remembered between calls: the draw comes from a counter-based
// generator keyed by (seed, position, trial), so a text does not depend on the batch it was generated in, on the order
// of the calls, or on tokens that were drafted and rolled back.
#ifndef FARSIGHT_SAMPLE_SAMPLER_H_
#define FARSIGHT_SAMPLE_SAMPLER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "farsight/sampling.h"
#include "farsight/status.h"

namespace farsight {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Which draw: of the token at absolute position `position`. Plain sampling is trial 0; a speculative verifier that
// needs several independent draws at one position numbers them.
struct DrawKey {
  uint64_t seed = 0;
  uint64_t position = 0;
  uint32_t trial = 0;
};

// In [0, 1), 53 random bits.
double Uniform(const DrawKey& key);

// A law over tokens: ids ascending, probabilities above 0 that sum to 1 up to rounding.
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<double> probs;
};

// Memory that calls reuse, so that a step allocates nothing once warm. One a thread.
struct SamplerScratch {
  struct Candidate {
    int32_t id;
    float logit;
  };
  std::vector<float> logits;
  std::vector<Candidate> candidates;
  std::vector<int32_t> history;
  Distribution law;
};

// logits: [vocab] of one position, at least one; history: the sequence so far, oldest first, prompt included.
// All of these fail with kInternal where the model's logits hold NaN, +infinity or nothing but -infinity, and with
// kInvalidArgument where the bias leaves no token, or a bias or the history names a token outside the vocabulary.
// `params` is taken to have passed Validate().

// The law that a token is drawn from, after every setting; greedy is a law with one token.
Status Probabilities(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> history,
                     SamplerScratch& scratch, Distribution* law);

// The token at `uniform` in [0, 1) of the law's cumulative sum. `law` must not be empty.
int32_t Pick(const Distribution& law, double uniform);

// One token. `position` is the absolute position it will stand at.
StatusOr<int32_t> Sample(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> history,
                         uint64_t position, SamplerScratch& scratch);

// The logprob of `token` and the `top` most probable ones, under the softmax of `logits` as they are.
StatusOr<TokenLogprobs> Logprobs(std::span<const float> logits, int32_t token, int top, SamplerScratch& scratch);

}  // namespace farsight

#endif  // FARSIGHT_SAMPLE_SAMPLER_H_
