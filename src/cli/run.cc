// farsight run and farsight chat.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/trace.h"
#include "io/env.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

StatusOr<EngineOptions> EngineOptionsOf(const RunArgs& args) {
  EngineOptions o;
  o.context_tokens = args.context;
  o.prefill_chunk = args.prefill_chunk;
  FS_ASSIGN_OR_RETURN(o.kv_type, ParseKvType(args.kv_type));
  FS_RETURN_IF_ERROR(SetKv(args.kv, &o));
  o.session = args.session;
  FS_ASSIGN_OR_RETURN(o.attention, ToOptions(args.attention));
  o.draft_max = args.draft_max;
  o.draft_tree = args.draft_tree;
  o.draft_group = args.draft_group;
  o.draft_breadth_first = args.draft_breadth_first;
  FS_ASSIGN_OR_RETURN(o.precision, ParsePrecisionClass(args.precision));
  FS_ASSIGN_OR_RETURN(o.drafting, ParseDrafting(args.draft.substr(0, args.draft.find(':'))));
  FS_RETURN_IF_ERROR(Validate(args.sampling));
  return o;
}

// What the options need of other files: the draft model and the Forecast.
Status LoadCompanions(const RunArgs& args, const Model& model, EngineOptions* o) {
  o->forecast = FindForecast(args.attention, model);
  o->profile = args.profile;
  if (args.profile.empty() && (o->drafting == Drafting::kAuto || o->precision != PrecisionClass::kStrict)) {
    o->profile = DefaultProfile(model, *o);
    if (!FileExists(o->profile)) o->profile.clear();
  }
  const size_t colon = args.draft.find(':');
  if (colon == std::string::npos) return OkStatus();
  ModelArgs draft = args.model;
  draft.model = args.draft.substr(colon + 1);
  draft.threads = 1;  // it is small, and two pools of waiting threads would take each other's processors
  FS_ASSIGN_OR_RETURN(o->draft_model, LoadModel(draft));
  return OkStatus();
}

// File first, then the question: one text, and in chat mode one user turn.
StatusOr<std::string> UserText(const RunArgs& args) {
  std::string text;
  if (!args.file.empty()) {
    FS_ASSIGN_OR_RETURN(text, ReadText(args.file));
    if (!args.prompt.empty()) text += "\n\n";
  }
  return text + args.prompt;
}

StatusOr<std::vector<int32_t>> PromptTokens(const RunArgs& args, const Model& model, bool chat) {
  FS_ASSIGN_OR_RETURN(const std::string text, UserText(args));
  if (text.empty()) return InvalidArgument("'" + args.file + "' holds no text");
  if (!chat) return model.Tokenize(text);
  std::vector<ChatMessage> messages;
  if (!args.system.empty()) messages.push_back({"system", args.system});
  messages.push_back({"user", text});
  return model.ApplyChatTemplate(messages);
}

KvTierStats Total(const EngineStats& stats) {
  KvTierStats sum;
  for (const auto& t : stats.kv_tiers) {
    sum.selected += t.selected;
    sum.hit += t.hit;
    sum.missed += t.missed;
    sum.bytes_read += t.bytes_read;
    sum.bytes_written += t.bytes_written;
    sum.waited_seconds += t.waited_seconds;
    sum.hidden_seconds += t.hidden_seconds;
  }
  return sum;
}

Json ToJson(const KvTierStats& t) {
  return {{"selected", t.selected},
          {"hit", t.hit},
          {"missed", t.missed},
          {"bytes_read", t.bytes_read},
          {"bytes_written", t.bytes_written},
          {"waited_seconds", t.waited_seconds},
          {"hidden_seconds", t.hidden_seconds}};
}

// The most that the process ever had resident, mapped files included.
int64_t PeakMemory() {
  rusage usage = {};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} * 1024 : 0;
}

