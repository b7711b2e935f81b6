// The command line: flags, help and usage errors. The work is in the other files of this folder.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <new>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/train_forecast.h"

namespace farsight::cli {
namespace {

void AddModel(CLI::App* app, ModelArgs* a) {
  app->add_option("-m,--model", a->model, "Model: a path, or a name in $FARSIGHT_MODELS or models/")->required();
  app->add_option("-t,--threads", a->threads, "Threads (0: one for each processor)")->check(WholeNumber(0, 1024));
  app->add_option("--isa", a->isa, "Instruction set: best, amx, avx512, avx2, scalar");
  app->add_flag("--reference", a->reference, "Run on the slow double-precision reference backend");
}

void AddAttention(CLI::App* app, AttentionArgs* a, std::vector<std::string>* policies) {
  const char* help =
      "Attention policy: model (as trained), dense, infllm2, sketch, sparda, infinigen, stale, nosa, nsa";
  if (policies != nullptr) {
    app->add_option("--attention", *policies, std::string(help) + "; several, separated by commas")->delimiter(',');
  } else {
    app->add_option("--attention", a->policy, help);
  }
  app->add_option("--sparse-phase", a->phase, "Where a sparse policy applies: decode or all");
  app->add_option("--block-size", a->values.block_size, "Tokens of a block: 16, 32, 64, 128, 256")
      ->check(WholeNumber(16, 256));
  app->add_option("--top-k-blocks", a->values.top_k_blocks, "Blocks a query attends to, forced ones included")
      ->check(Tokens(1));
  app->add_option("--query-blocks", a->values.query_blocks, "nosa: of these, what the query chooses")->check(Tokens(1));
  app->add_option("--init-blocks", a->values.init_blocks, "First blocks that are always attended")->check(Tokens(0));
  app->add_option("--local-window", a->values.local_window, "Newest tokens that are always attended")->check(Tokens(0));
  app->add_option("--dense-below", a->values.dense_below, "Contexts shorter than this are attended densely")
      ->check(Tokens(0));
  app->add_option("--dense-layers", a->values.dense_layers, "First layers that always attend densely")
      ->check(Tokens(0));
  app->add_option("--kernel-size", a->values.kernel_size, "infllm2: tokens of a pooled window")->check(Tokens(1));
  app->add_option("--kernel-stride", a->values.kernel_stride, "infllm2: tokens between windows")->check(Tokens(1));
  app->add_option("--forecast", a->forecast, "sparda: file of Forecast projections (default: beside the model)");
  app->add_option("--sketch-bits", a->values.sketch_bits, "sketch: bits a channel, 1, 2 or 4")
      ->check(WholeNumber(1, 4));
}

void AddRun(CLI::App* app, RunArgs* a) {
  AddModel(app, &a->model);
  AddAttention(app, &a->attention, nullptr);
  app->add_option("-f,--file", a->file, "Text to read; - is standard input");
  app->add_option("-p,--prompt", a->prompt, "Prompt, or the question about the file");
  app->add_option("--system", a->system, "System message (chat)");
  app->add_option("-n,--predict", a->max_tokens, "Tokens to write (-1: until the end or the context is full)")
      ->check(Tokens(-1));
  app->add_option("-c,--ctx-size", a->context, "Context in tokens (0: the model's)")->check(Tokens(0));
  app->add_option("--prefill-chunk", a->prefill_chunk, "Prompt tokens of one step")->check(WholeNumber(1, 65536));
  app->add_option("--kv-type", a->kv_type, "Type of cached keys and values: f32, f16, bf16");
  app->add_option("--kv-memory", a->kv.memory,
                  "Memory for keys and values (64M, 1G); the others lie in a file and are read when they are attended");
  app->add_option("--kv-file", a->kv.file, "That file, gone when the program ends (default: in /var/tmp)");
  app->add_flag("--no-lookahead", a->kv.no_lookahead, "Read blocks only when their layer needs them");
  app->add_option("--session", a->session,
                  "File that keeps tokens, keys and values for the next run; a prompt that begins with its tokens "
                  "computes only the rest");
  app->add_option("--draft", a->draft,
                  "Guess tokens and check several at once, which never changes the text: auto, off, ngram, suffix, "
                  "model:NAME or auto:NAME (a small model with the same tokenizer)");
  app->add_option("--draft-max", a->draft_max, "Guessed tokens of a step at most")->check(WholeNumber(1, 64));
  app->add_option("--draft-tree", a->draft_tree, "Guesses after a token at each depth, such as 3,2,1: drafts are trees")
      ->delimiter(',')
      ->check(WholeNumber(1, 64));
  app->add_option("--draft-group", a->draft_group, "Rows of a draft that load blocks together at most (not for auto)")
      ->check(WholeNumber(1, 64));
  app->add_flag("--draft-breadth-first", a->draft_breadth_first,
                "Compute siblings of a tree side by side instead of paths (not for auto)");
  app->add_option("--precision", a->precision,
                  "What drafts may change for less work, where a profile found it good enough: strict (nothing), "
                  "reuse, shared, shared+reuse");
  app->add_option("--profile", a->profile,
                  "--draft auto: file written by farsight profile (default: where that command puts it)");
  SamplingParams& s = a->sampling;
  app->add_option("--temp", s.temperature, "Temperature (0: the most probable token)");
  app->add_option("--top-k", s.top_k, "Keep the k most probable tokens (0: all)")->check(Tokens(0));
  app->add_option("--top-p", s.top_p, "Keep the fewest tokens that reach this probability");
  app->add_option("--min-p", s.min_p, "Drop tokens below this times the most probable");
  app->add_option("--repeat-penalty", s.repetition_penalty, "Repetition penalty");
  app->add_option("--presence-penalty", s.presence_penalty, "Presence penalty");
  app->add_option("--frequency-penalty", s.frequency_penalty, "Frequency penalty");
  app->add_option("--repeat-last-n", s.penalty_window, "Tokens the penalties look back (0: none, -1: all)")
      ->check(Tokens(-1));
  app->add_option("-s,--seed", s.seed, "Seed of the random draws")->check(Seed());
  app->add_option("--logprobs", s.top_logprobs,
                  "Report the chosen token's and this many top log probabilities (--json)")
      ->check(WholeNumber(0, kMaxTopLogprobs));
  app->add_option("--stop", a->stop, "End the answer before this text; may be repeated")->allow_extra_args(false);
  app->add_flag("--ignore-eos", a->ignore_eos, "Go on after an end token");
}

int Main(int argc, char** argv) {
  CLI::App app{"Farsight reads very long text with a language model and answers fast."};
  app.name("farsight");
  app.set_version_flag("--version", std::string("farsight ") + FARSIGHT_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();  // the help of every command shows them

  RunArgs run;
  CLI::App* run_app = app.add_subcommand("run", "Read a text, answer, and say what was read and how fast");
  AddRun(run_app, &run);
  bool chat_on = false;
  bool chat_off = false;
  run_app->add_flag("--chat", chat_on, "Use the model's chat template (the default where there is one)");
  run_app->add_flag("--no-chat", chat_off, "Continue the text as it is")->excludes("--chat");
  run_app->add_flag("--json", run.json, "Print one JSON object instead of the text");
  run_app->add_option("--trace", run.trace, "Write which blocks each generated token attended to this file");

  RunArgs chat;
  CLI::App* chat_app = app.add_subcommand("chat", "Talk in several turns; the cache is kept between them");
  AddRun(chat_app, &chat);

  TokenizeArgs tokenize;
  CLI::App* tokenize_app = app.add_subcommand("tokenize", "Show the tokens of a text");
  tokenize_app->add_option("-m,--model", tokenize.model, "Model")->required();
  tokenize_app->add_option("-f,--file", tokenize.file, "Text file; - is standard input");
  tokenize_app->add_option("-p,--prompt", tokenize.prompt, "Text");
  tokenize_app->add_flag("--special", tokenize.special, "Recognise control tokens written out");
  tokenize_app->add_flag("--bos", tokenize.bos, "Put the beginning-of-text token first");
  tokenize_app->add_flag("--ids", tokenize.ids, "Print ids only, on one line");

  InspectArgs inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "Facts about a model");
  AddModel(inspect_app, &inspect.model);
  inspect_app->add_flag("--tensors", inspect.tensors, "List the tensors");
  inspect_app->add_flag("--json", inspect.json, "Print JSON");

  BenchArgs bench;
  CLI::App* bench_app = app.add_subcommand("bench", "Measure speed");
  AddModel(bench_app, &bench.model);
  bench_app->remove_option(bench_app->get_option("--threads"));
  AddAttention(bench_app, &bench.attention, &bench.policies);
  bench_app->add_option("-p,--n-prompt", bench.prompt, "Prompt lengths")->delimiter(',')->check(Tokens(0));
  bench_app->add_option("-n,--n-gen", bench.generate, "Tokens to write")->delimiter(',')->check(Tokens(0));
  bench_app->add_option("-d,--n-depth", bench.depth, "Tokens in the cache beforehand")
      ->delimiter(',')
      ->check(Tokens(0));
  bench_app->add_option("-t,--threads", bench.threads, "Thread counts")->delimiter(',')->check(WholeNumber(1, 1024));
  bench_app->add_option("--parallel", bench.parallel, "Sequences that write at once")
      ->delimiter(',')
      ->check(WholeNumber(1, 4096));
  bench_app->add_option("-r,--repetitions", bench.repeat, "Repetitions after one warm-up")->check(WholeNumber(1, 1000));
  bench_app->add_option("--prefill-chunk", bench.prefill_chunk, "Prompt tokens of one step")
      ->check(WholeNumber(1, 65536));
  bench_app->add_option("--kv-type", bench.kv_type, "Type of cached keys and values: f32, f16, bf16");
  bench_app->add_option("--kv-memory", bench.kv_memory, "Memory for keys and values: sizes (64M), or all")
      ->delimiter(',');
  bench_app->add_option("--lookahead", bench.lookahead, "Read blocks while the layer before computes: on, off")
      ->delimiter(',')
      ->check(CLI::IsMember({"on", "off"}));
  bench_app->add_option("--kv-file", bench.kv_file, "File for what memory does not hold (default: in /var/tmp)");
  bench_app->add_option(
      "-f,--file", bench.file,
      "Text to read, from its start, and to go on from, drawn at temperature 1 (default: random tokens, greedy)");
  bench_app->add_option("-o,--output", bench.output, "md, csv or json");

  EvalArgs eval;
  CLI::App* eval_app = app.add_subcommand("eval", "Measure quality: retrieval and likelihood, policies side by side");
  AddModel(eval_app, &eval.model);
  AddAttention(eval_app, &eval.attention, &eval.policies);
  AddEval(eval_app, &eval);

  TrainForecastArgs train_forecast;
  CLI::App* train_forecast_app =
      app.add_subcommand("train-forecast", "Train a Forecast: which blocks the next layer will need");
  AddTrainForecast(train_forecast_app, &train_forecast);

  SessionArgs session;
  CLI::App* session_app = app.add_subcommand("session", "What a session file holds, and whether it is whole");
  session_app->require_subcommand(1);
  CLI::App* session_inspect = session_app->add_subcommand("inspect", "Say what it holds, without reading its blocks");
  CLI::App* session_verify = session_app->add_subcommand("verify", "Read everything and compare the checksums");
  for (CLI::App* sub : {session_inspect, session_verify}) {
    sub->add_option("file", session.file, "Session file")->required();
    sub->add_flag("--json", session.json, "Print JSON");
  }

  ProfileArgs profile;
  CLI::App* profile_app =
      app.add_subcommand("profile", "Measure this model on this machine, so that --draft auto need not find out");
  AddModel(profile_app, &profile.model);
  AddAttention(profile_app, &profile.attention, nullptr);
  profile_app->add_option("-f,--file", profile.file, "Text to read, like that of later work; - is standard input")
      ->required();
  profile_app->add_option("--draft-model", profile.draft, "Also measure this small model with the same tokenizer");
  profile_app->add_option("-c,--contexts", profile.contexts, "Lengths in tokens to measure at")
      ->delimiter(',')
      ->check(Tokens(1));
  profile_app->add_option("--precision", profile.precision,
                          "Also compare the approximations of this class: reuse, shared, shared+reuse");
  profile_app->add_option("-r,--repetitions", profile.repeat, "Of every time, after one warm-up")
      ->check(WholeNumber(1, 1000));
  profile_app->add_option("--kv-type", profile.kv_type, "Type of cached keys and values: f32, f16, bf16");
  profile_app->add_option("-o,--output", profile.output, "File to write (default: one in the user's cache folder)");

  TraceViewArgs view;
  CLI::App* view_app = app.add_subcommand("trace-view", "Turn a trace into a self-contained web page");
  view_app->add_option("trace", view.trace, "File written by run --trace")->required();
  view_app->add_option("-o,--output", view.output, "Page to write (the trace's name with .html)");

  if (argc < 2) {
    std::string names;
    for (const CLI::App* sub : app.get_subcommands({})) names += (names.empty() ? "" : ", ") + sub->get_name();
    Warn("a command was expected: " + names + "; farsight --help says more");
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ConversionError& e) {  // of the numbers only fractions are converted unchecked
    Warn(std::string("a number was expected (") + e.what() + ")");
    return kExitUsage;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    Warn(e.what());
    return kExitUsage;
  }
  if (chat_on) run.chat = 1;
  if (chat_off) run.chat = 0;
  if (*run_app) return Run(run);
  if (*chat_app) return Chat(chat);
  if (*tokenize_app) return Tokenize(tokenize);
  if (*inspect_app) return Inspect(inspect);
  if (*bench_app) return Bench(bench);
  if (*eval_app) return Eval(eval);
  if (*profile_app) return Profile(profile);
  if (*train_forecast_app) return TrainForecast(train_forecast);
  if (*session_inspect) return SessionInspect(session);
  if (*session_verify) return SessionVerify(session);
  return TraceView(view);
}

}  // namespace
}  // namespace farsight::cli

int main(int argc, char** argv) {
  farsight::cli::HoldStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow further is then refused like one on a full disk
  try {
    const int code = farsight::cli::Main(argc, argv);
    std::cout.flush();
    const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
    if (written || farsight::cli::Interrupted()) return code;
    farsight::cli::Warn("standard output could not be written");
  } catch (const std::bad_alloc&) {
    farsight::cli::Warn("the machine has not enough memory for this");
  }
  return farsight::cli::kExitError;
}
