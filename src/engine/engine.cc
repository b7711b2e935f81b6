// The step loop: schedule, run, sample, stream. It owns scheduler, runner and caches as siblings; none knows another.
#include <algorithm>
#include <chrono>
#include <list>
#include <map>

#include "base/check.h"
#include "engine/engine_plan.h"
#include "engine/engine_session.h"
#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "engine/speculator.h"
#include "engine/step_batch.h"
#include "io/async_file.h"
#include "kv/tiers.h"
#include "sample/sampler.h"
#include "sched/scheduler.h"
#include "text/detokenizer.h"

namespace farsight {
namespace {

using Clock = std::chrono::steady_clock;
double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Logits of at most this many rows are computed in one step; requests that ask for every row get smaller chunks.
constexpr int kLogitRows = 64;

bool IsCopy(const StepPlan& step, int32_t block) {
  return std::any_of(step.copies.begin(), step.copies.end(), [block](const BlockCopy& c) { return c.to == block; });
}

}  // namespace

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
  int SequenceTails() const { return options.drafting == Drafting::kOff ? 1 : 2; }
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

Status Engine::Impl::Start() {
  FS_RETURN_IF_ERROR(Validate(options));
  const ModelConfig& config = model->impl().config;
  if (options.context_tokens == 0) options.context_tokens = config.context;
  std::optional<Forecast> loaded;
  if (!options.forecast.empty()) {
    FS_ASSIGN_OR_RETURN(loaded, LoadForecast(options.forecast, config, model->impl().loaded->fingerprint()));
    forecast = loaded->info;
  }
  FS_ASSIGN_OR_RETURN(plan, PlanFor(options.attention, config, forecast));
  options.attention = plan.options;
  const int64_t block = plan.options.block_size;
  const int64_t per_sequence = (options.context_tokens + block - 1) / block;
  int64_t blocks = per_sequence * options.max_sequences;
  if (options.kv_tokens > 0) blocks = (options.kv_tokens + block - 1) / block;
  if (blocks < per_sequence) {
    return InvalidArgument(
        "the cache must hold at least one sequence of the whole context: " + std::to_string(options.context_tokens) +
        " tokens, but was given " + std::to_string(options.kv_tokens));
  }
  if (blocks > INT32_MAX / 1024)
    return ResourceExhausted("a cache of " + std::to_string(blocks) + " blocks is too large");
  pool = std::make_unique<BlockPool>(static_cast<int32_t>(blocks));
  scheduler = std::make_unique<Scheduler>(
      Scheduler::Limits{.max_sequences = options.max_sequences, .prefill_chunk = options.prefill_chunk});
  RunnerOptions r;
  r.context_tokens = options.context_tokens;
  draft_room = options.drafting == Drafting::kOff ? 0 : options.draft_max;
  const int decode_rows = options.max_sequences * (1 + draft_room);
  r.max_rows = options.prefill_chunk + decode_rows;
  r.max_logit_rows = std::max(kLogitRows, decode_rows);
  r.num_blocks = static_cast<int32_t>(blocks);
  r.kv_dtype = ToDType(options.kv_type);
  r.tiers.memory_bytes = static_cast<uint64_t>(options.kv_memory);
  if (options.kv_memory == 0 && !options.session.empty()) r.tiers.memory_bytes = UINT64_MAX;
  r.tiers.open_file = [this] { return OpenKvFile(); };
  // A tree of guesses has a table for each of its paths; there are none where pages lie in a file.
  const bool trees = options.drafting != Drafting::kOff && r.tiers.memory_bytes == 0;
  r.max_seqs = options.max_sequences * (trees ? options.draft_max : 1);
  r.tiers.lookahead = options.lookahead;
  r.tiers.open_blocks = 2 * options.max_sequences * SequenceTails();  // of those that run and those that are kept
  r.plan = plan;
  r.scores = options.drafting != Drafting::kOff && options.precision != PrecisionClass::kStrict;
  r.forecast = loaded ? &*loaded : nullptr;
  auto made = model->impl().loaded->NewRunner(r);
  if (!made.ok()) {
    if (made.status().code() != StatusCode::kResourceExhausted || options.kv_memory > 0) return made.status();
    return ResourceExhausted(made.status().message() + " for a context of " + std::to_string(options.context_tokens) +
                             " tokens; ask for a smaller one");
  }
  runner = std::move(made).value();
  FS_ASSIGN_OR_RETURN(speculator, Speculator::Create(options, *model));
  stats.blocks_total = blocks;
  stats.kv_bytes = blocks * runner->bytes_per_block();
  if (KvTiers* tiers = runner->tiers(); tiers != nullptr) {
    stats.kv_memory = static_cast<int64_t>(tiers->num_slots()) * static_cast<int64_t>(tiers->options().page_bytes);
    stats.kv_file = tiers->store(0).file().engine();
  }
  if (!options.session.empty()) FS_RETURN_IF_ERROR(OpenSession(plan.Forecasts() ? &*loaded : nullptr));
  stats.attention = plan.options;
  stats.forecast = plan.Forecasts();
  stats.context_tokens = options.context_tokens;
  return OkStatus();
}

void Engine::Impl::SummariseAgain(const SequenceCache& cache) {
  for (int64_t first = 0; first < cache.length(); first += options.prefill_chunk) {
    batch.Clear();
    for (int64_t p = first; p < std::min(cache.length(), first + options.prefill_chunk); ++p) {
      batch.tokens.push_back(cache.tokens()[static_cast<size_t>(p)]);
      batch.positions.push_back(static_cast<int32_t>(p));
      batch.row_seq.push_back(0);
    }
    batch.block_tables.assign(cache.blocks().begin(), cache.blocks().end());
    batch.block_tables.resize(static_cast<size_t>(runner->max_blocks()), -1);
    batch.num_seqs = 1;
    runner->Summarise(batch);
  }
}

StatusOr<std::unique_ptr<AsyncFile>> Engine::Impl::OpenKvFile() const {
  if (model->impl().open_kv_file) return model->impl().open_kv_file();
  const std::string path = options.kv_file.empty() ? "/var/tmp/farsight-kv" : options.kv_file;
  FS_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  return OpenAsyncFile(file.TakeNameless(), path, {});
}

// The session's tokens become a finished sequence: a request that begins with them goes on from there.
Status Engine::Impl::OpenSession(const Forecast* projections) {
  const auto& m = model->impl();
  const SessionHeader header = MakeSessionHeader(m.config, m.info.name.empty() ? m.info.path : m.info.name,
                                                 m.loaded->fingerprint(), plan, ToDType(options.kv_type), *runner);
  FS_ASSIGN_OR_RETURN(session,
                      EngineSession::Open(options.session, runner.get(), header, SessionSettings(plan, projections)));
  SequenceCache cache(pool.get(), plan.options.block_size);
  FS_RETURN_IF_ERROR(session->Load(pool.get(), options.context_tokens, &cache));
  if (cache.length() > 0) finished.push_front({std::move(cache), 0});
  return OkStatus();
}

// For the requests that may start in this step: what they share with a finished one stays where it is until then.
void Engine::Impl::TakeCachedPrefixes() {
  int starting = options.max_sequences - scheduler->num_running();
  for (auto& [id, job] : jobs) {
    if (job->started_once || job->sequence.cache.length() > 0) continue;
    if (--starting < 0) return;
    TakeCachedPrefix(job.get());
    job->progress = job->completion.cached_tokens;
  }
}

// Reuses the longest common beginning with a finished sequence, of rows that nobody wants computed here. At least one
// prompt token is always computed: its logits are needed.
void Engine::Impl::TakeCachedPrefix(Job* job) {
  const Request& request = job->request;
  const auto& prompt = request.prompt;
  int64_t most = static_cast<int64_t>(prompt.size()) - 1;
  if (request.decode_from >= 0) most = std::min(most, request.decode_from);
  if (request.on_logits && request.decode_from < 0) most = 0;
  auto best = finished.end();
  int64_t best_length = 0;
  for (auto it = finished.begin(); it != finished.end(); ++it) {
    const auto cached = it->cache.tokens();
    const auto limit = std::min(cached.size(), static_cast<size_t>(most));
    const auto same =
        std::mismatch(cached.begin(), cached.begin() + static_cast<std::ptrdiff_t>(limit), prompt.begin());
    const auto length = static_cast<int64_t>(same.first - cached.begin());
    if (length > best_length) {
      best = it;
      best_length = length;
    }
  }
  if (best == finished.end()) return;
  job->sequence.cache = best->cache.Fork(best_length);
  if (best->dense_tokens < best_length) job->dense_tokens = best->dense_tokens;
  job->completion.cached_tokens = best_length;
}

// Finished caches give way before anything running has to.
void Engine::Impl::MakeRoom() {
  int64_t wanted = 0;
  for (const auto& [id, job] : jobs) {
    const int64_t rows = std::min<int64_t>(job->sequence.pending(), options.prefill_chunk) +
                         static_cast<int64_t>(job->sequence.draft.size());
    wanted += job->sequence.cache.BlocksNeeded(rows);
  }
  while (pool->num_free() < wanted && !finished.empty()) finished.pop_back();
  if (runner->tiers() == nullptr) return;
  while (OpenBlocks() > 2 * options.max_sequences * SequenceTails() && !finished.empty()) finished.pop_back();
}

// Blocks that are not full, at most: these stay in the memory of the tiers.
int Engine::Impl::OpenBlocks() const {
  size_t sequences = finished.size() + static_cast<size_t>(options.max_sequences);
  for (const auto& [id, job] : jobs) {
    const bool waits = !job->started_once && job->sequence.cache.length() > 0;
    sequences += waits ? 1 : 0;
  }
  return static_cast<int>(sequences) * SequenceTails();
}

void Engine::Impl::FillBatch(const StepPlan& step) {
  batch.Clear();
  batch.copies = step.copies;
  for (const auto& r : step.rows) {
    Job& job = *jobs.at(r.sequence->id);
    const int64_t decode_from = job.request.decode_from >= 0 ? job.request.decode_from : job.sequence.prompt_tokens;
    const int first_row = batch.num_rows();
    AddRows(r, runner->max_blocks(), &batch);
    for (int i = 0; i < r.count; ++i) {
      const int64_t position = r.Position(i);
      const bool selects = plan.RowSelects(position, position >= decode_from);
      if (selects) job.dense_tokens = std::min(job.dense_tokens, position);
      batch.selects.push_back(selects ? 1 : 0);
      const bool last = position + 1 >= static_cast<int64_t>(r.sequence->tokens.size());
      if (job.WantsLogits(position) || (last && job.limit > 0)) batch.logit_rows.push_back(first_row + i);
    }
    CloseBlocks(r);
    batch.want_lists = batch.want_lists || static_cast<bool>(job.request.on_blocks);
  }
}

// Blocks of which every token is certain after the step, those of the step before that a draft had filled included.
void Engine::Impl::CloseBlocks(const PlannedRows& rows) {
  const int64_t block = plan.options.block_size;
  const auto blocks = rows.sequence->cache.blocks();
  const int64_t certain = rows.first + rows.count - static_cast<int64_t>(rows.sequence->draft.size());
  for (int64_t b = std::max<int64_t>(0, rows.first - options.draft_max - 1) / block; b < certain / block; ++b) {
    batch.full_blocks.push_back(blocks[static_cast<size_t>(b)]);
  }
  batch.open_blocks = OpenBlocks();
}

// Gives the step's blocks their places; where the first row of a sequence goes on in a block that was full or was read
// from a session, that block is brought to memory.
Status Engine::Impl::PrepareTiers(const StepPlan& step) {
  KvTiers& tiers = *runner->tiers();
  FS_RETURN_IF_ERROR(tiers.Follow(*pool));
  for (const auto& r : step.rows) {
    const auto blocks = r.sequence->cache.blocks();
    for (auto b = static_cast<size_t>(r.first / plan.options.block_size); session && b < blocks.size(); ++b) {
      // New blocks are written behind into the session itself.
      const bool fresh = static_cast<int64_t>(b) * plan.options.block_size >= r.first || IsCopy(step, blocks[b]);
      if (fresh && tiers.place(blocks[b]).store == 0) FS_RETURN_IF_ERROR(tiers.Begin(blocks[b], session->store()));
    }
    if (r.first % plan.options.block_size == 0) continue;
    const int32_t block = r.sequence->cache.blocks()[static_cast<size_t>(r.first / plan.options.block_size)];
    if (!tiers.Open(block)) FS_RETURN_IF_ERROR(tiers.Reopen(block));
  }
  return OkStatus();
}

Status Engine::Impl::Compute(const StepPlan& step) {
  if (runner->tiers() != nullptr) FS_RETURN_IF_ERROR(PrepareTiers(step));
  FillBatch(step);
  const VerifyMode* mode = speculator != nullptr ? speculator->mode() : nullptr;
  // A prompt's rows attend to what they chose; so where one is read beside drafts, those run exactly too.
  const bool approximates = mode != nullptr && !mode->is_exact() &&
                            std::all_of(step.rows.begin(), step.rows.end(), [](const auto& r) { return r.drafts(); });
  const bool measures = approximates && speculator->Measures();
  if (measures) {
    batch.want_lists = batch.want_scores = true;
    FS_RETURN_IF_ERROR(runner->Step(batch, &result));
    meter.Exact(batch, result, plan);
    batch.want_scores = false;
  }
  if (mode != nullptr) batch.group_rows = mode->group;
  for (const auto& r : step.rows) {
    if (approximates) Approximate(*mode, r.sequence->paths.depth, plan, &batch);
  }
  FS_RETURN_IF_ERROR(runner->Step(batch, &result));
  stats.select_seconds += result.select_seconds;
  if (measures) meter.Approximate(result);
  return OkStatus();
}

// After a step that failed: what it wrote is as if it had not been.
Status Engine::Impl::Undo(const StepPlan& step) {
  KvTiers& tiers = *runner->tiers();
  const int64_t block = plan.options.block_size;
  for (const auto& r : step.rows) {
    const auto blocks = r.sequence->cache.blocks();
    for (auto b = static_cast<size_t>(r.first / block); b < blocks.size(); ++b) {
      if (static_cast<int64_t>(b) * block < r.first && !IsCopy(step, blocks[b])) continue;  // written again
      FS_RETURN_IF_ERROR(tiers.Begin(blocks[b]));
    }
  }
  return OkStatus();
}

// A step with tiers failed: each of its sequences alone, so that only those fail that cannot go on.
void Engine::Impl::RunOneByOne(const StepPlan& step) {
  finished.clear();  // their blocks may be the broken ones, or what fills the disk
  const Status undone = Undo(step);
  for (const auto& r : step.rows) {
    StepPlan alone;
    alone.rows = {r};
    for (const auto& copy : step.copies) {
      const auto blocks = r.sequence->cache.blocks();
      if (std::find(blocks.begin(), blocks.end(), copy.to) != blocks.end()) alone.copies.push_back(copy);
    }
    const Status status = undone.ok() ? Compute(alone) : undone;
    if (status.ok()) {
      Deliver(alone);
    } else {
      Finish(jobs.at(r.sequence->id).get(), FinishReason::kError, status);
    }
  }
}

Status Engine::Impl::RunStep() {
  for (auto it = jobs.begin(); it != jobs.end();) {  // Finish erases
    Job* job = (it++)->second.get();
    if (job->cancelled) Finish(job, FinishReason::kCancelled);
  }
  if (jobs.empty()) return OkStatus();
  const auto started = Clock::now();
  if (speculator != nullptr) FS_RETURN_IF_ERROR(DraftTokens());
  TakeCachedPrefixes();
  MakeRoom();
  const StepPlan step = scheduler->Plan();
  for (Sequence* s : step.preempted) {
    ++jobs.at(s->id)->completion.preemptions;
    ++stats.preemptions;
  }
  if (step.rows.empty()) return Internal("no sequence could run: the cache is too small for the oldest one");
  const auto now = Clock::now();
  for (const auto& r : step.rows) {
    Job& job = *jobs.at(r.sequence->id);
    if (!job.started_once) job.started = now;
    job.started_once = true;
  }
  const auto submitted = Clock::now();
  Status computed = Compute(step);
  const double forward_seconds = Seconds(submitted, Clock::now());
  ++stats.steps;
  for (const auto& r : step.rows) stats.rows += r.count;
  if (computed.ok()) {
    Deliver(step);
  } else if (runner->tiers() != nullptr) {
    RunOneByOne(step);
  } else {
    return computed;
  }
  if (speculator != nullptr) speculator->FinishStep(1e6 * forward_seconds, 1e6 * Seconds(started, Clock::now()));
  return OkStatus();
}

// Guesses for every sequence that decodes. A request that wants the logits of every row gets plain steps.
Status Engine::Impl::DraftTokens() {
  std::vector<Speculator::Ask> asks;
  std::vector<Job*> asking;
  bool begun = false;  // a step in which a sequence begins says nothing of the others
  for (const auto& [id, job] : jobs) {
    Sequence& s = job->sequence;
    s.DropDraft();
    if (!s.decoding() || job->request.on_logits) continue;
    const auto length = static_cast<int64_t>(s.tokens.size());
    // The step emits one token more than it accepts, and no draft may pass the context.
    const int64_t left = job->limit - static_cast<int64_t>(job->completion.tokens.size()) - 1;
    const int64_t room = std::min({left, options.context_tokens - length, static_cast<int64_t>(options.draft_max)});
    if (room < 1) continue;
    if (!job->drafts) {
      FS_RETURN_IF_ERROR(speculator->Begin(id, s.tokens));
      begun = true;
    }
    job->drafts = true;
    asks.push_back({id, static_cast<int>(room), length});
    asking.push_back(job.get());
  }
  if (asks.empty()) return OkStatus();
  std::vector<Draft> drafts;
  FS_RETURN_IF_ERROR(speculator->Propose(asks, asks.size() == jobs.size() && !begun, &drafts));
  for (size_t i = 0; i < asking.size(); ++i) {
    const TokenTree& tree = drafts[i].tree;
    if (tree.num_drafted() > 0) {
      asking[i]->sequence.draft.assign(tree.tokens.begin() + 1, tree.tokens.end());
      if (!IsChain(tree)) asking[i]->sequence.draft_parents = tree.parents;
    }
    asking[i]->draft = std::move(drafts[i]);
  }
  return OkStatus();
}

// `accepted`: of a draft all rows count as read, but only those accepted are told to on_blocks.
void Engine::Impl::CountBlocks(Job* job, const PlannedRows& rows, int first_row, const Accepted* accepted) {
  const int kv_heads = model->impl().config.kv_heads;
  const int64_t layers = model->impl().config.layers;
  const int64_t decode_from = job->request.decode_from >= 0 ? job->request.decode_from : job->sequence.prompt_tokens;
  for (int i = 0; i < rows.count; ++i) {
    const int64_t position = rows.Position(i);
    if (position < decode_from) continue;
    const bool kept = accepted == nullptr || std::binary_search(accepted->path.begin(), accepted->path.end(), i);
    const int64_t visible = position / plan.options.block_size + 1;
    const int64_t dense = visible * kv_heads * (layers - static_cast<int64_t>(result.lists.size()));
    int64_t read = dense;
    job->completion.blocks_held += visible * layers * kv_heads;
    const size_t row = static_cast<size_t>(first_row) + static_cast<size_t>(i);
    size_t next = 0;  // of result.lists
    for (int l = 0; l < static_cast<int>(layers); ++l) {
      BlockTrace trace{position, l, visible, true, {}};
      if (next < result.lists.size() && result.lists[next].layer == l) {
        const auto& list = result.lists[next++];
        for (int h = 0; h < kv_heads; ++h) {
          const size_t pair = row * static_cast<size_t>(kv_heads) + static_cast<size_t>(h);
          const int32_t count = list.counts[pair];
          read += count < 0 ? visible : count;
          if (count >= 0 && !list.ids.empty()) {
            trace.dense = false;
            trace.blocks.push_back(
                list.ids.subspan(pair * static_cast<size_t>(plan.top_k), static_cast<size_t>(count)));
          }
        }
      }
      if (job->request.on_blocks && kept) job->request.on_blocks(trace);
    }
    job->completion.blocks_read += read;
    const int64_t window = model->impl().config.nsa.window;  // of a branch of its own
    if (window > 0) {
      const int64_t first = std::max<int64_t>(0, position - window + 1) / plan.options.block_size;
      read += (visible - first) * kv_heads * layers;
    }
    job->completion.kv_bytes_read += read * runner->page_bytes();
    // Pooled keys and sketches need not be read where every block is chosen anyway; compressed keys are attended to.
    if (visible > plan.top_k || plan.summary.kind == SummaryKind::kCompressed) {
      job->completion.kv_bytes_read +=
          visible * kv_heads * static_cast<int64_t>(result.lists.size()) * runner->summary_bytes();
    }
  }
}

void Engine::Impl::Deliver(const StepPlan& step) {
  int first_row = 0;
  for (const auto& r : step.rows) {
    Job* job = jobs.at(r.sequence->id).get();
    const auto chosen = Choose(job, r, first_row);
    const bool drafted = chosen.ok() && !job->sequence.draft.empty();
    CountBlocks(job, r, first_row, drafted ? &*chosen : nullptr);
    if (drafted) {
      ++job->completion.draft_steps;
      job->completion.drafted_tokens += static_cast<int64_t>(job->sequence.draft.size());
      const auto kept = static_cast<int>(chosen->path.size());
      job->completion.accepted_tokens += kept - 1;
      job->sequence.Commit(chosen->path.back(), kept);
    }
    job->sequence.DropDraft();
    if (chosen.ok()) {
      Observe(job, r, first_row, *chosen);
    } else {
      Finish(job, FinishReason::kError, chosen.status());
    }
    first_row += r.count;
  }
}

std::span<const float> Engine::Impl::LogitsOf(int row) const {
  const auto it = std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(), row);
  const auto vocab = static_cast<size_t>(model->impl().config.vocab);
  return result.logits.subspan(static_cast<size_t>(it - batch.logit_rows.begin()) * vocab, vocab);
}

