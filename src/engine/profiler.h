// Measures what the planner of drafts has to know of one model on one machine.
#ifndef FARSIGHT_ENGINE_PROFILER_H_
#define FARSIGHT_ENGINE_PROFILER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "farsight/engine.h"
#include "spec/profile.h"

namespace farsight {

struct ProfilerOptions {
  std::vector<int64_t> contexts = {512, 4096, 16384};  // tokens; those beyond the model's context are left out
  int repeat = 5;                                      // of every time; the profile holds medians
  int answer = 192;                                    // tokens written at each context to see what drafters guess
  // Called before each piece of work with a few words about it.
  std::function<void(const std::string&)> progress = {};
};

// What the times depend on: a profile is only of use where both texts are the same. `options`: attention, type of the
// cache.
StatusOr<Fingerprint> ProfileFingerprint(const Model& model, const EngineOptions& options);

// `text` is what the contexts are filled with, as often as needed: text like that of the later work, for what is
// selected and guessed depends on it. Of `options` those are read that a runner has, draft_model and precision: in
// another class than strict its approximations are compared with the exact steps, over rows of the text and over rows
// that copy its beginning. Everything is measured for one sequence.
StatusOr<Profile> MeasureProfile(const std::shared_ptr<Model>& model, const EngineOptions& options,
                                 std::span<const int32_t> text, const ProfilerOptions& how);

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_PROFILER_H_
