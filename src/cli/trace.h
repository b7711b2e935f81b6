// The trace file: which blocks each generated token attended, by layer and KV head, with the text of the blocks.
#ifndef FARSIGHT_CLI_TRACE_H_
#define FARSIGHT_CLI_TRACE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "farsight/engine.h"

namespace farsight::cli {

class TraceWriter {
 public:
  void Begin(std::vector<int32_t> prompt, int block_size);
  void Add(const BlockTrace& trace);
  Status Write(const std::string& path, const Model& model, const std::vector<int32_t>& generated) const;

 private:
  std::vector<int32_t> prompt_;
  int block_size_ = 64;
  nlohmann::ordered_json steps_ = nlohmann::ordered_json::array();
  int64_t position_ = -1;
};

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_TRACE_H_
