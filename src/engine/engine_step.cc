// A step up to its logits: who drafts, what is reused, what runs, in which batch; and what happens when it fails.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

bool IsCopy(const StepPlan& step, int32_t block) {
  return std::any_of(step.copies.begin(), step.copies.end(), [block](const BlockCopy& c) { return c.to == block; });
}

}  // namespace

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

// Blocks of a sequence that are not full, at most: these stay in the memory of the tiers.
int Engine::Impl::SequenceTails() const {
  if (options.drafting == Drafting::kOff) return 1;
  // What a step's draft filled is closed by the next, which may draft as far again.
  return 1 + (2 * options.draft_max + plan.options.block_size - 1) / plan.options.block_size;
}

// The same of all sequences that are kept; a step's forks come to that.
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
  batch.open_blocks = OpenBlocks();
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
    for (const SequenceCache& fork : r.sequence->forks) {
      batch.open_blocks += static_cast<int>(fork.blocks().size()) - static_cast<int>(r.first / plan.options.block_size);
    }
    batch.want_lists = batch.want_lists || static_cast<bool>(job.request.on_blocks);
  }
}

// Blocks of which every token is certain after the step, those of the step before that a draft had filled included.
// Those of a tree wait for the path that is kept.
void Engine::Impl::CloseBlocks(const PlannedRows& rows) {
  const int64_t block = plan.options.block_size;
  const auto blocks = rows.sequence->cache.blocks();
  const Sequence& s = *rows.sequence;
  const int64_t certain = s.forks.empty() ? rows.first + rows.count - static_cast<int64_t>(s.draft.size()) : rows.first;
  for (int64_t b = std::max<int64_t>(0, rows.first - options.draft_max - 1) / block; b < certain / block; ++b) {
    batch.full_blocks.push_back(blocks[static_cast<size_t>(b)]);
  }
}

// The blocks that a sequence has got in this step, and its forks; the others go on.
std::vector<int32_t> Engine::Impl::NewBlocks(const StepPlan& step, const PlannedRows& rows) const {
  std::vector<int32_t> out;
  const int64_t block = plan.options.block_size;
  const auto add = [&](const SequenceCache& cache) {
    for (auto b = rows.first / block; b < static_cast<int64_t>(cache.blocks().size()); ++b) {
      const int32_t id = cache.blocks()[static_cast<size_t>(b)];
      if (b * block >= rows.first || IsCopy(step, id)) out.push_back(id);
    }
  };
  add(rows.sequence->cache);
  for (const SequenceCache& fork : rows.sequence->forks) add(fork);
  return out;
}

// Gives the step's blocks their places; where the first row of a sequence goes on in a block that was full or was read
// from a session, that block is brought to memory.
Status Engine::Impl::PrepareTiers(const StepPlan& step) {
  KvTiers& tiers = *runner->tiers();
  FS_RETURN_IF_ERROR(tiers.Follow(*pool));
  for (const auto& r : step.rows) {
    // New blocks are written behind into the session itself.
    for (const int32_t block : session ? NewBlocks(step, r) : std::vector<int32_t>()) {
      if (tiers.place(block).store == 0) FS_RETURN_IF_ERROR(tiers.Begin(block, session->store()));
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
    const std::vector<int32_t> full = std::exchange(batch.full_blocks, {});  // these rows are written once more
    FS_RETURN_IF_ERROR(runner->Step(batch, &result));
    batch.full_blocks = full;
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
  for (const auto& r : step.rows) {
    for (const int32_t block : NewBlocks(step, r)) FS_RETURN_IF_ERROR(runner->tiers()->Begin(block));
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
    const auto blocks = NewBlocks(step, r);
    for (const auto& copy : step.copies) {
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

}  // namespace farsight
