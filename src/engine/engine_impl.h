// What an engine is made of, for the files that implement it: engine.cc (the public calls), engine_step.cc (from what
// waits to a computed step), engine_deliver.cc (from a computed step to tokens and finished requests). It owns
// scheduler, runner and caches as siblings; none knows another.
#ifndef FARSIGHT_ENGINE_ENGINE_IMPL_H_
#define FARSIGHT_ENGINE_ENGINE_IMPL_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_plan.h"
#include "engine/engine_session.h"
#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "engine/speculator.h"
#include "engine/step_batch.h"
#include "farsight/engine.h"
#include "io/async_file.h"
#include "sample/sampler.h"
#include "sched/scheduler.h"
#include "text/detokenizer.h"

namespace farsight {

using Clock = std::chrono::steady_clock;
inline double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Engine::Impl {
  // A request on its way.
  struct Job {
    Id id = 0;
    Request request;
    DoneFn done;
    Sequence sequence;
    Detokenizer detokenizer;
    StopMatcher stops;
    Completion completion;
    int64_t limit = 0;  // most tokens to generate
    bool cancelled = false;
    Clock::time_point started, prefilled;
    bool started_once = false;
    int64_t dense_tokens = INT64_MAX;  // leading tokens whose rows all attended to everything
    bool drafts = false;               // known to the speculator
    Draft draft;                       // of the step at hand
    int64_t progress = 0;              // prompt tokens reported

    Job(Id id_, Request r, DoneFn d, BlockPool* pool, int block_tokens, const Tokenizer& tokenizer)
        : id(id_),
          request(std::move(r)),
          done(std::move(d)),
          sequence(id_, pool, block_tokens),
          detokenizer(tokenizer),
          stops(request.stop) {}

    bool WantsLogits(int64_t position) const { return request.on_logits && position >= request.decode_from; }
  };

  std::shared_ptr<Model> model;
  EngineOptions options;
  AttentionPlan plan;
  std::optional<ForecastInfo> forecast;  // of the projections that the runner has
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<EngineSession> session;  // its file outlives the runner's tiers
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<Speculator> speculator;  // where the options ask for drafts
  int draft_room = 0;                      // tokens of a draft that the runner has room for
  std::map<Id, std::unique_ptr<Job>> jobs;
  // Caches of finished sequences, the most recent first.
  struct Finished {
    SequenceCache cache;
    int64_t dense_tokens = 0;  // as of Job, at most the cache's length
  };
  std::list<Finished> finished;
  bool last_cancelled = false;  // the first of these
  Id next_id = 1;
  EngineStats stats;
  Batch batch;
  StepResult result;
  SamplerScratch scratch;
  ErrorMeter meter;  // of approximate steps

  Status Start();
  void SummariseAgain(const SequenceCache& cache);
  int SequenceTails() const;
  StatusOr<std::unique_ptr<AsyncFile>> OpenKvFile() const;
  Status OpenSession(const Forecast* projections);
  void TakeCachedPrefixes();
  void TakeCachedPrefix(Job* job);
  void MakeRoom();
  int OpenBlocks() const;
  void FillBatch(const StepPlan& step);
  void CloseBlocks(const PlannedRows& rows);
  Status RunStep();
  Status Compute(const StepPlan& step);
  std::vector<int32_t> NewBlocks(const StepPlan& step, const PlannedRows& rows) const;
  Status PrepareTiers(const StepPlan& step);
  Status Undo(const StepPlan& step);
  void RunOneByOne(const StepPlan& step);
  Status DraftTokens();
  std::span<const float> LogitsOf(int row) const;
  void Deliver(const StepPlan& step);
  StatusOr<Accepted> Choose(Job* job, const PlannedRows& rows, int first_row);
  void Observe(Job* job, const PlannedRows& rows, int first_row, const Accepted& chosen);
  bool Emit(Job* job, int32_t token, std::span<const float> logits);
  bool Stream(Job* job, int32_t token, const std::string& text, int64_t position);
  void CountBlocks(Job* job, const PlannedRows& rows, int first_row, const Accepted* accepted);
  void Finish(Job* job, FinishReason reason, Status status = OkStatus());
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_ENGINE_IMPL_H_
