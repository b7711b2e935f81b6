// farsight train-forecast: texts in, a Forecast file out.
#include "cli/train_forecast.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "cli/flags.h"
#include "engine/model_impl.h"
#include "io/env.h"
#include "io/gguf.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/forecast_file.h"
#include "train/forecast_fit.h"
#include "train/forecast_init.h"
#include "train/forecast_trainer.h"
#include "train/model_layer_source.h"
#include "train/sequences.h"

namespace farsight::cli {
namespace {

using Sequences = std::vector<std::span<const int32_t>>;

// Counts what the model has read, for the progress bar, and ends the work after Ctrl-C.
class WatchedSource final : public LayerSource {
 public:
  WatchedSource(LayerSource* source, const char* what, int64_t total) : source_(source), bar_(what), total_(total) {}

  Status Run(std::span<const int32_t> tokens, const LayerFn& layer) override {
    if (Interrupted()) return Cancelled("interrupted");
    FS_RETURN_IF_ERROR(source_->Run(tokens, layer));
    done_ += static_cast<int64_t>(tokens.size());
    bar_.Update(done_, total_);
    return OkStatus();
  }
  template <typename... T>
  void Print(fmt::format_string<T...> format, T&&... values) {
    bar_.Clear();
    Tell(format, std::forward<T>(values)...);
  }
  void Clear() { bar_.Clear(); }

