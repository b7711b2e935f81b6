// The subcommands. Each takes its parsed arguments and returns the exit code.
#ifndef FARSIGHT_CLI_COMMANDS_H_
#define FARSIGHT_CLI_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/eval.h"

namespace farsight::cli {

struct RunArgs {
  ModelArgs model;
  AttentionArgs attention;
  SamplingParams sampling;
  std::string file, prompt, system;
  int chat = -1;  // 1 --chat, 0 --no-chat, -1 where the model has a template
  int64_t max_tokens = -1;
  int64_t context = 0;
  int prefill_chunk = 512;
  std::string kv_type = "f16";
  KvArgs kv;
  std::string session;
  std::string draft = "auto";
  int draft_max = 31;
  std::vector<int> draft_tree;
  int draft_group = 64;
  bool draft_breadth_first = false;
  std::string precision = "strict";
  std::string profile;  // of the planner; empty: DefaultProfile()
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json = false;
  std::string trace;
};
int Run(const RunArgs& args);
int Chat(const RunArgs& args);

struct TokenizeArgs {
  std::string model, file, prompt;
  bool special = false, bos = false, ids = false;
};
int Tokenize(const TokenizeArgs& args);

struct InspectArgs {
  ModelArgs model;
  bool tensors = false, json = false;
};
int Inspect(const InspectArgs& args);

struct BenchArgs {
  ModelArgs model;
  AttentionArgs attention;
  std::vector<std::string> policies = {"dense"};
  std::vector<int> prompt = {512}, generate = {128}, depth = {0}, threads, parallel = {1};
  int repeat = 5;
  int prefill_chunk = 512;
  std::string kv_type = "f16";
  std::vector<std::string> kv_memory = {"all"};  // sizes, or "all"
  std::vector<std::string> lookahead = {"on"};   // "on", "off"
  std::string kv_file;
  std::string file;  // text to read and go on from; empty: random tokens
  std::string output = "md";
};
int Bench(const BenchArgs& args);

struct SessionArgs {
  std::string file;
  bool json = false;
};
int SessionInspect(const SessionArgs& args);
int SessionVerify(const SessionArgs& args);

struct ProfileArgs {
  ModelArgs model;
  AttentionArgs attention;
  std::string file, draft, output;
  std::string precision = "strict";
  std::string kv_type = "f16";
  std::vector<int64_t> contexts = {512, 4096, 16384};
  int repeat = 5;
};
int Profile(const ProfileArgs& args);
// Where the profile of a model with these options is written, and looked for: a file of the user's cache folder, by
// what it is of. Empty where the environment names no such folder.
std::string DefaultProfile(const Model& model, const EngineOptions& options);

struct TraceViewArgs {
  std::string trace, output;
};
int TraceView(const TraceViewArgs& args);

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_COMMANDS_H_