std::string Summary(const Completion& c, const EngineStats& stats) {
  const int64_t read = c.read_tokens - c.cached_tokens;
  const double speed = static_cast<double>(read) / std::max(c.prefill_seconds, 1e-9);
  std::string s = fmt::format("read {}{} tokens in {:.2f} s ({:.0f} tok/s)", read,
                              c.read_tokens < c.prompt_tokens ? fmt::format(" of {}", c.prompt_tokens) : "",
                              c.prefill_seconds, speed);
  if (c.cached_tokens > 0) s += fmt::format(", {} from the cache", c.cached_tokens);
  if (c.decode_steps > 0) {
    s += fmt::format("; wrote {} in {:.2f} s ({:.1f} tok/s)", c.tokens.size(), c.decode_seconds,
                     static_cast<double>(c.decode_steps + c.accepted_tokens) / std::max(c.decode_seconds, 1e-9));
    if (c.drafted_tokens > 0) {
      s += fmt::format(", {:.2f} a step, {} of {} guesses kept",
                       static_cast<double>(c.decode_steps + c.accepted_tokens) / static_cast<double>(c.decode_steps),
                       c.accepted_tokens, c.drafted_tokens);
    }
    if (const ApproximationError& e = stats.approximation; e.rows > 0) {
      s += fmt::format(", over {} rows {:.2f} % other best tokens, KL {:.2g}, lists off by {:.3f} (p99 {:.3f})", e.rows,
                       100 * e.flip_rate, e.kl_mean, e.substitution_mean, e.substitution_p99);
    }
    if (!stats.strategies.empty()) s += fmt::format(", mostly {}", stats.strategies[0].strategy);
  }
  s += fmt::format("; KV {}", HumanBytes(c.kv_bytes));
  if (c.blocks_held > 0) {
    s += fmt::format("; blocks read {} of {} ({:.1f} %)", c.blocks_read, c.blocks_held,
                     100.0 * static_cast<double>(c.blocks_read) / static_cast<double>(c.blocks_held));
  }
  if (stats.kv_memory > 0) {
    const KvTierStats t = Total(stats);
    s += fmt::format("; {} of it in memory: {:.1f} % of {} pages missed, {} read, {} written, waited {:.2f} s",
                     HumanBytes(std::min(stats.kv_memory, c.kv_bytes)),
                     100.0 * static_cast<double>(t.missed) / std::max(1.0, static_cast<double>(t.selected)), t.selected,
                     HumanBytes(t.bytes_read), HumanBytes(t.bytes_written), t.waited_seconds);
  }
  if (stats.session_tokens > 0) s += fmt::format("; session of {} tokens", stats.session_tokens);
  return s;
}

Json ToJson(const Completion& c, const Model& model, const Engine& engine) {
  const EngineStats stats = engine.stats();
  Json j;
  j["text"] = c.text;
  j["token_ids"] = c.tokens;
  j["prompt_tokens"] = c.prompt_tokens;
  j["read_tokens"] = c.read_tokens;
  j["cached_tokens"] = c.cached_tokens;
  j["generated_tokens"] = c.tokens.size();
  j["finish_reason"] = FinishReasonName(c.finish_reason);
  j["prefill_seconds"] = c.prefill_seconds;
  j["decode_seconds"] = c.decode_seconds;
  j["decode_steps"] = c.decode_steps;
  j["drafted_tokens"] = c.drafted_tokens;
  j["accepted_tokens"] = c.accepted_tokens;
  Json used = Json::array();
  for (const StrategyUse& u : stats.strategies) used.push_back({{"strategy", u.strategy}, {"steps", u.steps}});
  j["strategies"] = used;
  const ApproximationError& e = stats.approximation;
  j["approximation"] = {{"rows", e.rows},
                        {"flip_rate", e.flip_rate},
                        {"kl_mean", e.kl_mean},
                        {"substitution_mean", e.substitution_mean},
                        {"substitution_p99", e.substitution_p99}};
  j["kv_bytes"] = c.kv_bytes;
  j["blocks_held"] = c.blocks_held;
  j["blocks_read"] = c.blocks_read;
  j["kv_bytes_read"] = c.kv_bytes_read;
  j["select_seconds"] = stats.select_seconds;
  j["peak_memory_bytes"] = PeakMemory();
  if (stats.kv_memory > 0) {
    Json layers = Json::array();
    for (const auto& t : stats.kv_tiers) layers.push_back(ToJson(t));
    j["kv_tiers"] = {{"memory_bytes", stats.kv_memory},
                     {"file", stats.kv_file},
                     {"total", ToJson(Total(stats))},
                     {"layers", layers}};
  }
  j["attention"] = AttentionPolicyName(stats.attention.policy);
  j["top_k_blocks"] =
      stats.attention.policy == AttentionPolicy::kDense ? Json(nullptr) : Json(stats.attention.top_k_blocks);
  j["block_size"] = stats.attention.block_size;
  j["context"] = stats.context_tokens;
  j["model"] = model.info().path;
  j["backend"] = model.info().backend;
  j["threads"] = model.threads();
  if (!c.logprobs.empty()) {
    Json list = Json::array();
    for (const auto& l : c.logprobs) {
      Json top = Json::array();
      for (const auto& t : l.top) top.push_back({{"token", t.token}, {"logprob", t.logprob}});
      list.push_back({{"token", l.token}, {"logprob", l.logprob}, {"top", top}});
    }
    j["logprobs"] = list;
  }
  return j;
}

