// What the subcommands share: finding models, terminal output, reporting errors.
#ifndef FARSIGHT_CLI_COMMON_H_
#define FARSIGHT_CLI_COMMON_H_

#include <cstdint>
#include <memory>
#include <string>
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

// Prints "farsight: <sentence>" to standard error and returns the exit code for it.
int Fail(const Status& status);

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
