// farsight eval: perplexity with its error, needle recall by depth and length, and how far a policy is from dense.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

StatusOr<EngineOptions> OptionsFor(const EvalArgs& args, const std::string& policy, int64_t context) {
  AttentionArgs attention = args.attention;
  attention.policy = policy;
  EngineOptions o;
  FS_ASSIGN_OR_RETURN(o.attention, ToOptions(attention));
  FS_ASSIGN_OR_RETURN(o.kv_type, ParseKvType(args.kv_type));
  o.context_tokens = context;
  return o;
}

// Log of the softmax's sum.
double LogSum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return top + std::log(sum);
}

struct Interval {
  double low, high;
};
// Wilson's 95 % interval of a share.
Interval Wilson(int hits, int n) {
  if (n == 0) return {0, 1};
  const double z = 1.96;
  const double p = static_cast<double>(hits) / n;
  const double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4.0 * n * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

// --- perplexity ---------------------------------------------------------------------------------------------------

int Perplexity(const EvalArgs& args, const std::shared_ptr<Model>& model, const std::vector<int32_t>& tokens) {
  const int64_t context = args.context > 0 ? args.context : std::min<int64_t>(model->info().context, 2048);
  const int64_t prefix = std::min(args.prefix, context - 2);
  Json out = Json::array();
  for (const auto& policy : args.policies) {
    auto options = OptionsFor(args, policy, context);
    if (!options.ok()) return Fail(options.status());
    auto engine = Engine::Create(model, *options);
    if (!engine.ok()) return Fail(engine.status());
    double sum = 0;
    double squares = 0;
    int64_t n = 0;
    ProgressBar bar("scoring " + policy);
    for (size_t start = 0; start + 2 <= tokens.size() && n < args.tokens; start += static_cast<size_t>(context)) {
      const size_t end = std::min(tokens.size(), start + static_cast<size_t>(context));
      Request r;
      r.prompt.assign(tokens.begin() + static_cast<std::ptrdiff_t>(start),
                      tokens.begin() + static_cast<std::ptrdiff_t>(end));
      r.max_new_tokens = 0;
      if (args.prefix > 0) r.decode_from = prefix;
      const std::vector<int32_t> chunk = r.prompt;
      r.on_logits = [&](int64_t position, std::span<const float> logits) {
        if (position < prefix || position + 1 >= static_cast<int64_t>(chunk.size())) return;
        const double nll = LogSum(logits) - logits[static_cast<size_t>(chunk[static_cast<size_t>(position) + 1])];
        sum += nll;
        squares += nll * nll;
        ++n;
        bar.Update(n, args.tokens);
      };
      auto c = (*engine)->Generate(std::move(r));
      if (!c.ok()) return Fail(c.status());
      if (Interrupted()) return kExitInterrupted;
    }
    bar.Clear();
    if (n == 0) return Fail(InvalidArgument("the text is too short to score: two tokens at least were expected"));
    const double mean = sum / static_cast<double>(n);
    const double error =
        std::sqrt(std::max(0.0, squares / static_cast<double>(n) - mean * mean) / static_cast<double>(n));
    if (args.json) {
      out.push_back({{"attention", policy},
                     {"tokens", n},
                     {"context", context},
                     {"prefix", prefix},
                     {"perplexity", std::exp(mean)},
                     {"error", std::exp(mean) * error},
                     {"nll", mean}});
    } else {
      fmt::print("{:<10} perplexity {:.4f} +/- {:.4f} over {} tokens (context {})\n", policy, std::exp(mean),
                 std::exp(mean) * error, n, context);
    }
  }
  if (args.json) std::cout << out.dump(2) << "\n";
  return kExitOk;
}

// --- compare ------------------------------------------------------------------------------------------------------

// Logits of rows [from, from + count) of `tokens`, as the engine's policy computes them after a dense prefix.
StatusOr<std::vector<float>> TailLogits(Engine& engine, const std::vector<int32_t>& tokens, int64_t from) {
  std::vector<float> out;
  Request r;
  r.prompt = tokens;
  r.max_new_tokens = 0;
  r.decode_from = from;
  r.on_logits = [&](int64_t position, std::span<const float> logits) {
    if (position >= from) out.insert(out.end(), logits.begin(), logits.end());
  };
  FS_ASSIGN_OR_RETURN(const Completion c, engine.Generate(std::move(r)));
  (void)c;
  return out;
}

int Compare(const EvalArgs& args, const std::shared_ptr<Model>& model, std::vector<int32_t> tokens) {
  const int64_t vocab = model->info().vocab;
  const int64_t prefix = args.prefix;
  const auto scored = std::min<int64_t>(args.tokens, static_cast<int64_t>(tokens.size()) - prefix);
  if (scored < 1)
    return Fail(
        InvalidArgument(fmt::format("the text has {} tokens, not more than the prefix of {}", tokens.size(), prefix)));
  tokens.resize(static_cast<size_t>(prefix + scored));
  Json out = Json::array();
  std::vector<float> dense;
  std::vector<std::string> policies = {"dense"};
  for (const auto& p : args.policies) {
    if (p != "dense") policies.push_back(p);
  }
  for (const auto& policy : policies) {
    auto options = OptionsFor(args, policy, static_cast<int64_t>(tokens.size()));
    if (!options.ok()) return Fail(options.status());
    auto engine = Engine::Create(model, *options);
    if (!engine.ok()) return Fail(engine.status());
    auto logits = TailLogits(**engine, tokens, prefix);
    if (!logits.ok()) return Fail(logits.status());
    if (policy == "dense") {
      dense = std::move(*logits);
      continue;
    }
    double sum = 0;
    std::vector<double> each;
    int64_t same = 0;
    for (int64_t i = 0; i < scored; ++i) {
      const std::span<const float> a(dense.data() + i * vocab, static_cast<size_t>(vocab));
      const std::span<const float> b(logits->data() + i * vocab, static_cast<size_t>(vocab));
      const double la = LogSum(a);
      const double lb = LogSum(b);
      double kl = 0;
      for (size_t t = 0; t < a.size(); ++t) kl += std::exp(a[t] - la) * ((a[t] - la) - (b[t] - lb));
      each.push_back(kl);
      sum += kl;
      same +=
          std::max_element(a.begin(), a.end()) - a.begin() == std::max_element(b.begin(), b.end()) - b.begin() ? 1 : 0;
    }
    std::sort(each.begin(), each.end());
    const double mean = sum / static_cast<double>(scored);
    const double p99 = each[static_cast<size_t>(0.99 * static_cast<double>(each.size() - 1))];
    const double top1 = 100.0 * static_cast<double>(same) / static_cast<double>(scored);
    if (args.json) {
      out.push_back({{"attention", policy},
                     {"tokens", scored},
                     {"prefix", prefix},
                     {"kl_mean", mean},
                     {"kl_p99", p99},
                     {"top1", top1}});
    } else {
      fmt::print("{:<10} KL to dense {:.5f} (p99 {:.4f}), same top token {:.2f} %, over {} tokens after {}\n", policy,
                 mean, p99, top1, scored, prefix);
    }
  }
  if (args.json) std::cout << out.dump(2) << "\n";
  return kExitOk;
}

// --- needle -------------------------------------------------------------------------------------------------------

uint64_t Next(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

struct Needle {
  std::string name, value;
};
Needle MakeNeedle(uint64_t* rng) {
  static constexpr const char* kColours[] = {"red", "silver", "green", "amber", "violet", "ivory", "scarlet", "golden"};
  static constexpr const char* kThings[] = {"harbour", "lantern", "orchard", "compass",
                                            "glacier", "library", "meadow",  "anchor"};
  Needle n;
  n.name = std::string(kColours[Next(rng) % 8]) + " " + kThings[Next(rng) % 8];
  for (int i = 0; i < 7; ++i) n.value.push_back(static_cast<char>('0' + (i == 0 ? 1 + Next(rng) % 9 : Next(rng) % 10)));
  return n;
}

// A prompt of about `length` tokens: hay, the needle at `depth` (0..1), and the question.
StatusOr<std::vector<int32_t>> NeedlePrompt(const Model& model, const std::vector<int32_t>& hay, const Needle& needle,
                                            int length, double depth, uint64_t start) {
  const std::string fact = " The secret number of the " + needle.name + " is " + needle.value + ". ";
  const std::string question = "\n\nWhat is the secret number of the " + needle.name + "? Answer with the number.";
  const int overhead = 100;  // fact, question and template
  const auto room = static_cast<size_t>(std::max(16, length - overhead));
  std::vector<int32_t> part;
  for (size_t i = 0; i < room; ++i) part.push_back(hay[(start + i) % hay.size()]);
  const auto cut = static_cast<size_t>(depth * static_cast<double>(room));
  const std::string text =
      model.Detokenize(std::span(part).first(cut)) + fact + model.Detokenize(std::span(part).subspan(cut)) + question;
  if (!model.info().has_chat_template)
    return model.Tokenize(text + "\nThe secret number of the " + needle.name + " is");
  const ChatMessage message{"user", text};
  return model.ApplyChatTemplate(std::span(&message, 1));
}

int NeedleTable(const EvalArgs& args, const std::shared_ptr<Model>& model, const std::vector<int32_t>& hay) {
  Json out = Json::array();
  const int longest = *std::max_element(args.lengths.begin(), args.lengths.end()) + 128;
  for (const auto& policy : args.policies) {
    auto options = OptionsFor(args, policy, longest);
    if (!options.ok()) return Fail(options.status());
    auto engine = Engine::Create(model, *options);
    if (!engine.ok()) return Fail(engine.status());
    for (const int length : args.lengths) {
      int total = 0;
      std::vector<int> hits(static_cast<size_t>(args.depths), 0);
      ProgressBar bar(fmt::format("{} {}", policy, length));
      int done = 0;
      for (int d = 0; d < args.depths; ++d) {
        const double depth = (d + 0.5) / args.depths;
        for (int s = 0; s < args.samples; ++s) {
          // The same needles for every policy.
          uint64_t rng =
              (args.seed * 1000003 + static_cast<uint64_t>(length)) * 1000003 + static_cast<uint64_t>(d * 1000 + s) + 1;
          for (int i = 0; i < 8; ++i) (void)Next(&rng);
          const Needle needle = MakeNeedle(&rng);
          auto prompt = NeedlePrompt(*model, hay, needle, length, depth, Next(&rng) % hay.size());
          if (!prompt.ok()) return Fail(prompt.status());
          Request r;
          r.prompt = std::move(*prompt);
          r.max_new_tokens = 24;
          (*engine)->DropCaches();
          auto c = (*engine)->Generate(std::move(r));
          if (!c.ok()) return Fail(c.status());
          if (Interrupted()) return kExitInterrupted;
          const bool hit = c->text.find(needle.value) != std::string::npos;
          hits[static_cast<size_t>(d)] += hit ? 1 : 0;
          total += hit ? 1 : 0;
          bar.Update(++done, int64_t{args.depths} * args.samples);
        }
      }
      bar.Clear();
      const int n = args.depths * args.samples;
      const Interval ci = Wilson(total, n);
      if (args.json) {
        out.push_back({{"attention", policy},
                       {"length", length},
                       {"hits", total},
                       {"n", n},
                       {"low", ci.low},
                       {"high", ci.high},
                       {"hits_by_depth", hits},
                       {"samples", args.samples}});
      } else {
        std::string cells;
        for (const int h : hits) cells += fmt::format(" {:>3.0f}", 100.0 * h / args.samples);
        fmt::print("{:<10} {:>6} tokens: {:>5.1f} % [{:.1f}, {:.1f}] of {}; by depth{}\n", policy, length,
                   100.0 * total / n, 100 * ci.low, 100 * ci.high, n, cells);
        std::fflush(stdout);
      }
    }
  }
  if (args.json) std::cout << out.dump(2) << "\n";
  return kExitOk;
}

}  // namespace

int Eval(const EvalArgs& args) {
  CatchInterrupt();
  if (args.task != "perplexity" && args.task != "needle" && args.task != "compare") {
    (void)Fail(InvalidArgument("unknown evaluation '" + args.task + "': expected perplexity, needle or compare"));
    return kExitUsage;
  }
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  auto text = ReadText(args.file);
  if (!text.ok()) return Fail(text.status());
  const auto tokens = (*model)->Tokenize(*text, false, false);
  if (tokens.empty()) return Fail(InvalidArgument("'" + args.file + "' holds no text"));
  if (args.task == "perplexity") return Perplexity(args, *model, tokens);
  if (args.task == "compare") return Compare(args, *model, tokens);
  return NeedleTable(args, *model, tokens);
}

}  // namespace farsight::cli
