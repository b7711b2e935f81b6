#include "train/forecast_task.h"

namespace farsight {

const char* ForecastTeacherName(ForecastTeacher teacher) {
  return teacher == ForecastTeacher::kModel ? "model" : "fine";
}

StatusOr<ForecastTeacher> ParseForecastTeacher(const std::string& name) {
  if (name == "model") return ForecastTeacher::kModel;
  if (name == "fine") return ForecastTeacher::kFine;
  return InvalidArgument("unknown teacher '" + name + "': expected model or fine");
}

Status Validate(const ForecastTask& t) {
  if (t.keys != SummaryKind::kPooledKeys && t.keys != SummaryKind::kSketch) {
    return InvalidArgument("a Forecast needs pooled keys or token sketches to score");
  }
  if (t.kv_heads < 1 || t.heads < t.kv_heads || t.heads % t.kv_heads != 0 || t.head_dim < 1) {
    return InvalidArgument("a Forecast needs query heads that are a multiple of the KV heads, not " +
                           std::to_string(t.heads) + " and " + std::to_string(t.kv_heads));
  }
  if (t.queries != 1 && t.queries != t.group()) {
    return InvalidArgument("a KV head has one Forecast or one for each of its " + std::to_string(t.group()) +
                           " query heads, not " + std::to_string(t.queries));
  }
  if (t.block_tokens < 1 || t.init_blocks < 0 || t.local_blocks < 0) {
    return InvalidArgument("blocks of " + std::to_string(t.block_tokens) + " tokens, " + std::to_string(t.init_blocks) +
                           " initial and " + std::to_string(t.local_blocks) + " local ones are impossible");
  }
  if (t.pooled() &&
      (t.stride < 1 || t.block_tokens % t.stride != 0 || t.kernel < t.stride || t.kernel % t.stride != 0)) {
    return InvalidArgument("pooled windows of " + std::to_string(t.kernel) + " tokens every " +
                           std::to_string(t.stride) + " do not fit blocks of " + std::to_string(t.block_tokens));
  }
  if (!t.pooled() && t.bits != 1 && t.bits != 2 && t.bits != 4) {
    return InvalidArgument("sketches have 1, 2 or 4 bits, not " + std::to_string(t.bits));
  }
  if (FreePicks(t) < 1) {
    return InvalidArgument("a list of " + std::to_string(t.top_k) + " blocks is filled by the " +
                           std::to_string(t.init_blocks) + " initial and " + std::to_string(t.local_blocks + 1) +
                           " newest ones, so there is nothing to forecast; choose more blocks");
  }
  return OkStatus();
}

}  // namespace farsight
