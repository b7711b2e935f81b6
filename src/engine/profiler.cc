#include "engine/profiler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "engine/draft_bench.h"
#include "engine/draft_model.h"
#include "engine/engine_plan.h"
#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "sample/sampler.h"
#include "spec/acceptance.h"
#include "spec/drafter.h"

namespace farsight {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<int, 11> kRows = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
constexpr std::array<int, 4> kNodes = {1, 4, 16, 32};
constexpr int kChunk = 512;
constexpr int kCompared = 16;  // rows of a draft that is compared
constexpr int kQualityTokens = 256;
constexpr int kWatched = 16;  // depth to which guesses are compared with what was written

struct Times {
  double median = 0, p90 = 0;  // microseconds
};

template <typename Work>
StatusOr<Times> Measure(int repeat, Work&& work) {
  std::vector<double> us;
  for (int i = 0; i <= repeat; ++i) {
    const auto started = Clock::now();
    FS_RETURN_IF_ERROR(work());
    if (i > 0) us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - started).count());
  }
  std::sort(us.begin(), us.end());
  return Times{us[us.size() / 2], us[us.size() * 9 / 10]};
}

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "processor";
}

std::vector<int32_t> Filled(std::span<const int32_t> text, int64_t length) {
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < length) out.insert(out.end(), text.begin(), text.end());
  out.resize(static_cast<size_t>(length));
  return out;
}

// Approximations worth a look within the class: few rows that share; layers that inherit, every second or two of three
// up to two thirds of the depth, for the last layers choose what an answer is read from; and both.
std::vector<VerifyMode> Approximations(PrecisionClass precision, int layers) {
  std::vector<VerifyMode> modes;
  for (const int group : {kMaxGroup, 4, 8}) {
    for (const int period : {1, 2, 3}) {
      VerifyMode mode;
      mode.group = group;
      mode.shared_list = group < kMaxGroup;
      for (int l = 0; l < layers && period > 1; ++l) {
        mode.refresh.push_back(l % period == 0 || l > layers * 2 / 3 ? 1 : 0);
      }
      if (!mode.is_exact() && Allows(precision, mode)) modes.push_back(std::move(mode));
    }
  }
  return modes;
}

// `tokens` after what the bench holds, in drafts of kCompared rows, exactly and in `mode`; the bench is as before
// afterwards. `right`: of rows whose best token is the next one, exactly and in the mode.
Status Compare(DraftBench* bench, std::span<const int32_t> tokens, const VerifyMode& mode, const AttentionPlan& plan,
               ErrorMeter* meter, std::array<double, 2>* right) {
  const int64_t length = bench->length();
  const auto count = [&](std::span<const int32_t> rows, std::span<const int32_t> after, double* hits) {
    const size_t vocab = bench->logits().size() / rows.size();
    for (size_t i = 0; i < after.size(); ++i) {
      const auto row = bench->logits().subspan(i * vocab, vocab);
      *hits += std::max_element(row.begin(), row.end()) - row.begin() == after[i] ? 1 : 0;
    }
  };
  for (size_t at = 0; at + kCompared < tokens.size(); at += kCompared) {
    const auto rows = tokens.subspan(at, kCompared);
    const auto after = tokens.subspan(at + 1, kCompared);
    VerifyMode exact;
    exact.group = kMaxGroup;
    FS_RETURN_IF_ERROR(bench->Run(rows, &exact, true));
    meter->Exact(bench->batch(), bench->result(), plan);
    count(rows, after, &(*right)[0]);
    bench->Truncate(bench->length() - kCompared);
    FS_RETURN_IF_ERROR(bench->Run(rows, &mode));
    meter->Approximate(bench->result());
    count(rows, after, &(*right)[1]);
  }
  bench->Truncate(length);
  return OkStatus();
}

// How `drafter` would have done on an answer that is known.
class Watch {
 public:
  explicit Watch(DrafterKind kind) { prior_.drafter = kind; }

  StatusOr<AcceptancePrior> Run(Drafter* drafter, uint64_t sequence, std::span<const int32_t> prompt,
                                std::span<const int32_t> answer) {
    FS_RETURN_IF_ERROR(drafter->Begin(sequence));
    FS_RETURN_IF_ERROR(drafter->Observe(sequence, prompt));
    prior_.context = static_cast<int64_t>(prompt.size());
    prior_.self_match = SelfMatchRate(prompt);
    DraftRequest request;
    request.sequence = sequence;
    request.shape = ChainShape(kWatched);
    request.max_tokens = kWatched;
    for (size_t i = 0; i + 1 < answer.size(); ++i) {
      FS_RETURN_IF_ERROR(drafter->Observe(sequence, answer.subspan(i, 1)));
      Draft draft;
      FS_RETURN_IF_ERROR(drafter->Propose(std::span(&request, 1), std::span(&draft, 1)));
      Count(ShadowOutcomeOf(draft.tree, answer.subspan(i + 1), request.shape, kWatched));
    }
    drafter->End(sequence);
    prior_.available_first = first_.Rate();
    prior_.available_later = later_.Rate();
    for (const Ratio& r : depths_) {
      if (r.trials < kEnough && !prior_.rates.empty()) break;  // deeper levels are as the last
      prior_.rates.push_back({r.Rate()});
    }
    return prior_;
  }

