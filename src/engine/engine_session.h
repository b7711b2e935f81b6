// The session of an engine: one sequence in a file (kv/session.h) that outlives the process. Its blocks are those of
// the engine's KV tiers: read when attention wants them, and written behind into the file itself.
#ifndef FARSIGHT_ENGINE_ENGINE_SESSION_H_
#define FARSIGHT_ENGINE_ENGINE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kv/sequence_cache.h"
#include "kv/session.h"
#include "model/config.h"
#include "model/runner.h"

namespace farsight {

class EngineSession {
 public:
  // Opens the file, or makes one. `settings`: all that decides what a token's keys and values are, beside the model; a
  // file that was written with others is refused, with both named. The runner has tiers, outlives this but for its own
  // destruction, and is the only user of the file in this process.
  static StatusOr<std::unique_ptr<EngineSession>> Open(const std::string& path, ModelRunner* runner,
                                                       const SessionHeader& expected, const std::string& settings);

  int32_t store() const { return store_; }  // of the tiers
  int64_t tokens() const { return static_cast<int64_t>(file_->content().tokens.size()); }
  // Fills an empty cache with the first tokens of the file, `most` of them at most. Reads no page.
  Status Load(BlockPool* pool, int64_t most, SequenceCache* cache);
  // Makes the sequence the content of the file. On an error the file is as it was.
  Status Save(const SequenceCache& cache);

 private:
  EngineSession(std::unique_ptr<SessionFile> file, ModelRunner* runner, int32_t store, std::string settings);

  std::unique_ptr<SessionFile> file_;
  ModelRunner* runner_;
  int32_t store_;
  std::string settings_;
};

// What the file of a session says of this model, cache and runner.
SessionHeader MakeSessionHeader(const ModelConfig& config, const std::string& model_name,
                                const std::string& fingerprint, const AttentionPlan& plan, DType kv_dtype,
                                const ModelRunner& runner);

// What decides how keys and values come about, beside the model, in words.
std::string SessionSettings(const AttentionPlan& plan, const Forecast* forecast);

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_ENGINE_SESSION_H_