 private:
  LayerSource* source_;
  ProgressBar bar_;
  int64_t done_ = 0, total_ = 0;
};

// Everything a run needs, in the order it is made.
struct Run {
  std::shared_ptr<Model> model;
  std::string fingerprint;
  ForecastTrainerOptions options;
  AttentionOptions keys;  // what the Forecast will be used over
  std::unique_ptr<PackedText> train, held;
  std::string settings;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<ModelLayerSource> source;
  std::unique_ptr<ForecastTrainer> trainer;
};

StatusOr<std::shared_ptr<const ModelFile>> OpenWeights(const std::string& path) {
  return IsDirectory(path) ? OpenSafetensors(path) : OpenGguf(path);
}

Status CheckArgs(const TrainForecastArgs& a) {
  const auto positive = [](const char* what, int64_t v) -> Status {
    if (v < 1) return InvalidArgument(std::string(what) + " must be at least 1, not " + std::to_string(v));
    return OkStatus();
  };
  FS_RETURN_IF_ERROR(positive("--seq-len", a.seq_len));
  if (a.init != "fit" || a.steps != 0) FS_RETURN_IF_ERROR(positive("--steps", a.steps));
  FS_RETURN_IF_ERROR(positive("--batch", a.batch));
  if (a.rows < 0 || a.warmup < 0 || a.val_sequences < 0 || a.eval_every < 0 || a.save_every < 0) {
    return InvalidArgument("--rows, --warmup, --val-sequences, --eval-every and --save-every must not be negative");
  }
  if (!(a.lr > 0) || a.lr > 1) return InvalidArgument(fmt::format("--lr must be above 0 and at most 1, not {}", a.lr));
  if (!(a.lr_end >= 0) || a.lr_end > 1) {
    return InvalidArgument(fmt::format("--lr-end is a share of --lr from 0 to 1, not {}", a.lr_end));
  }
  if (a.init != "query" && a.init != "random" && a.init != "fit") {
    return InvalidArgument("unknown start '" + a.init + "': expected query, fit or random");
  }
  if (a.heads != "kv" && a.heads != "query") {
    return InvalidArgument("unknown heads '" + a.heads + "': expected kv or query");
  }
  if (a.type != "f32" && a.type != "bf16") {
    return InvalidArgument("unknown type '" + a.type + "': expected f32 or bf16");
  }
  return OkStatus();
}

// The policy whose keys are forecast, and the trainer's constants from it.
Status ResolveTask(const TrainForecastArgs& args, Run* run) {
  const ModelConfig& c = run->model->impl().config;
  if (c.nsa.kv_sets > 0) {
    return Unimplemented(
        "the model was trained with NSA attention, whose compressed branch must see every window; a "
        "Forecast has nothing to save there");
  }
  FS_ASSIGN_OR_RETURN(AttentionOptions asked, ToOptions(args.attention));
  if (asked.policy == AttentionPolicy::kModel && c.attention.policy == AttentionPolicy::kDense) {
    asked.policy = AttentionPolicy::kSketch;
  }
  FS_ASSIGN_OR_RETURN(const AttentionPlan plan, MakeAttentionPlan(asked, c.attention, c.layers));
  if (!plan.Selects()) return InvalidArgument("dense attention has no blocks to forecast; choose infllm2 or sketch");
  run->keys = plan.options;
  ForecastTrainerOptions& o = run->options;
  ForecastTask& t = o.task;
  t.keys = plan.summary.kind;
  FS_ASSIGN_OR_RETURN(t.teacher, ParseForecastTeacher(args.teacher));
  t.heads = c.heads;
  t.kv_heads = c.kv_heads;
  t.head_dim = c.head_dim;
  t.queries = args.heads == "query" ? t.group() : 1;
  t.block_tokens = plan.options.block_size;
  t.top_k = plan.query_top_k > 0 ? plan.query_top_k : plan.top_k;  // importances choose without a Forecast
  t.init_blocks = plan.init_blocks;
  t.local_blocks = plan.local_blocks;
  t.kernel = plan.summary.kernel;
  t.stride = plan.summary.stride;
  t.bits = plan.summary.bits;
  FS_RETURN_IF_ERROR(Validate(t));
  o.rotated = !(c.nope_scores && t.pooled());
  FS_ASSIGN_OR_RETURN(o.rope, ResolveRope(c.rope, c.context, c.context));
  o.hidden = c.hidden;
  o.layers = c.layers;
  o.rows_per_sequence = args.rows;
  o.learning_rate = {.peak = args.lr, .warmup = args.warmup, .total = args.steps, .final_share = args.lr_end};
  o.seed = args.seed;
  const int64_t needed = static_cast<int64_t>(t.top_k) * t.block_tokens;
  if (args.seq_len <= needed) {
    return InvalidArgument(
        fmt::format("sequences of {} tokens fit into the {} blocks of a list, so nothing would be "
                    "chosen; --seq-len must be above {}",
                    args.seq_len, t.top_k, needed));
  }
  return OkStatus();
}

StatusOr<PackedText> ReadTexts(const std::vector<std::string>& files, const Model& model, int64_t seq_len) {
  std::vector<std::vector<int32_t>> documents;
  for (const auto& file : files) {
    FS_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
    documents.push_back(model.Tokenize(text, false, false));
    if (documents.back().empty()) return InvalidArgument("'" + file + "' holds no text");
  }
  const Tokenizer& t = *model.impl().tokenizer;
  return PackedText(documents, t.add_bos() ? t.bos() : t.eos(), seq_len);
}

Status ReadAllTexts(const TrainForecastArgs& args, Run* run) {
  FS_ASSIGN_OR_RETURN(PackedText train, ReadTexts(args.text, *run->model, args.seq_len));
  const int64_t wanted = args.val_text.empty() ? args.val_sequences : 0;
  if (train.size() < wanted + 1) {
    return InvalidArgument(fmt::format("the text gives {} sequences of {} tokens; training needs one and validation {}",
                                       train.size(), args.seq_len, wanted));
  }
  PackedText held = train.SplitOff(wanted);
  if (!args.val_text.empty()) {
    FS_ASSIGN_OR_RETURN(PackedText validation, ReadTexts(args.val_text, *run->model, args.seq_len));
    if (validation.size() < 1) {
      return InvalidArgument(
          fmt::format("the validation text is shorter than one sequence of {} tokens", args.seq_len));
    }
    if (validation.size() > args.val_sequences) validation.SplitOff(validation.size() - args.val_sequences);
    held = std::move(validation);
  }
  run->train = std::make_unique<PackedText>(std::move(train));
  run->held = std::make_unique<PackedText>(std::move(held));
  return OkStatus();
}

// All that decides what a run computes, so that a state is never continued by another one.
std::string SettingsOf(const TrainForecastArgs& a, const Run& run) {
  uint64_t text = 0;
  for (int64_t i = 0; i < run.train->size(); ++i) text = MixSeed(text, Checksum(std::as_bytes((*run.train)[i])));
  const ForecastTask& t = run.options.task;
  return fmt::format(
      "model {} text {:016x} seq-len {} batch {} rows {} steps {} lr {} warmup {} lr-end {} seed {} init {} heads {} "
      "teacher {} keys {} block {} top-k {} init-blocks {} local-blocks {} kernel {} stride {} bits {} kernels {}",
      run.fingerprint, text, a.seq_len, a.batch, a.rows, a.steps, a.lr, a.warmup, a.lr_end, a.seed,
      a.init == "fit" ? fmt::format("fit {}", a.fit_sequences) : a.init, a.heads, ForecastTeacherName(t.teacher),
      t.pooled() ? "pooled" : "sketch", t.block_tokens, t.top_k, t.init_blocks, t.local_blocks, t.kernel, t.stride,
      t.bits, run.model->info().backend);
}

// Moves the start to the best linear map, over the first sequences that training would see.
Status Fit(const TrainForecastArgs& args, Run* run, std::vector<std::vector<float>>* initial) {
  const ForecastTrainerOptions& t = run->options;
  ForecastFitOptions o;
  o.task = t.task;
  o.hidden = t.hidden;
  o.layers = t.layers;
  o.rows_per_sequence = args.rows;
  o.seed = args.seed;
  SequenceOrder order(run->train->size(), args.seed);
  Sequences sequences;
  for (int64_t i = 0; i < std::min(args.fit_sequences, run->train->size()); ++i) {
    sequences.push_back((*run->train)[order.At(i)]);
  }
  WatchedSource source(run->source.get(), "fitting", static_cast<int64_t>(sequences.size()) * args.seq_len);
  FS_ASSIGN_OR_RETURN(*initial, FitForecast(o, source, sequences, std::move(*initial), run->pool.get()));
  source.Clear();
  return OkStatus();
}

Status Prepare(const TrainForecastArgs& args, Run* run) {
  FS_ASSIGN_OR_RETURN(run->model, LoadModel(args.model));
  FS_RETURN_IF_ERROR(ResolveTask(args, run));
  FS_RETURN_IF_ERROR(ReadAllTexts(args, run));
  const ModelConfig& c = run->model->impl().config;
  const std::string& path = run->model->info().path;
  FS_ASSIGN_OR_RETURN(const auto file, OpenWeights(path));
  run->fingerprint = ModelFingerprint(*file);
  run->settings = SettingsOf(args, *run);

  FS_ASSIGN_OR_RETURN(const AttentionPlan plan, MakeAttentionPlan({}, c.attention, c.layers));
  FS_ASSIGN_OR_RETURN(run->source, ModelLayerSource::Create(*run->model->impl().loaded, c, plan, args.seq_len));
  std::vector<std::vector<float>> initial;
  if (args.init != "random") {
    const auto names = IsDirectory(path) ? WeightNames::kHuggingFace : WeightNames::kGguf;
    FS_ASSIGN_OR_RETURN(initial, ForecastFromQueries(*file, c, run->options.task.queries, names));
  } else {
    initial = RandomForecast(c, run->options.task.queries, args.seed);
  }
  run->pool = std::make_unique<ThreadPool>(run->model->threads());
  if (args.init == "fit" && !args.resume) FS_RETURN_IF_ERROR(Fit(args, run, &initial));
  FS_ASSIGN_OR_RETURN(run->trainer, ForecastTrainer::Create(run->options, std::move(initial), run->pool.get()));
  if (!args.resume) return OkStatus();
  return run->trainer->LoadState(args.output + ".state", run->settings);
}

Sequences AllOf(const PackedText& text) {
  Sequences out;
  for (int64_t i = 0; i < text.size(); ++i) out.push_back(text[i]);
  return out;
}

StatusOr<ForecastPass> Measure(Run* run, WatchedSource* source) {
  FS_ASSIGN_OR_RETURN(ForecastPass pass, run->trainer->Evaluate(*source, AllOf(*run->held)));
  const ForecastTotals all = pass.Sum();
  source->Print("step {}: validation loss {:.5f}, blocks found {:.1f} % (by chance {:.1f} %), mass found {:.1f} %\n",
                run->trainer->steps_done(), all.MeanLoss(), 100 * all.Recall(), 100 * all.ChanceRecall(),
                100 * all.MassRecall());
  return pass;
}

Status Save(const TrainForecastArgs& args, const Run& run) {
  Forecast f;
  f.info.fingerprint = run.fingerprint;
  f.info.keys = run.options.task.keys;
  f.info.rotated = run.options.rotated;
  f.info.block_size = run.keys.block_size;
  f.info.kernel_size = run.keys.kernel_size;
  f.info.kernel_stride = run.keys.kernel_stride;
  f.info.sketch_bits = run.keys.sketch_bits;
  f.info.training = {{"settings", run.settings},
                     {"tokens_read", std::to_string(args.steps * args.batch * args.seq_len)}};
  f.projections = run.trainer->Projections();
  return SaveForecast(args.output, f, run.model->impl().config, args.type == "f32" ? DType::kF32 : DType::kBF16);
}

Status TrainAll(const TrainForecastArgs& args, Run* run, WatchedSource* source) {
  ForecastTrainer& trainer = *run->trainer;
  SequenceOrder order(run->train->size(), args.seed);
  ForecastTotals recent;
  while (trainer.steps_done() < args.steps) {
    Sequences batch;
    for (int64_t i = 0; i < args.batch; ++i) {
      batch.push_back((*run->train)[order.At(trainer.steps_done() * args.batch + i)]);
    }
    FS_ASSIGN_OR_RETURN(const ForecastStep step, trainer.Step(*source, batch));
    recent.Add(step.pass.Sum());
    const int64_t done = trainer.steps_done();
    if (done % 10 == 0 || done == args.steps) {
      source->Print("step {}/{}: loss {:.5f}, blocks found {:.1f} %, learning rate {:.2g}, gradient {:.3g}\n", done,
                    args.steps, recent.MeanLoss(), 100 * recent.Recall(), step.learning_rate, step.gradient_norm);
      recent = {};
    }
    if (args.eval_every > 0 && done % args.eval_every == 0 && done < args.steps && run->held->size() > 0) {
      FS_RETURN_IF_ERROR(Measure(run, source).status());
    }
    if (args.save_every > 0 && done % args.save_every == 0 && done < args.steps) {
      FS_RETURN_IF_ERROR(trainer.SaveState(args.output + ".state", run->settings));
    }
  }
  return OkStatus();
}

void PrintResult(const TrainForecastArgs& args, const Run& run, const ForecastPass& before, const ForecastPass& after) {
  if (args.json) {
    Json layers = Json::array();
    for (size_t l = 0; l < after.layers.size(); ++l) {
      layers.push_back({{"layer", l},
                        {"loss_before", before.layers[l].MeanLoss()},
                        {"loss", after.layers[l].MeanLoss()},
                        {"recall_before", before.layers[l].Recall()},
                        {"recall", after.layers[l].Recall()},
                        {"recall_by_chance", after.layers[l].ChanceRecall()},
                        {"mass_recall_before", before.layers[l].MassRecall()},
                        {"mass_recall", after.layers[l].MassRecall()}});
    }
    const Json out = {{"output", args.output},
                      {"fingerprint", run.fingerprint},
                      {"steps", run.trainer->steps_done()},
                      {"settings", run.settings},
                      {"layers", layers}};
    std::cout << DumpJson(out, 2) << "\n";
    return;
  }
  Say("layer       loss (before)   blocks found (before, by chance)   mass found (before)\n");
  for (size_t l = 0; l < after.layers.size(); ++l) {
    Say("{:>5}  {:>9.5f} ({:>7.5f})  {:>8.1f} % ({:.1f}, {:.1f})  {:>8.1f} % ({:.1f})\n", l, after.layers[l].MeanLoss(),
        before.layers[l].MeanLoss(), 100 * after.layers[l].Recall(), 100 * before.layers[l].Recall(),
        100 * after.layers[l].ChanceRecall(), 100 * after.layers[l].MassRecall(), 100 * before.layers[l].MassRecall());
  }
}

}  // namespace

void AddTrainForecast(CLI::App* app, TrainForecastArgs* a) {
  app->add_option("-m,--model", a->model.model, "Model: a path, or a name in $FARSIGHT_MODELS or models/")->required();
  app->add_option("-t,--threads", a->model.threads, "Threads (0: one for each processor)")->check(WholeNumber(0, 1024));
  app->add_option("--isa", a->model.isa, "Instruction set of the model: best, amx, avx512, avx2, scalar");
  app->add_option("--text", a->text, "Text files to train on")->required();
  app->add_option("-o,--output", a->output, "Forecast file to write")->required();
  app->add_option("--val-text", a->val_text, "Text files to validate on (default: the end of the training text)");
  app->add_option("--val-sequences", a->val_sequences, "Sequences to validate on")
      ->check(WholeNumber<int64_t>(1, 1 << 20));
  app->add_option("--seq-len", a->seq_len, "Tokens of a sequence")->check(Tokens(1));
  app->add_option("--steps", a->steps, "Updates (0: the start, with --init fit)")
      ->check(WholeNumber<int64_t>(0, int64_t{1} << 40));
  app->add_option("--batch", a->batch, "Sequences of an update")->check(WholeNumber<int64_t>(1, 1 << 20));
  app->add_option("--rows", a->rows, "Tokens of each sequence to train on, drawn anew (0: all)")->check(Tokens(0));
  app->add_option("--lr", a->lr, "Learning rate at its highest");
  app->add_option("--lr-end", a->lr_end, "Share of it that is left at the end");
  app->add_option("--warmup", a->warmup, "Updates until it is reached")
      ->check(WholeNumber<int64_t>(0, int64_t{1} << 40));
  app->add_option("--teacher", a->teacher, "model: the model's own selection; fine: a finer view of the attention");
  app->add_option(
      "--init", a->init,
      "Start from the model's queries, from what fits them best, or from random weights: query, fit, random");
  app->add_option("--fit-sequences", a->fit_sequences, "--init fit: sequences to fit to")
      ->check(WholeNumber<int64_t>(1, 1 << 20));
  app->add_option("--heads", a->heads,
                  "Projections: kv: one for each KV head, as published; query: one for each query head");
  app->add_option("--attention", a->attention.policy,
                  "Whose keys are forecast: model (as trained; sketch for a dense model), infllm2, sketch");
  app->add_option("--block-size", a->attention.values.block_size, "Tokens of a block: 16, 32, 64, 128, 256")
      ->check(WholeNumber(16, 256));
  app->add_option("--top-k-blocks", a->attention.values.top_k_blocks, "Blocks of a list, forced ones included")
      ->check(Tokens(1));
  app->add_option("--init-blocks", a->attention.values.init_blocks, "First blocks that are always attended")
      ->check(Tokens(0));
  app->add_option("--local-window", a->attention.values.local_window, "Newest tokens that are always attended")
      ->check(Tokens(0));
  app->add_option("--sketch-bits", a->attention.values.sketch_bits, "sketch: bits a channel, 1, 2 or 4")
      ->check(WholeNumber(1, 4));
  app->add_option("--type", a->type, "Type of the written weights: bf16, f32");
  app->add_option("-s,--seed", a->seed, "Seed of the order, the rows and random weights")->check(Seed());
  app->add_option("--eval-every", a->eval_every, "Updates between validations (0: only before and after)")
      ->check(WholeNumber<int64_t>(0, int64_t{1} << 40));
  app->add_option("--save-every", a->save_every, "Updates between savings of the state, OUTPUT.state (0: never)")
      ->check(WholeNumber<int64_t>(0, int64_t{1} << 40));
  app->add_flag("--resume", a->resume, "Go on from OUTPUT.state; the result is the same bit for bit");
  app->add_flag("--json", a->json, "Print the result as JSON");
}

int TrainForecast(const TrainForecastArgs& args) {
  CatchInterrupt();
  if (const Status s = CheckArgs(args); !s.ok()) {
    return FailUsage(s);
  }
  Run run;
  if (const Status s = Prepare(args, &run); !s.ok()) return Fail(s);
  const ModelConfig& c = run.model->impl().config;
  const int64_t width = run.options.task.forecast_width();
  Tell("{}: {} projections of {} x {} over {}, teacher {}; {} sequences of {} tokens, {} for validation\n",
       run.model->info().path, c.layers, width, c.hidden, run.options.task.pooled() ? "pooled keys" : "sketches",
       ForecastTeacherName(run.options.task.teacher), run.train->size(), args.seq_len, run.held->size());
  const int64_t validations = 2 + (args.eval_every > 0 ? (args.steps - 1) / args.eval_every : 0);
  const int64_t left = args.steps - run.trainer->steps_done();
  WatchedSource source(run.source.get(), "training",
                       args.seq_len * (left * args.batch + validations * run.held->size()));

  const std::string state = args.output + ".state";
  const auto finish = [&]() -> Status {
    FS_ASSIGN_OR_RETURN(const ForecastPass before, Measure(&run, &source));
    // Also shows at once whether the output's place can be written to.
    if (args.save_every > 0) FS_RETURN_IF_ERROR(run.trainer->SaveState(state, run.settings));
    FS_RETURN_IF_ERROR(TrainAll(args, &run, &source));
    FS_ASSIGN_OR_RETURN(const ForecastPass after, Measure(&run, &source));
    FS_RETURN_IF_ERROR(Save(args, run));
    source.Clear();
    PrintResult(args, run, before, after);
    std::remove(state.c_str());
    return OkStatus();
  };
  const Status status = finish();
  source.Clear();
  if (status.ok()) return kExitOk;
  if (status.code() != StatusCode::kCancelled) return Fail(status);
  if (const Status saved = run.trainer->SaveState(state, run.settings); !saved.ok()) return Fail(saved);
  return Fail(Cancelled(fmt::format("stopped after update {} of {}; --resume goes on from '{}'",
                                    run.trainer->steps_done(), args.steps, state)));
}

}  // namespace farsight::cli
