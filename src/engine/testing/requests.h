// Requests that tests of engines make, and everything that reading a prompt tells.
#ifndef FARSIGHT_ENGINE_TESTING_REQUESTS_H_
#define FARSIGHT_ENGINE_TESTING_REQUESTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "farsight/engine.h"

namespace farsight::testing {

// Random tokens of the tiny models, none of them a control token.
inline std::vector<int32_t> Prompt(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(rng() % 256));
  return out;
}

// For exactly n tokens.
inline Request Ask(std::vector<int32_t> prompt, int64_t n) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_new_tokens = n;
  r.ignore_eos = true;
  return r;
}

// Logits by position, and the block lists of the KV heads by position and layer.
struct PrefillOutcome {
  std::map<int64_t, std::vector<float>> logits;
  std::map<std::pair<int64_t, int>, std::vector<std::vector<int32_t>>> blocks;
};

// Every row counts as decode, so that its lists are told.
inline PrefillOutcome Prefill(Engine& engine, const std::vector<int32_t>& tokens) {
  PrefillOutcome out;
  Request r = Ask(tokens, 0);
  r.decode_from = 0;
  r.on_logits = [&](int64_t p, std::span<const float> l) { out.logits[p].assign(l.begin(), l.end()); };
  r.on_blocks = [&](const BlockTrace& t) {
    auto& heads = out.blocks[{t.position, t.layer}];
    for (const auto& ids : t.blocks) heads.emplace_back(ids.begin(), ids.end());
  };
  const auto done = engine.Generate(std::move(r));
  EXPECT_TRUE(done.ok()) << done.status().message();
  return out;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_ENGINE_TESTING_REQUESTS_H_
