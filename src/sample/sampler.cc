#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace farsight {
namespace {

using Candidate = SamplerScratch::Candidate;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

bool MoreProbable(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The largest logit. Sixteen running maxima, so that the compiler keeps them in vector registers.
StatusOr<float> CheckedMax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  float best[kLanes];
  int bad[kLanes] = {};
  std::fill_n(best, kLanes, kNegInf);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float x = logits[i + j];
      best[j] = x > best[j] ? x : best[j];
      bad[j] |= x != x;
    }
  }
  for (; i < logits.size(); ++i) {
    const float x = logits[i];
    best[0] = x > best[0] ? x : best[0];
    bad[0] |= x != x;
  }
  float max = kNegInf;
  bool nan = false;
  for (size_t j = 0; j < kLanes; ++j) {
    max = std::max(max, best[j]);
    nan = nan || bad[j] != 0;
  }
  const std::string of = " of " + std::to_string(logits.size());
  if (logits.empty()) return Internal("a token was to be chosen from no logits");
  if (nan || max == HUGE_VALF) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return x != x || x == HUGE_VALF; });
    return Internal(std::string("the model gave ") + (nan ? "NaN" : "+infinity") + " as the logit of token " +
                    std::to_string(at - logits.begin()) + of + "; no token can be chosen");
  }
  if (max == kNegInf) return Internal("the model gave -infinity as the logit of every token" + of);
  return max;
}

Status CheckToken(const char* what, int32_t token, size_t vocab) {
  if (token >= 0 && static_cast<size_t>(token) < vocab) return OkStatus();
  return InvalidArgument(std::string(what) + " names token " + std::to_string(token) + ", but the vocabulary has " +
                         std::to_string(vocab) + " tokens");
}

bool HasPenalties(const SamplingParams& p) {
  return p.penalty_window != 0 && (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
}

// Clamped, so that a huge penalty or bias can make a logit neither NaN nor infinite.
float ToLogit(double v) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(v, -kMax, kMax));
}

Status ApplyPenalties(const SamplingParams& p, std::span<const int32_t> history, SamplerScratch& s) {
  if (p.penalty_window > 0 && history.size() > static_cast<size_t>(p.penalty_window)) {
    history = history.last(static_cast<size_t>(p.penalty_window));
  }
  s.history.assign(history.begin(), history.end());
  std::sort(s.history.begin(), s.history.end());
  for (size_t i = 0; i < s.history.size();) {
    const int32_t token = s.history[i];
    size_t end = i;
    while (end < s.history.size() && s.history[end] == token) ++end;
    const auto count = static_cast<double>(end - i);
    i = end;
    FS_RETURN_IF_ERROR(CheckToken("the history", token, s.logits.size()));
    float& logit = s.logits[static_cast<size_t>(token)];
    if (logit == kNegInf) continue;
    double v = logit;
    v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
    const double penalty = ToLogit(count * p.frequency_penalty + p.presence_penalty);
    logit = ToLogit(ToLogit(v) - penalty);
  }
  return OkStatus();
}

Status ApplyBias(const SamplingParams& p, SamplerScratch& s) {
  for (const auto& [token, bias] : p.logit_bias) {
    FS_RETURN_IF_ERROR(CheckToken("a logit bias", token, s.logits.size()));
    float& logit = s.logits[static_cast<size_t>(token)];
    if (logit == kNegInf) continue;
    logit = bias == kNegInf ? kNegInf : ToLogit(static_cast<double>(logit) + static_cast<double>(bias));
  }
  return OkStatus();
}

// The logits after penalties and bias: `logits` itself where there are none. *max is their largest.
Status Adjust(std::span<const float> logits, const SamplingParams& p, std::span<const int32_t> history,
              SamplerScratch& s, std::span<const float>* adjusted, float* max) {
  FS_ASSIGN_OR_RETURN(*max, CheckedMax(logits));
  *adjusted = logits;
  const bool penalties = HasPenalties(p);
  if (!penalties && p.logit_bias.empty()) return OkStatus();
  s.logits.assign(logits.begin(), logits.end());
  if (penalties) FS_RETURN_IF_ERROR(ApplyPenalties(p, history, s));
  FS_RETURN_IF_ERROR(ApplyBias(p, s));
  *adjusted = s.logits;
  *max = *std::max_element(s.logits.begin(), s.logits.end());
  if (*max == kNegInf) return InvalidArgument("the logit bias leaves no token to choose from");
  return OkStatus();
}

int32_t FirstAt(std::span<const float> logits, float value) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

double Weight(float logit, float max) { return std::exp(static_cast<double>(logit) - static_cast<double>(max)); }

// Keeps the fewest most probable candidates whose mass reaches top_p of all. Looks at a growing sorted head, because
// almost always a few hundred tokens hold nearly all of the mass.
void KeepTopP(double top_p, float max, std::vector<Candidate>& c) {
  double total = 0;
  for (const Candidate& x : c) total += Weight(x.logit, max);
  const double wanted = top_p * total;
  double sum = 0;
  size_t sorted = 0;
  while (sorted < c.size()) {
    const size_t head = std::min(c.size(), std::max<size_t>(64, sorted * 4));
    const auto begin = c.begin() + static_cast<std::ptrdiff_t>(sorted);
    const auto end = c.begin() + static_cast<std::ptrdiff_t>(head);
    if (head < c.size()) std::nth_element(begin, end, c.end(), MoreProbable);
    std::sort(begin, end, MoreProbable);
    for (; sorted < head; ++sorted) {
      sum += Weight(c[sorted].logit, max);
      if (sum >= wanted) {
        c.resize(sorted + 1);
        return;
      }
    }
  }
}

