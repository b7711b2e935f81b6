// What a computed step means for its requests: sampled or verified tokens, streamed text, counters, the end.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace farsight {

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
  c.read_tokens = job->progress;
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

}  // namespace farsight