// The tokens that a sequence gets from this step: none while its prompt is read, one, or what of a draft holds and one.
StatusOr<Accepted> Engine::Impl::Choose(Job* job, const PlannedRows& rows, int first_row) {
  const Sequence& s = job->sequence;
  const auto length = static_cast<int64_t>(s.tokens.size());
  if (rows.first + rows.count < length || job->limit == 0) return Accepted{};
  if (s.draft.empty()) {
    FS_ASSIGN_OR_RETURN(const int32_t token, Sample(LogitsOf(first_row + rows.count - 1), job->request.sampling,
                                                    s.tokens, static_cast<uint64_t>(length), scratch));
    return Accepted{{rows.count - 1}, {token}};
  }
  const auto vocab = static_cast<size_t>(model->impl().config.vocab);
  const float* logits = LogitsOf(first_row).data();  // rows of a sequence follow each other
  return speculator->Judge(job->draft, std::span(logits, static_cast<size_t>(rows.count) * vocab),
                           job->request.sampling, s.tokens, &scratch);
}

// What one sequence's rows of the step mean for its request, which may end here.
void Engine::Impl::Observe(Job* job, const PlannedRows& rows, int first_row, const Accepted& chosen) {
  const int64_t end = rows.first + rows.count;
  if (job->request.on_logits) {
    for (int i = 0; i < rows.count; ++i) {
      if (job->WantsLogits(rows.first + i)) job->request.on_logits(rows.first + i, LogitsOf(first_row + i));
    }
  }
  if (end > job->progress && job->progress < job->sequence.prompt_tokens) {
    job->progress = std::min(end, job->sequence.prompt_tokens);
    if (job->request.on_progress) job->request.on_progress(job->progress, job->sequence.prompt_tokens);
    if (job->progress == job->sequence.prompt_tokens) job->prefilled = Clock::now();
  }
  if (end < static_cast<int64_t>(job->sequence.tokens.size())) return;
  if (end > job->sequence.prompt_tokens) ++job->completion.decode_steps;
  if (job->limit == 0) return Finish(job, FinishReason::kLength);
  if (job->drafts) {
    speculator->Record(job->id, chosen);
    const Status seen = speculator->Observe(job->id, chosen.tokens);
    if (!seen.ok()) return Finish(job, FinishReason::kError, seen);
  }
  for (size_t i = 0; i < chosen.tokens.size(); ++i) {
    if (!Emit(job, chosen.tokens[i], LogitsOf(first_row + chosen.path[i]))) return;
  }
}