// The k most probable tokens of at least min_logit, or all of those if k is 0; true when they left the order of ids.
// A sieve: whenever enough candidates have come together the k best of them stay, and their worst is the bar for those
// to come. A later token that only equals the bar has a higher id, so it rightly loses.
bool KeepTopK(std::span<const float> logits, double min_logit, int64_t k, std::vector<Candidate>& c) {
  c.clear();
  const bool all = k <= 0 || static_cast<uint64_t>(k) >= logits.size();
  const size_t keep = all ? logits.size() : static_cast<size_t>(k);
  const size_t full = all ? logits.size() + 1 : 2 * keep + 64;
  c.reserve(std::min(full, logits.size()));
  float bar = kNegInf;
  bool moved = false;
  const auto shrink = [&] {
    const auto end = c.begin() + static_cast<std::ptrdiff_t>(keep);
    std::nth_element(c.begin(), end - 1, c.end(), MoreProbable);
    c.resize(keep);
    bar = c.back().logit;
    moved = true;
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > bar) || static_cast<double>(logits[i]) < min_logit) continue;
    c.push_back({static_cast<int32_t>(i), logits[i]});
    if (c.size() == full) shrink();
  }
  if (c.size() > keep) shrink();
  return moved;
}

// The candidates that survive top-k, top-p and min-p, ascending by id: the order of the draw must not depend on how
// the selection algorithm left them.
void Truncate(std::span<const float> logits, const SamplingParams& p, float max, std::vector<Candidate>& c) {
  // min-p compares with the most probable token, which top-k and top-p never remove: it may run first, and cheaply.
  // It does, but only when top-p, whose mass it would change, is off.
  const double min_logit =
      p.min_p > 0 ? static_cast<double>(max) + std::log(p.min_p) : -std::numeric_limits<double>::infinity();
  const bool top_p = p.top_p < 1;
  bool moved = KeepTopK(logits, top_p ? -std::numeric_limits<double>::infinity() : min_logit, p.top_k, c);
  if (top_p) {
    KeepTopP(p.top_p, max, c);
    std::erase_if(c, [&](const Candidate& x) { return static_cast<double>(x.logit) < min_logit; });
    moved = true;
  }
  if (moved) std::sort(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

double Uniform(const DrawKey& key) {
  const auto bits =
      Philox({static_cast<uint32_t>(key.position), static_cast<uint32_t>(key.position >> 32), key.trial, 0},
             {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const uint64_t x = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
  return static_cast<double>(x) * 0x1p-53;
}

Status Probabilities(std::span<const float> logits, const SamplingParams& p, std::span<const int32_t> history,
                     SamplerScratch& s, Distribution* law) {
  std::span<const float> adjusted;
  float max = 0;
  FS_RETURN_IF_ERROR(Adjust(logits, p, history, s, &adjusted, &max));
  law->ids.clear();
  law->probs.clear();
  if (p.temperature < kGreedyTemperature) {
    law->ids.push_back(FirstAt(adjusted, max));
    law->probs.push_back(1);
    return OkStatus();
  }
  Truncate(adjusted, p, max, s.candidates);
  double total = 0;
  for (const Candidate& c : s.candidates) {
    // The maximum is subtracted before the division: no temperature can overflow, and the sum is at least 1.
    const double w = std::exp((static_cast<double>(c.logit) - static_cast<double>(max)) / p.temperature);
    if (w == 0) continue;
    law->ids.push_back(c.id);
    law->probs.push_back(w);
    total += w;
  }
  for (double& w : law->probs) w /= total;
  return OkStatus();
}

int32_t Pick(const Distribution& law, double uniform) {
  double sum = 0;
  for (size_t i = 0; i < law.ids.size(); ++i) {
    sum += law.probs[i];
    if (uniform < sum) return law.ids[i];
  }
  return law.ids.back();  // the sum fell short of 1 by rounding
}

StatusOr<int32_t> Sample(std::span<const float> logits, const SamplingParams& p, std::span<const int32_t> history,
                         uint64_t position, SamplerScratch& s) {
  FS_RETURN_IF_ERROR(Probabilities(logits, p, history, s, &s.law));
  if (s.law.ids.size() == 1) return s.law.ids[0];
  return Pick(s.law, Uniform({p.seed, position, 0}));
}

StatusOr<TokenLogprobs> Logprobs(std::span<const float> logits, int32_t token, int top, SamplerScratch& s) {
  FS_ASSIGN_OR_RETURN(const float max, CheckedMax(logits));
  FS_RETURN_IF_ERROR(CheckToken("the request for logprobs", token, logits.size()));
  double total = 0;
  for (float x : logits) total += Weight(x, max);
  const double log_total = static_cast<double>(max) + std::log(total);
  const auto logprob = [&](float x) { return static_cast<float>(static_cast<double>(x) - log_total); };
  TokenLogprobs result;
  result.token = token;
  result.logprob = logprob(logits[static_cast<size_t>(token)]);
  const size_t n = std::min(logits.size(), static_cast<size_t>(std::max(top, 0)));
  if (n == 0) return result;
  auto& c = s.candidates;
  c.clear();
  for (size_t i = 0; i < logits.size(); ++i) c.push_back({static_cast<int32_t>(i), logits[i]});
  std::partial_sort(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(n), c.end(), MoreProbable);
  for (size_t i = 0; i < n; ++i) result.top.push_back({c[i].id, logprob(c[i].logit)});
  return result;
}

}  // namespace farsight
