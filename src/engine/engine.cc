// The public calls of an engine: made, asked, stopped, changed, told. A step itself is in engine_step.cc.
#include <algorithm>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

// Logits of at most this many rows are computed in one step; requests that ask for every row get smaller chunks.
constexpr int kLogitRows = 64;

}  // namespace

Status Engine::Impl::Start() {
  FS_RETURN_IF_ERROR(Validate(options));
  const ModelConfig& config = model->impl().config;
  if (options.context_tokens == 0) options.context_tokens = config.context;
  FS_ASSIGN_OR_RETURN(const PlanAndForecast with, PlanOf(*model, options));
  const std::optional<Forecast>& loaded = with.forecast;
  if (loaded) forecast = loaded->info;
  plan = with.plan;
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
  // A tree of guesses has a table for each of its paths.
  r.max_seqs = options.max_sequences * std::max(draft_room, 1);
  r.tiers.fork_tables = r.max_seqs - options.max_sequences;
  // Over a file, trees that are asked for must fit; kAuto takes those that do.
  if (options.drafting != Drafting::kOff && !options.draft_tree.empty()) {
    r.tiers.fork_blocks =
        options.max_sequences * ForkBlocks({options.draft_tree, options.draft_max}, plan.options.block_size);
  }
  r.tiers.lookahead = options.lookahead;
  r.tiers.open_blocks = 2 * options.max_sequences * SequenceTails();  // of those that run and those that are kept
  r.plan = plan;
  r.scores = options.drafting != Drafting::kOff && options.precision != PrecisionClass::kStrict;
  r.forecast = loaded ? &*loaded : nullptr;
  auto made = model->impl().loaded->NewRunner(r);
  if (!made.ok()) {
    if (made.status().code() == StatusCode::kResourceExhausted && r.tiers.fork_blocks > 0 && options.kv_memory > 0) {
      return ResourceExhausted(made.status().message() + " for drafts that are trees; chains need less");
    }
    if (made.status().code() != StatusCode::kResourceExhausted || options.kv_memory > 0) return made.status();
    return ResourceExhausted(made.status().message() + " for a context of " + std::to_string(options.context_tokens) +
                             " tokens; ask for a smaller one");
  }
  runner = std::move(made).value();
  FS_ASSIGN_OR_RETURN(speculator, Speculator::Create(options, *model, runner->fork_blocks()));
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
  FS_ASSIGN_OR_RETURN(e.speculator, Speculator::Create(next, *e.model, e.runner->fork_blocks()));
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
