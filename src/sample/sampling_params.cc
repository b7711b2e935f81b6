#include <cmath>
#include <string>

#include "farsight/sampling.h"

namespace farsight {
namespace {

std::string Number(double v) { return std::isfinite(v) ? std::to_string(v) : std::isnan(v) ? "NaN" : "infinity"; }

Status CheckUnit(const char* name, double v) {
  if (v >= 0 && v <= 1) return OkStatus();  // false for NaN
  return InvalidArgument(std::string(name) + " must be between 0 and 1, not " + Number(v));
}

Status CheckFinite(const char* name, double v) {
  if (std::isfinite(v)) return OkStatus();
  return InvalidArgument(std::string("the ") + name + " penalty must be a finite number, not " + Number(v));
}

}  // namespace

Status Validate(const SamplingParams& p) {
  if (!std::isfinite(p.temperature) || p.temperature < 0) {
    return InvalidArgument("the temperature must be a finite number from 0 up, not " + Number(p.temperature));
  }
  if (p.top_k < 0) return InvalidArgument("top-k must be 0 (off) or more, not " + std::to_string(p.top_k));
  FS_RETURN_IF_ERROR(CheckUnit("top-p", p.top_p));
  FS_RETURN_IF_ERROR(CheckUnit("min-p", p.min_p));
  if (!std::isfinite(p.repetition_penalty) || p.repetition_penalty <= 0) {
    return InvalidArgument("the repetition penalty must be a finite number above 0, not " +
                           Number(p.repetition_penalty));
  }
  FS_RETURN_IF_ERROR(CheckFinite("presence", p.presence_penalty));
  FS_RETURN_IF_ERROR(CheckFinite("frequency", p.frequency_penalty));
  if (p.penalty_window < -1) {
    return InvalidArgument("the penalty window must be -1 (all), 0 (none) or a number of tokens, not " +
                           std::to_string(p.penalty_window));
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0) return InvalidArgument("a logit bias names token " + std::to_string(token) + ", below 0");
    if (std::isnan(bias) || bias == HUGE_VALF) {
      return InvalidArgument("the logit bias of token " + std::to_string(token) +
                             " must be a finite number or -infinity, not " + Number(bias));
    }
  }
  if (p.top_logprobs < -1 || p.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument("top logprobs must be between -1 (none) and " + std::to_string(kMaxTopLogprobs) + ", not " +
                           std::to_string(p.top_logprobs));
  }
  return OkStatus();
}

}  // namespace farsight
