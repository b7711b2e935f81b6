// farsight eval: what a policy costs in answers and in likelihood. The tasks are in src/eval; here they get their
// arguments, a progress bar and a printer.
#include "cli/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "eval/likelihood.h"
#include "eval/report.h"
#include "eval/retrieval.h"

namespace farsight::cli {
namespace {

using eval::Table;

// What the flags alone decide.
struct Flags {
  std::vector<eval::Variant> variants;
  eval::Format format;
  EngineOptions engine;  // without context and policy
};

// Everything a task needs, checked.
struct Setting : Flags {
  const EvalArgs& args;
  std::shared_ptr<Model> model;
  eval::Haystack hay;
};

StatusOr<std::vector<eval::Variant>> VariantsOf(const EvalArgs& args) {
  AttentionArgs base = args.attention;
  base.policy = "dense";  // each policy's name replaces it
  FS_ASSIGN_OR_RETURN(const AttentionOptions options, ToOptions(base));
  std::vector<AttentionPolicy> policies;
  for (const auto& name : args.policies) {
    FS_ASSIGN_OR_RETURN(const AttentionPolicy policy, ParseAttentionPolicy(name));
    policies.push_back(policy);
  }
  return eval::MakeVariants(policies, args.top_k_blocks, args.sketch_bits, options);
}

StatusOr<Flags> ParseFlags(const EvalArgs& args) {
  FS_ASSIGN_OR_RETURN(const eval::Format format, eval::ParseFormat(args.json ? "json" : args.output));
  FS_ASSIGN_OR_RETURN(std::vector<eval::Variant> variants, VariantsOf(args));
  EngineOptions engine;
  FS_ASSIGN_OR_RETURN(engine.kv_type, ParseKvType(args.kv_type));
  engine.prefill_chunk = args.prefill_chunk;
  if (!args.form.empty() && args.form != "question" && args.form != "completion")
    return InvalidArgument("unknown form '" + args.form + "': expected completion or question");
  return Flags{std::move(variants), format, std::move(engine)};
}

StatusOr<Setting> Prepare(const EvalArgs& args, Flags flags) {
  std::vector<std::string> texts;
  for (const auto& file : args.files) {
    FS_ASSIGN_OR_RETURN(std::string text, ReadText(file));
    if (text.empty()) return InvalidArgument("'" + file + "' holds no text");
    texts.push_back(std::move(text));
  }
  if (texts.empty()) texts.emplace_back(eval::BuiltInText());
  FS_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, LoadModel(args.model));
  FS_ASSIGN_OR_RETURN(eval::Haystack hay, eval::Haystack::Make(*model, texts));
  const std::string sparda = AttentionPolicyName(AttentionPolicy::kSparda);
  if (std::find(args.policies.begin(), args.policies.end(), sparda) != args.policies.end()) {
    AttentionArgs attention = args.attention;
    attention.policy = sparda;
    flags.engine.forecast = FindForecast(attention, *model);
  }
  return Setting{std::move(flags), args, std::move(model), std::move(hay)};
}

std::string ModelName(const Setting& s) {
  std::string name = s.model->info().path;
  if (const size_t slash = name.rfind('/'); slash != std::string::npos) name.erase(0, slash + 1);
  if (name.size() > 5 && name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

Status Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    return Unavailable("the result could not be written to standard output");
  return OkStatus();
}

StatusOr<eval::PolicyEngines> Engines(const Setting& s, std::vector<eval::Variant> variants, int64_t context) {
  EngineOptions options = s.engine;
  options.context_tokens = context;
  return eval::PolicyEngines::Make(s.model, std::move(variants), options);
}

// --- retrieval ----------------------------------------------------------------------------------------------------

StatusOr<eval::Grid> GridOf(const Setting& s, eval::Task task) {
  const EvalArgs& a = s.args;
  eval::Grid grid;
  grid.task = task;
  grid.samples = a.samples;
  grid.seed = a.seed;
  grid.lengths = task == eval::Task::kCopy ? std::vector<int64_t>{0} : a.lengths;
  switch (task) {
    case eval::Task::kNeedle:
      grid.axis = a.at.empty() ? eval::Depths(a.depths) : a.at;
      break;
    case eval::Task::kMultiKey:
      grid.axis = a.keys;
      break;
    case eval::Task::kMultiNeedle:
      grid.axis = a.needles;
      break;
    case eval::Task::kVarTrack:
      grid.axis = a.hops;
      break;
    case eval::Task::kCopy:
      grid.axis = a.gaps;
      break;
  }
  const bool chat = s.model->info().has_chat_template;
  if (a.form == "question" && !chat) return InvalidArgument("the model has no chat template, so no question form");
  grid.form = a.form == "completion" || !chat ? eval::Form::kCompletion : eval::Form::kQuestion;
  return grid;
}

Status Retrieve(const Setting& s, eval::Task task) {
  FS_ASSIGN_OR_RETURN(const eval::Grid grid, GridOf(s, task));
  const int64_t needed = eval::ContextFor(grid);
  FS_ASSIGN_OR_RETURN(eval::PolicyEngines engines, Engines(s, s.variants, std::max(needed, s.args.context)));
  ProgressBar bar(s.args.task);
  const eval::Hooks hooks{[&bar](int64_t done, int64_t total) { bar.Update(done, total); }, Interrupted};
  FS_ASSIGN_OR_RETURN(const std::vector<eval::Cell> cells, eval::RunGrid(*s.model, s.hay, grid, engines, hooks));
  bar.Clear();
  FS_RETURN_IF_ERROR(Print(eval::PrintGrid(grid, engines, cells, ModelName(s), s.format)));
  if (s.args.svg.empty()) return OkStatus();
  std::vector<std::string> labels;
  for (size_t i = 0; i < engines.size(); ++i) labels.push_back(engines.variant(i).Label());
  std::ofstream out(s.args.svg, std::ios::binary);
  out << eval::DrawGrid(grid, labels, cells, ModelName(s) + ": " + s.args.task + ", right answers in %");
  if (!out.flush()) return Unavailable("'" + s.args.svg + "' could not be written");
  return OkStatus();
}

// --- likelihood ---------------------------------------------------------------------------------------------------

// Perplexity of consecutive windows from the text's beginning; bits per byte of windows spread over all of it.
Status Likelihood(const Setting& s, bool bits_per_byte) {
  eval::TextSpec spec;
  spec.context = s.args.context > 0 ? s.args.context : std::min<int64_t>(s.model->info().context, 2048);
  spec.prefix = std::min(s.args.prefix, std::max<int64_t>(0, spec.context - 2));
  spec.tokens = s.args.tokens;
  spec.spread = bits_per_byte;
  FS_ASSIGN_OR_RETURN(eval::PolicyEngines engines, Engines(s, s.variants, spec.context));
  Table table(bits_per_byte ? std::vector<std::string>{"attention", "top_k_blocks", "sketch_bits", "context", "prefix",
                                                       "positions", "tokens", "bytes", "bits_per_byte"}
                            : std::vector<std::string>{"attention", "top_k_blocks", "sketch_bits", "context", "prefix",
                                                       "tokens", "perplexity", "error", "nll"});
  ProgressBar bar("scoring");
  const eval::Hooks hooks{[&bar](int64_t done, int64_t total) { bar.Update(done, total); }, Interrupted};
  FS_ASSIGN_OR_RETURN(const std::vector<eval::TextScore> scores,
                      eval::ScoreText(*s.model, engines, s.hay.tokens(), spec, hooks));
  bar.Clear();
  for (size_t v = 0; v < scores.size(); ++v) {
    const eval::TextScore& score = scores[v];
    const eval::Variant& variant = engines.variant(v);
    const std::vector<Table::Value> head = {Table::Text(variant.Name()), Table::Integer(variant.blocks),
                                            Table::Integer(variant.Bits()), Table::Integer(spec.context),
                                            Table::Integer(spec.prefix)};
    const auto add = [&](std::vector<Table::Value> rest) {
      std::vector<Table::Value> row = head;
      row.insert(row.end(), rest.begin(), rest.end());
      table.Add(std::move(row));
    };
    if (!bits_per_byte) {
      const double perplexity = std::exp(score.nll.mean());
      add({Table::Integer(score.nll.n()), Table::Real(perplexity, 4), Table::Real(perplexity * score.nll.error(), 4),
           Table::Real(score.nll.mean(), 5)});
      continue;
    }
    eval::TextScore::Bucket all{spec.prefix, spec.context, 0, 0, 0};
    for (const auto& b : score.buckets) {
      all.nats += b.nats;
      all.bytes += b.bytes;
      all.tokens += b.tokens;
    }
    std::vector<eval::TextScore::Bucket> buckets = {all};
    buckets.insert(buckets.end(), score.buckets.begin(), score.buckets.end());
    for (const auto& b : buckets) {
      if (b.tokens == 0) continue;
      add({Table::Text(fmt::format("{}-{}", b.low, b.high)), Table::Integer(b.tokens), Table::Integer(b.bytes),
           Table::Real(eval::BitsPerByte(b.nats, b.bytes), 4)});
    }
  }
  return Print(table.Print(s.format));
}

Status Compare(const Setting& s) {
  const std::vector<int32_t>& text = s.hay.tokens();
  const int64_t prefix = s.args.prefix;
  const auto scored = std::min(s.args.tokens, static_cast<int64_t>(text.size()) - prefix);
  if (scored < 1) {
    return InvalidArgument(fmt::format("the text has {} tokens, not more than the prefix of {}", text.size(), prefix));
  }
  const std::span<const int32_t> part(text.data(), static_cast<size_t>(prefix + scored));
  std::vector<eval::Variant> variants(1);  // dense first: what the others are compared with
  variants[0].options = s.variants[0].options;
  variants[0].options.policy = AttentionPolicy::kDense;
  for (const auto& v : s.variants) {
    if (v.options.policy != AttentionPolicy::kDense) variants.push_back(v);
  }
  FS_ASSIGN_OR_RETURN(eval::PolicyEngines engines, Engines(s, std::move(variants), prefix + scored));
  Table table({"attention", "top_k_blocks", "sketch_bits", "prefix", "tokens", "kl_mean", "kl_p99", "top1",
               "perplexity", "perplexity_dense"});
  std::vector<float> reference;
  for (size_t i = 0; i < engines.size() && !Interrupted(); ++i) {
    FS_ASSIGN_OR_RETURN(Engine* const engine, engines.Use(i));
    FS_ASSIGN_OR_RETURN(std::vector<float> logits, eval::TailLogits(*engine, part, prefix));
    if (i == 0) {
      reference = std::move(logits);
      continue;
    }
    const eval::Comparison c =
        eval::Compare(reference, logits, s.model->info().vocab, part.subspan(static_cast<size_t>(prefix) + 1));
    const eval::Variant& v = engines.variant(i);
    table.Add({Table::Text(v.Name()), Table::Integer(v.blocks), Table::Integer(v.Bits()), Table::Integer(prefix),
               Table::Integer(c.tokens), Table::Real(c.kl_mean, 5), Table::Real(c.kl_p99, 4),
               Table::Real(100 * c.top1, 2), Table::Real(std::exp(c.nll), 4),
               Table::Real(std::exp(c.nll_reference), 4)});
  }
  return Print(table.Print(s.format));
}

}  // namespace

int Eval(const EvalArgs& args) {
  CatchInterrupt();
  const auto task = eval::ParseTask(args.task);
  if (!task.ok() && args.task != "perplexity" && args.task != "compare" && args.task != "bpb") {
    return FailUsage(
        InvalidArgument("unknown evaluation '" + args.task +
                        "': expected needle, multikey, multineedle, vartrack, copy, bpb, perplexity or compare"));
  }
  auto flags = ParseFlags(args);
  if (!flags.ok()) return FailUsage(flags.status());
  const auto setting = Prepare(args, std::move(*flags));
  if (!setting.ok()) return Fail(setting.status());
  Status status;
  if (task.ok()) {
    status = Retrieve(*setting, *task);
  } else if (args.task == "compare") {
    status = Compare(*setting);
  } else {
    status = Likelihood(*setting, args.task == "bpb");
  }
  if (!status.ok()) return Fail(status);
  return Interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace farsight::cli
