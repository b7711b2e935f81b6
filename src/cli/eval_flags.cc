#include <CLI/CLI.hpp>

#include "cli/eval.h"
#include "cli/flags.h"

namespace farsight::cli {

void AddEval(CLI::App* app, EvalArgs* a) {
  app->remove_option(app->get_option("--top-k-blocks"));
  app->remove_option(app->get_option("--sketch-bits"));
  app->add_option("--top-k-blocks", a->top_k_blocks, "Blocks a query attends to, forced ones included; several budgets")
      ->delimiter(',')
      ->check(Tokens(1));
  app->add_option("--sketch-bits", a->sketch_bits, "sketch: bits a channel, 1, 2 or 4; several")
      ->delimiter(',')
      ->check(WholeNumber(1, 4));
  app->add_option("task", a->task,
                  "needle, multikey, multineedle, vartrack, copy (retrieval); bpb, perplexity, compare (likelihood)")
      ->required();
  app->add_option("-f,--file,--text", a->files, "Text to read or to hide needles in; may be repeated (a built-in book)")
      ->allow_extra_args(false);
  app->add_option("-c,--ctx-size", a->context, "Context in tokens (0: what the task needs)")->check(Tokens(0));
  app->add_option("--tokens", a->tokens, "bpb, perplexity, compare: tokens to score")
      ->check(WholeNumber<int64_t>(1, int64_t{1} << 40));
  app->add_option("--prefix", a->prefix, "bpb, perplexity, compare: tokens read densely before the scored ones")
      ->check(WholeNumber<int64_t>(0, int64_t{1} << 40));
  const auto list = [app](const char* name, std::vector<int64_t>* values, const char* help, int64_t low) {
    app->add_option(name, *values, help)->delimiter(',')->check(Tokens(low));
  };
  list("--lengths", &a->lengths, "Prompt lengths in tokens", 1);
  list("--keys", &a->keys, "multikey: statements with similar keys", 1);
  list("--needles", &a->needles, "multineedle: statements, each asked for", 1);
  list("--hops", &a->hops, "vartrack: assignments between the value and the name asked for", 0);
  list("--gaps", &a->gaps, "copy: tokens between a line and its copy", 0);
  app->add_option("--depths", a->depths, "needle: depths, evenly spread")->check(WholeNumber(1, 100));
  app->add_option("--at", a->at, "needle: these depths instead, in percent")
      ->delimiter(',')
      ->check(WholeNumber(0, 100));
  app->add_option("--samples", a->samples, "Samples of each cell")->check(WholeNumber(1, 100000));
  app->add_option("--form", a->form, "completion, or question (the default where the model has a chat template)");
  app->add_option("--seed", a->seed, "Seed of everything that is made up")->check(Seed());
  app->add_option("--prefill-chunk", a->prefill_chunk, "Prompt tokens of one step")->check(WholeNumber(1, 65536));
  app->add_option("--kv-type", a->kv_type, "Type of cached keys and values: f32, f16, bf16");
  app->add_option("-o,--output", a->output, "md, json or csv");
  app->add_flag("--json", a->json, "The same as -o json");
  app->add_option("--svg", a->svg, "Retrieval tasks: also draw the grid into this file");
}

}  // namespace farsight::cli
