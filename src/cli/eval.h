// farsight eval: its arguments and flags.
#ifndef FARSIGHT_CLI_EVAL_H_
#define FARSIGHT_CLI_EVAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common.h"

namespace CLI {
class App;
}  // namespace CLI

namespace farsight::cli {

struct EvalArgs {
  ModelArgs model;
  AttentionArgs attention;
  std::vector<std::string> policies = {"model"};
  std::vector<int> top_k_blocks, sketch_bits;  // empty: the defaults of AttentionOptions
  std::string task;
  std::vector<std::string> files;  // empty: the built-in text
  int64_t context = 0;             // 0: what the task needs
  int64_t tokens = 2048;           // compare, perplexity, bpb: tokens scored
  int64_t prefix = 0;              // compare, perplexity: tokens read densely before the scored ones
  std::vector<int64_t> lengths = {1024, 2048, 4096, 7168};
  std::vector<int64_t> keys = {4}, needles = {4}, hops = {0, 1, 2}, gaps = {256, 1024, 4096};
  int depths = 10, samples = 10;
  std::vector<int64_t> at;
  std::string form;  // "completion", "question" or empty: question where the model has a chat template
  uint64_t seed = 1;
  int prefill_chunk = 512;
  std::string kv_type = "f16";
  std::string output = "md";
  bool json = false;  // the same as output = "json"
  std::string svg;    // needle: write a picture here
};

// Adds the flags that only this command has, and makes lists of --top-k-blocks and --sketch-bits. The model and
// attention flags are there already.
void AddEval(CLI::App* app, EvalArgs* args);
int Eval(const EvalArgs& args);

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_EVAL_H_