// One more token of the answer. False when it was the last: the job is gone.
bool Engine::Impl::Emit(Job* job, int32_t token, std::span<const float> logits) {
  const SamplingParams& sampling = job->request.sampling;
  const auto position = static_cast<int64_t>(job->sequence.tokens.size());
  if (model->impl().tokenizer->IsEnd(token) && !job->request.ignore_eos) {
    Finish(job, FinishReason::kStop);
    return false;
  }
  job->sequence.tokens.push_back(token);
  job->completion.tokens.push_back(token);
  if (sampling.top_logprobs >= 0) {
    auto logprobs = Logprobs(logits, token, sampling.top_logprobs, scratch);
    if (!logprobs.ok()) {
      Finish(job, FinishReason::kError, logprobs.status());
      return false;
    }
    job->completion.logprobs.push_back(std::move(*logprobs));
  }
  const std::string text = job->stops.Push(job->detokenizer.Push(token));
  if (!Stream(job, token, text, position)) {
    Finish(job, FinishReason::kCancelled);
    return false;
  }
  if (job->stops.matched()) {
    Finish(job, FinishReason::kStop);
    return false;
  }
  if (static_cast<int64_t>(job->completion.tokens.size()) >= job->limit) {
    Finish(job, FinishReason::kLength);
    return false;
  }
  return true;
}