 private:
  static constexpr double kEnough = 8;  // trials
  struct Ratio {
    double hits = 0, trials = 0;
    void Add(bool hit) { hits += hit ? 1 : 0, trials += 1; }
    double Rate() const { return (hits + 0.5) / (trials + 1); }
  };

  void Count(const std::vector<LevelOutcome>& levels) {
    for (size_t i = 0; i < levels.size(); ++i) {
      (i == 0 ? first_ : later_).Add(levels[i].children > 0);
      if (levels[i].children > 0) depths_[i].Add(levels[i].hit == 0);
    }
  }

  AcceptancePrior prior_;
  Ratio first_, later_;
  std::array<Ratio, kWatched> depths_;
};

}  // namespace

StatusOr<Fingerprint> ProfileFingerprint(const Model& model, const EngineOptions& options) {
  FS_ASSIGN_OR_RETURN(const PlanAndForecast made, PlanOf(model, options));
  const AttentionPlan& plan = made.plan;
  Fingerprint f;
  f.model = model.impl().loaded->fingerprint() + ", " + AttentionPolicyName(plan.options.policy) + " " +
            (plan.Forecasts() ? "by Forecast " : "") + std::to_string(plan.options.top_k_blocks) + " blocks of " +
            std::to_string(plan.options.block_size) + ", cache " + KvTypeName(options.kv_type);
  f.machine = ProcessorName() + ", " + model.info().backend + ", " + std::to_string(model.threads()) + " threads";
  return f;
}

