#include "engine/engine_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/env.h"
#include "io/hash.h"
#include "kv/tiers.h"

namespace farsight {

EngineSession::EngineSession(std::unique_ptr<SessionFile> file, ModelRunner* runner, int32_t store,
                             std::string settings)
    : file_(std::move(file)), runner_(runner), store_(store), settings_(std::move(settings)) {}

StatusOr<std::unique_ptr<EngineSession>> EngineSession::Open(const std::string& path, ModelRunner* runner,
                                                             const SessionHeader& expected,
                                                             const std::string& settings) {
  FS_CHECK(runner->tiers() != nullptr, "a session needs KV tiers");
  std::unique_ptr<SessionFile> file;
  if (FileExists(path)) {
    FS_ASSIGN_OR_RETURN(file, SessionFile::Open(path, FileAccess::kReadWrite, {}));
    FS_RETURN_IF_ERROR(file->CheckModel(expected));
    const SessionContent& content = file->content();
    if (!content.tokens.empty() && content.settings != settings) {
      return InvalidArgument("'" + path + "' was written with '" + content.settings + "'; this run uses '" + settings +
                             "'");
    }
  } else {
    FS_ASSIGN_OR_RETURN(file, SessionFile::Create(path, expected, {}));
  }
  FS_ASSIGN_OR_RETURN(const int32_t store, runner->tiers()->AddStore(&file->store()));
  return std::unique_ptr<EngineSession>(new EngineSession(std::move(file), runner, store, settings));
}

Status EngineSession::Load(BlockPool* pool, int64_t most, SequenceCache* cache) {
  const auto n = std::min(tokens(), most);
  if (n == 0) return OkStatus();
  std::vector<BlockCopy> copies;
  if (!cache->Append(std::span(file_->content().tokens).first(static_cast<size_t>(n)), &copies)) {
    return ResourceExhausted("the cache has no room for the " + std::to_string(n) + " tokens of '" + file_->path() +
                             "'");
  }
  KvTiers& tiers = *runner_->tiers();
  FS_RETURN_IF_ERROR(tiers.Follow(*pool));
  return LoadSequence(file_.get(), &tiers, store_, n, cache->blocks(),
                      [this](int32_t block, std::span<const std::byte> row) { runner_->PutSummaries(block, row); });
}

Status EngineSession::Save(const SequenceCache& cache) {
  return SaveSequence(file_.get(), runner_->tiers(), store_, cache.tokens(), cache.blocks(), settings_,
                      [this](int32_t block, std::span<std::byte> row) { runner_->GetSummaries(block, row); });
}

SessionHeader MakeSessionHeader(const ModelConfig& config, const std::string& model_name,
                                const std::string& fingerprint, const AttentionPlan& plan, DType kv_dtype,
                                const ModelRunner& runner) {
  SessionHeader h;
  h.geometry.layers = config.layers;
  h.geometry.heads = config.kv_heads * std::max(1, config.nsa.kv_sets);
  h.geometry.page_bytes = RoundUpToIo(static_cast<uint64_t>(runner.page_bytes()));
  h.geometry.summary_row_bytes = RoundUpToIo(static_cast<uint64_t>(runner.summary_row_bytes()));
  h.block_tokens = plan.options.block_size;
  h.head_dim = config.head_dim;
  h.kv_dtype = kv_dtype;
  h.page_layout = runner.page_layout();
  std::string layout;
  for (const ListSource s : plan.sources) layout += s == ListSource::kAll ? '-' : '+';
  for (const int n : {static_cast<int>(plan.summary.kind), plan.summary.kernel, plan.summary.stride, plan.summary.bits})
    layout += ' ' + std::to_string(n);
  h.summary_layout = static_cast<uint32_t>(Checksum(std::as_bytes(std::span(layout))));
  for (size_t i = 0; i < h.model_fingerprint.size() && 2 * i + 2 <= fingerprint.size(); ++i) {  // two digits a byte
    h.model_fingerprint[i] = static_cast<uint8_t>(std::stoul(fingerprint.substr(2 * i, 2), nullptr, 16));
  }
  h.model_name = model_name.substr(0, kMaxSessionName);
  return h;
}

std::string SessionSettings(const AttentionPlan& plan, const Forecast* forecast) {
  const AttentionOptions& o = plan.options;
  std::string s = std::string("attention ") + AttentionPolicyName(o.policy);
  if (!plan.Selects()) return s;
  const auto add = [&s](const char* name, int64_t n) { s += std::string(", ") + name + " " + std::to_string(n); };
  s += o.phase == SparsePhase::kAll ? " in all phases" : " in decode";
  add("top-k blocks", plan.top_k);
  if (plan.query_top_k > 0) add("query blocks", plan.query_top_k);
  add("init blocks", plan.init_blocks);
  add("local blocks", plan.local_blocks);
  add("dense below", o.dense_below);
  add("dense layers", o.dense_layers);
  if (forecast == nullptr) return s;
  uint64_t sum = 0;
  for (const auto& p : forecast->projections) sum = sum * 31 + Checksum(std::as_bytes(std::span(p)));
  return s + ", Forecast " + std::to_string(sum);
}

}  // namespace farsight