bool Engine::Impl::Stream(Job* job, int32_t token, const std::string& text, int64_t position) {
  job->completion.text += text;
  return !job->request.on_token || job->request.on_token({token, text, position});
}

void Engine::Impl::Finish(Job* job, FinishReason reason, Status status) {
  Completion& c = job->completion;
  if (!job->stops.matched()) {
    const std::string rest = job->stops.Push(job->detokenizer.Flush()) + job->stops.Flush();
    if (!rest.empty()) (void)Stream(job, -1, rest, static_cast<int64_t>(job->sequence.tokens.size()));
  }
  c.finish_reason = reason;
  c.status = std::move(status);
  c.prompt_tokens = job->sequence.prompt_tokens;
  c.kv_bytes = static_cast<int64_t>(job->sequence.cache.blocks().size()) * runner->bytes_per_block();
  const auto now = Clock::now();
  if (job->started_once) {
    const bool read = job->progress >= job->sequence.prompt_tokens;
    c.prefill_seconds = Seconds(job->started, read ? job->prefilled : now);
    c.decode_seconds = read ? Seconds(job->prefilled, now) : 0;
  }
  scheduler->Remove(&job->sequence);
  if (job->drafts) speculator->End(job->id);
  // Given rows that selected as written ones do are not what a prompt would give; neither is anything after an error.
  SequenceCache& cache = job->sequence.cache;
  const int64_t dense = std::min(job->dense_tokens, cache.length());
  if (job->request.decode_from >= 0) cache.Truncate(dense);
  if (reason != FinishReason::kError && cache.length() > 0) {
    finished.push_front({std::move(cache), dense});
    last_cancelled = reason == FinishReason::kCancelled;
    while (static_cast<int>(finished.size()) > options.max_sequences) finished.pop_back();
  }
  DoneFn done = std::move(job->done);
  Completion completion = std::move(c);
  jobs.erase(job->id);
  if (done) done(std::move(completion));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() {
  if (impl_ == nullptr) return;
  impl_->jobs.clear();
  impl_->finished.clear();
}

StatusOr<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<Model> model, const EngineOptions& options) {
  FS_CHECK(model != nullptr, "an engine needs a model");
  auto impl = std::make_unique<Impl>();
  impl->model = std::move(model);
  impl->options = options;
  FS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

StatusOr<Engine::Id> Engine::Submit(Request request, DoneFn done) {
  Impl& e = *impl_;
  FS_RETURN_IF_ERROR(Validate(request.sampling));
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return InvalidArgument("the prompt is empty; at least one token was expected");
  if (prompt > e.options.context_tokens) {
    return InvalidArgument("the prompt has " + std::to_string(prompt) + " tokens, but the context holds " +
                           std::to_string(e.options.context_tokens));
  }
  const int64_t vocab = e.model->impl().config.vocab;
  for (const int32_t t : request.prompt) {
    if (t < 0 || t >= vocab) {
      return InvalidArgument("the prompt holds the token id " + std::to_string(t) + ", outside the vocabulary of " +
                             std::to_string(vocab));
    }
  }
  if (request.max_new_tokens < -1) {
    return InvalidArgument("max_new_tokens must be -1 (until the context is full) or more, not " +
                           std::to_string(request.max_new_tokens));
  }
  const Id id = e.next_id++;
  auto job = std::make_unique<Impl::Job>(id, std::move(request), std::move(done), e.pool.get(),
                                         e.plan.options.block_size, *e.model->impl().tokenizer);
  // The last token of a full context is sampled but never computed, so one more than there is room fits.
  const int64_t room = e.options.context_tokens - prompt + 1;
  job->limit = job->request.max_new_tokens < 0 ? room : std::min(room, job->request.max_new_tokens);
  job->sequence.tokens = job->request.prompt;
  job->sequence.prompt_tokens = prompt;
  if (job->request.on_logits)
    job->sequence.max_chunk = kLogitRows / e.options.max_sequences > 0 ? kLogitRows / e.options.max_sequences : 1;
  e.scheduler->Add(&job->sequence);
  e.jobs.emplace(id, std::move(job));
  return id;
}

void Engine::Cancel(Id id) {
  const auto it = impl_->jobs.find(id);
  if (it != impl_->jobs.end()) it->second->cancelled = true;
}

bool Engine::HasWork() const { return !impl_->jobs.empty(); }
Status Engine::Step() { return impl_->jobs.empty() ? OkStatus() : impl_->RunStep(); }

StatusOr<Completion> Engine::Generate(Request request) {
  std::optional<Completion> out;
  FS_ASSIGN_OR_RETURN(const Id id, Submit(std::move(request), [&out](Completion c) { out = std::move(c); }));
  while (!out) {
    if (Status s = Step(); !s.ok()) {
      impl_->jobs.at(id)->done = nullptr;
      impl_->Finish(impl_->jobs.at(id).get(), FinishReason::kError, s);
      return s;
    }
  }
  if (out->finish_reason == FinishReason::kError) return out->status;
  return std::move(*out);
}

Status Engine::SaveSession() {
  Impl& e = *impl_;
  if (e.session == nullptr || e.finished.empty()) return OkStatus();
  // What was broken off early must not take the place of more.
  if (e.last_cancelled && e.finished.front().cache.length() < e.session->tokens()) return OkStatus();
  return e.session->Save(e.finished.front().cache);
}

void Engine::DropCaches() { impl_->finished.clear(); }

Status Engine::SetAttention(const AttentionOptions& attention) {
  Impl& e = *impl_;
  if (HasWork()) return InvalidArgument("the attention policy can't change while a request is under way");
  if (e.runner->tiers() != nullptr) {
    return InvalidArgument("an engine whose keys and values lie in a file keeps its attention policy");
  }
  FS_ASSIGN_OR_RETURN(AttentionPlan plan, PlanFor(attention, e.model->impl().config, e.forecast));
  if (plan.options.block_size != e.plan.options.block_size) {
    return InvalidArgument("the cache has blocks of " + std::to_string(e.plan.options.block_size) + " tokens, not " +
                           std::to_string(plan.options.block_size));
  }
  FS_RETURN_IF_ERROR(e.runner->SetPlan(plan));
  const bool summaries_stay = e.plan.SharesSummaries(plan);
  e.plan = std::move(plan);
  e.options.attention = e.stats.attention = e.plan.options;
  e.stats.forecast = e.plan.Forecasts();
  e.stats.kv_bytes = e.stats.blocks_total * e.runner->bytes_per_block();
  for (auto& f : e.finished) f.cache.Truncate(f.dense_tokens);
  std::erase_if(e.finished, [](const Impl::Finished& f) { return f.cache.length() == 0; });
  if (summaries_stay) return OkStatus();
  for (const auto& f : e.finished) e.SummariseAgain(f.cache);
  return OkStatus();
}

Status Engine::SetDrafting(const EngineOptions& options) {
  Impl& e = *impl_;
  if (HasWork() || e.runner->tiers() != nullptr) {
    return InvalidArgument("the way of drafting can't change while a request is under way, nor over a file");
  }
  FS_ASSIGN_OR_RETURN(EngineOptions next, OtherDrafting(e.options, options, e.draft_room));
  FS_ASSIGN_OR_RETURN(e.speculator, Speculator::Create(next, *e.model));
  e.options = std::move(next);
  return OkStatus();
}

EngineStats Engine::stats() const {
  EngineStats s = impl_->stats;
  s.blocks_free = impl_->pool->num_free();
  if (impl_->session != nullptr) s.session_tokens = impl_->session->tokens();
  KvTiers* tiers = impl_->runner->tiers();
  for (int32_t l = 0; tiers != nullptr && l < tiers->options().layers; ++l) {
    const TierCounters& c = tiers->counters(l);
    const auto number = [](auto count) { return static_cast<int64_t>(count); };
    KvTierStats t{number(c.selected), number(c.hit), number(c.missed), number(c.bytes_read), number(c.bytes_written)};
    t.waited_seconds = 1e-9 * static_cast<double>(c.waited_ns);
    t.hidden_seconds = 1e-9 * static_cast<double>(c.hidden_ns);
    s.kv_tiers.push_back(t);
  }
  if (impl_->speculator != nullptr) {
    s.strategies = impl_->speculator->Used();
    s.profile_fault = impl_->speculator->profile_fault();
    s.approximation = impl_->meter.error();
  }
  return s;
}

}  // namespace farsight