StatusOr<Profile> MeasureProfile(const std::shared_ptr<Model>& model, const EngineOptions& options,
                                 std::span<const int32_t> text, const ProfilerOptions& how) {
  if (text.empty()) return InvalidArgument("a profile needs a text; at least one token was expected");
  const ModelConfig& config = model->impl().config;
  const int room = std::max(kRows.back(), kQualityTokens) + how.answer + 1;
  std::vector<int64_t> contexts;
  for (const int64_t c : how.contexts) {
    if (c > 0 && c + room <= config.context) contexts.push_back(c);
  }
  std::sort(contexts.begin(), contexts.end());
  if (contexts.empty()) {
    return InvalidArgument("no length to measure at fits the model's context of " + std::to_string(config.context) +
                           " tokens with " + std::to_string(room) + " more");
  }
  const auto say = [&](const std::string& words) {
    if (how.progress) how.progress(words);
  };
  Profile profile;
  FS_ASSIGN_OR_RETURN(profile.of, ProfileFingerprint(*model, options));
  std::vector<std::unique_ptr<Drafter>> drafters;
  FS_ASSIGN_OR_RETURN(drafters.emplace_back(), MakeNgramDrafter({}));
  FS_ASSIGN_OR_RETURN(drafters.emplace_back(), MakeSuffixDrafter({}));
  if (options.draft_model != nullptr) {
    FS_ASSIGN_OR_RETURN(drafters.emplace_back(), MakeModelDrafter(options.draft_model, *model, 1));
  }
  EngineOptions plain = options;
  plain.context_tokens = contexts.back() + room;
  plain.max_sequences = 1;
  plain.drafting = Drafting::kOff;
  plain.draft_model = nullptr;
  RunnerOptions r;
  FS_ASSIGN_OR_RETURN(const PlanAndForecast made, PlanOf(*model, options));
  r.plan = made.plan;
  r.forecast = made.forecast ? &*made.forecast : nullptr;
  const int block = r.plan.options.block_size;
  r.context_tokens = plain.context_tokens;
  r.max_rows = kChunk;
  r.max_seqs = 1;
  r.max_logit_rows = kRows.back();
  r.scores = options.precision != PrecisionClass::kStrict;
  r.num_blocks = static_cast<int32_t>((r.context_tokens + block - 1) / block);
  r.kv_dtype = ToDType(options.kv_type);
  const std::vector<int32_t> filled = Filled(text, contexts.back() + room);
  const auto at = [&](int64_t from, int64_t count) {
    return std::span(filled).subspan(static_cast<size_t>(from), static_cast<size_t>(count));
  };
  {
    FS_ASSIGN_OR_RETURN(const auto runner, model->impl().loaded->NewRunner(r));
    BlockPool pool(r.num_blocks);
    DraftBench bench(runner.get(), &pool, r.plan);
    for (const int64_t context : contexts) {
      say("reading to " + std::to_string(context) + " tokens");
      while (bench.length() < context) {
        FS_RETURN_IF_ERROR(bench.Run(at(bench.length(), std::min<int64_t>(kChunk, context - bench.length())), nullptr));
      }
      say("verifying at " + std::to_string(context) + " tokens");
      for (const int rows : kRows) {
        for (const int group : {kMaxGroup, 1}) {
          VerifyMode mode;
          mode.group = group;
          FS_ASSIGN_OR_RETURN(const Times t, Measure(how.repeat, [&]() -> Status {
                                bench.Truncate(context);
                                return bench.Run(at(context, rows), &mode);
                              }));
          profile.verify.push_back({mode, context, 1, rows, t.median, t.p90, bench.Overlap(rows, r.plan.top_k)});
        }
        if (rows > 1) continue;
        SamplerScratch scratch;
        FS_ASSIGN_OR_RETURN(const Times sampling, Measure(how.repeat, [&]() -> Status {
                              return Sample(bench.logits(), {}, at(0, context), 0, scratch).status();
                            }));
        profile.fixed.push_back({context, 1, sampling.median});
      }
      bench.Truncate(context);
      for (const VerifyMode& mode : Approximations(options.precision, config.layers)) {
        say("comparing " + VerifyModeName(mode) + " at " + std::to_string(context) + " tokens");
        ErrorMeter meter;
        std::array<double, 2> plain_right = {}, copied_right = {};
        FS_RETURN_IF_ERROR(Compare(&bench, at(context, kQualityTokens + 1), mode, r.plan, &meter, &plain_right));
        FS_RETURN_IF_ERROR(Compare(&bench, at(0, std::min<int64_t>(kQualityTokens + 1, context)), mode, r.plan, &meter,
                                   &copied_right));
        const ApproximationError e = meter.error();
        const int64_t compared = std::min<int64_t>(kQualityTokens, context) / kCompared * kCompared;  // whole chunks
        const auto copied = static_cast<double>(compared);
        profile.quality.push_back({mode, context, e.rows, e.flip_rate, e.kl_mean, meter.kl_p99(), e.substitution_p99,
                                   std::max(0.0, (copied_right[0] - copied_right[1]) / std::max(copied, 1.0))});
        for (const int rows : kRows) {
          if (rows == 1) continue;
          FS_ASSIGN_OR_RETURN(const Times t, Measure(how.repeat, [&]() -> Status {
                                bench.Truncate(context);
                                return bench.Run(at(context, rows), &mode);
                              }));
          profile.verify.push_back({mode, context, 1, rows, t.median, t.p90, bench.Overlap(rows, r.plan.top_k)});
        }
        bench.Truncate(context);
      }
    }
  }
  FS_ASSIGN_OR_RETURN(const auto engine, Engine::Create(model, plain));
  uint64_t sequence = 0;
  for (const int64_t context : contexts) {
    say("writing at " + std::to_string(context) + " tokens");
    Request request;
    const auto prompt = at(0, context);
    request.prompt.assign(prompt.begin(), prompt.end());
    request.max_new_tokens = how.answer;
    request.ignore_eos = true;
    FS_ASSIGN_OR_RETURN(const Completion answer, engine->Generate(std::move(request)));
    for (const auto& drafter : drafters) {
      FS_ASSIGN_OR_RETURN(AcceptancePrior prior,
                          Watch(drafter->kind()).Run(drafter.get(), ++sequence, prompt, answer.tokens));
      profile.acceptance.push_back(std::move(prior));
      FS_RETURN_IF_ERROR(drafter->Begin(++sequence));
      FS_RETURN_IF_ERROR(drafter->Observe(sequence, prompt));
      for (const int nodes : kNodes) {
        DraftRequest ask;
        ask.sequence = sequence;
        ask.shape = ChainShape(nodes);
        ask.max_tokens = nodes;
        Draft draft;
        FS_ASSIGN_OR_RETURN(const Times t, Measure(how.repeat, [&]() -> Status {
                              return drafter->Propose(std::span(&ask, 1), std::span(&draft, 1));
                            }));
        profile.draft.push_back({drafter->kind(), context, 1, nodes, t.median, t.p90});
      }
      drafter->End(sequence);
    }
  }
  return profile;
}

}  // namespace farsight
