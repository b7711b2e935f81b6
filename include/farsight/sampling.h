// How a token is chosen from logits.
//
// The chain, in this order (that of llama.cpp's defaults, so that flags mean the same there and here; only the logit
// bias comes after the penalties instead of before, so that a bias is exactly what is added):
//   1. repetition penalty, then frequency and presence penalty, over the last `penalty_window` tokens
//   2. logit bias
//   3. top-k   4. top-p   5. min-p   (each over the renormalised survivors of the one before, at temperature 1)
//   6. temperature, then one draw
// Truncating before the temperature keeps the candidate set independent of it: a hot temperature flattens the good
// candidates instead of letting bad ones in.
#ifndef FARSIGHT_SAMPLING_H_
#define FARSIGHT_SAMPLING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "farsight/status.h"

namespace farsight {

// Temperatures below this choose the most probable token (the lowest id among equals) and draw nothing.
inline constexpr double kGreedyTemperature = 1e-5;
inline constexpr int kMaxTopLogprobs = 128;

struct SamplingParams {
  double temperature = 0;  // 0 or below kGreedyTemperature: greedy; any finite value from 0 up
  int64_t top_k = 0;       // keep the k most probable; 0: off; more than the vocabulary is the vocabulary
  double top_p = 1;        // keep the fewest tokens whose probabilities sum to this; 1: off; 0: the most probable alone
  double min_p = 0;        // keep tokens at least this times as probable as the most probable; 0: off
  double repetition_penalty = 1;  // > 0; a seen token's logit is divided (or, if negative, multiplied) by it; 1: off
  double presence_penalty = 0;    // subtracted once from a seen token's logit
  double frequency_penalty = 0;   // subtracted for each time the token was seen
  int64_t penalty_window = 64;    // tokens of history (prompt included) that the penalties see; 0: none; -1: all
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, what is added: finite, or -infinity to ban
  uint64_t seed = 0;                                       // a draw depends on the seed, the position and nothing else
  int top_logprobs = -1;  // -1: no logprobs; 0: of the chosen token; N: and of the N most probable
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;  // natural logarithm; -infinity for a token the model itself rules out
};

// Log-probabilities under the model's own distribution: the softmax of its logits before penalties, bias, truncation
// and temperature. `top` is most probable first, ties by lower id, and need not contain the chosen token.
struct TokenLogprobs {
  int32_t token = -1;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

// kInvalidArgument with one sentence about the first value that can never work.
Status Validate(const SamplingParams& params);

}  // namespace farsight

#endif  // FARSIGHT_SAMPLING_H_