Request MakeRequest(const RunArgs& args, std::vector<int32_t> prompt, ProgressBar* bar) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling = args.sampling;
  r.max_new_tokens = args.max_tokens;
  r.stop = args.stop;
  r.ignore_eos = args.ignore_eos;
  r.on_progress = [bar](int64_t done, int64_t total) {
    bar->Update(done, total);
    if (done == total) bar->Clear();
  };
  return r;
}

void TellProfileFault(const Engine& engine) {
  const std::string fault = engine.stats().profile_fault;
  if (!fault.empty()) Warn(fault);
}

}  // namespace

int Run(const RunArgs& args) {
  CatchInterrupt();
  if (args.file.empty() && args.prompt.empty()) {
    return FailUsage(InvalidArgument("there is nothing to read: give a file with -f, a prompt with -p, or both"));
  }
  auto options = EngineOptionsOf(args);
  if (!options.ok()) {
    return FailUsage(options.status());
  }
  if (!args.trace.empty()) {
    if (const Status s = CheckWritable(args.trace); !s.ok()) return Fail(s);  // not only after the answer
  }
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  if (const Status s = LoadCompanions(args, **model, &*options); !s.ok()) return Fail(s);
  const bool chat = args.chat == 1 || (args.chat < 0 && (*model)->info().has_chat_template);
  if (const std::string& why = (*model)->info().chat_template_error; args.chat < 0 && !why.empty()) {
    Warn("the model's chat template cannot be used (" + why + "): the text is completed as it is");
  }
  auto prompt = PromptTokens(args, **model, chat);
  if (!prompt.ok()) return Fail(prompt.status());
  auto engine = Engine::Create(*model, *options);
  if (!engine.ok()) return Fail(engine.status());
  TellProfileFault(**engine);

  ProgressBar bar("reading");
  TraceWriter trace;
  Request request = MakeRequest(args, std::move(*prompt), &bar);
  if (!args.trace.empty()) {
    trace.Begin(request.prompt, (*engine)->stats().attention.block_size);
    request.on_blocks = [&trace](const BlockTrace& b) { trace.Add(b); };
  }
  if (!args.json) {
    request.on_token = [](const TokenEvent& e) {
      std::cout << e.text << std::flush;
      return std::cout.good() && !Interrupted();
    };
  }
  auto done = Drive(**engine, std::move(request));
  bar.Clear();
  if (!done.ok()) return Fail(done.status());
  const Status saved = (*engine)->SaveSession();
  if (args.json) {
    std::cout << ToJson(*done, **model, **engine).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    if (!done->text.empty() && done->text.back() != '\n') std::cout << "\n";
    std::cout.flush();
    Tell("{}\n", Summary(*done, (*engine)->stats()));
  }
  if (!args.trace.empty()) {
    if (const Status s = trace.Write(args.trace, **model, done->tokens); !s.ok()) return Fail(s);
  }
  if (!saved.ok()) return Fail(saved);
  return done->finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

int Chat(const RunArgs& args) {
  CatchInterrupt();
  auto options = EngineOptionsOf(args);
  if (!options.ok()) {
    return FailUsage(options.status());
  }
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  if (const Status s = LoadCompanions(args, **model, &*options); !s.ok()) return Fail(s);
  auto engine = Engine::Create(*model, *options);
  if (!engine.ok()) return Fail(engine.status());
  TellProfileFault(**engine);
  std::vector<ChatMessage> messages;
  if (!args.system.empty()) messages.push_back({"system", args.system});
  std::string file;
  if (!args.file.empty()) {
    auto text = ReadText(args.file);
    if (!text.ok()) return Fail(text.status());
    file = std::move(*text) + "\n\n";
  }
  const bool terminal = isatty(STDIN_FILENO) != 0;
  std::string first = args.prompt;
  for (;;) {
    std::string line;
    if (!first.empty()) {
      line = std::exchange(first, {});
    } else {
      if (terminal) Tell("> ");
      if (!std::getline(std::cin, line)) break;
      if (line.empty()) continue;
    }
    messages.push_back({"user", std::exchange(file, {}) + line});
    auto prompt = (*model)->ApplyChatTemplate(messages);
    if (!prompt.ok()) return Fail(prompt.status());
    ProgressBar bar("reading");
    Request request = MakeRequest(args, std::move(*prompt), &bar);
    request.on_token = [](const TokenEvent& e) {
      std::cout << e.text << std::flush;
      return std::cout.good() && !Interrupted();
    };
    auto done = Drive(**engine, std::move(request));
    bar.Clear();
    if (!done.ok()) return Fail(done.status());
    std::cout << std::endl;
    if (const Status s = (*engine)->SaveSession(); !s.ok()) return Fail(s);
    Tell("{}\n", Summary(*done, (*engine)->stats()));
    if (done->finish_reason == FinishReason::kCancelled) return kExitInterrupted;
    messages.push_back({"assistant", done->text});
  }
  return Interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace farsight::cli
