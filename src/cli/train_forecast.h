// farsight train-forecast: its flags and the command.
#ifndef FARSIGHT_CLI_TRAIN_FORECAST_H_
#define FARSIGHT_CLI_TRAIN_FORECAST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common.h"

namespace CLI {
class App;
}

namespace farsight::cli {

struct TrainForecastArgs {
  ModelArgs model;
  std::vector<std::string> text, val_text;
  std::string output;
  AttentionArgs attention;  // the policy whose keys the Forecast will score; "model": as trained, sketches where dense
  std::string teacher = "fine";
  std::string init = "query";
  std::string heads = "kv";
  std::string type = "bf16";
  int64_t seq_len = 4096;
  int64_t rows = 256;
  int64_t steps = 200, batch = 1;
  int64_t val_sequences = 2;
  int64_t fit_sequences = 16;
  int64_t eval_every = 50, save_every = 50;
  double lr = 1e-3, lr_end = 0.1;
  int64_t warmup = 10;
  uint64_t seed = 42;
  bool resume = false;
  bool json = false;
};

void AddTrainForecast(CLI::App* app, TrainForecastArgs* args);
int TrainForecast(const TrainForecastArgs& args);

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_TRAIN_FORECAST_H_
