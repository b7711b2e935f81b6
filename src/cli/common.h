// What the subcommands share: finding models, terminal output, reporting errors.
#ifndef FARSIGHT_CLI_COMMON_H_
#define FARSIGHT_CLI_COMMON_H_

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "farsight/engine.h"

namespace farsight::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

struct ModelArgs {
  std::string model;
  int threads = 0;
  std::string isa = "best";
  bool reference = false;
};

// Attention flags; those not given keep the policy's own defaults.
struct AttentionArgs {
  std::string policy = "model";
  std::string phase;  // "decode", "all" or empty
  std::string forecast;
  AttentionOptions values;
};

// Closed standard streams get a place that refuses everything, so that no file opened later takes their number.
void HoldStandardStreams();

// To standard error. Where it is closed or full the words are lost and the work goes on.
template <typename... T>
void Tell(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}
// To standard output; whether all of it arrived is asked once, at the end of the program.
template <typename... T>
void Say(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
}

// What a file or a model says, as one line of bounded length that steers no terminal.
std::string OneLine(const std::string& text);
// "farsight: <sentence>" to standard error, as one line.
void Warn(const std::string& sentence);
// Warns of it and returns the exit code for it; FailUsage: that of wrong usage.
int Fail(const Status& status);
int FailUsage(const Status& status);

// A path, or the name of a model in $FARSIGHT_MODELS or the repository's models folder (".gguf" may be left out).
StatusOr<std::string> FindModel(const std::string& name);
StatusOr<std::shared_ptr<Model>> LoadModel(const ModelArgs& args);
StatusOr<AttentionOptions> ToOptions(const AttentionArgs& args);
// The Forecast file of --attention sparda: the one given, or MODEL.forecast.safetensors beside the model. Says so in
// one line, and returns nothing, where there is none.
std::string FindForecast(const AttentionArgs& args, const Model& model);

// Where keys and values lie.
struct KvArgs {
  std::string memory;  // a size ("64M"); empty: all are in memory
  std::string file;
  bool no_lookahead = false;
};
// A size in bytes with the suffix K, M, G or none, a fraction too: "64M", "1.5G". `flag` is for the message.
StatusOr<int64_t> ParseSize(const std::string& text, const std::string& flag);
Status SetKv(const KvArgs& args, EngineOptions* options);

// Submits and steps until the request is done; Ctrl-C cancels it at the next step.
StatusOr<Completion> Drive(Engine& engine, Request request);

// Reads a text file or standard input ("-"), at most 1 GiB.
StatusOr<std::string> ReadText(const std::string& path);

// A one-line progress bar on standard error; silent where that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { Clear(); }
  void Update(int64_t done, int64_t total);
  void Clear();

 private:
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  double started_ = 0;
  double last_ = 0;
};

// Ctrl-C sets a flag that running work polls; a second one ends the process at once.
void CatchInterrupt();
bool Interrupted();

double Now();  // seconds, monotonic
std::string HumanBytes(int64_t bytes);

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_COMMON_H_
