// One generation: what goes in, what comes back while it runs, and what is known at its end.
#ifndef FARSIGHT_REQUEST_H_
#define FARSIGHT_REQUEST_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "farsight/sampling.h"
#include "farsight/status.h"

namespace farsight {

enum class FinishReason {
  kStop,       // an end-of-generation token or a stop string
  kLength,     // max_new_tokens, or the context is full
  kCancelled,  // by the caller
  kError,      // see Completion::status
};
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled", "error"

// A generated token as it is streamed. `text` is what became complete with it: empty while a character or a possible
// stop string is incomplete.
struct TokenEvent {
  int32_t token = -1;
  std::string_view text;
  int64_t position = 0;  // absolute position of the token in its sequence
};

// The blocks one generated row attended in one layer: ids of KV head h are blocks[h], ascending.
// dense: every visible block (blocks is empty then).
struct BlockTrace {
  int64_t position = 0;
  int layer = 0;
  int64_t visible_blocks = 0;
  bool dense = false;
  std::vector<std::span<const int32_t>> blocks;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  int64_t max_new_tokens = -1;    // -1: until the context is full; 0: read the prompt only
  std::vector<std::string> stop;  // the answer ends before the first of these
  bool ignore_eos = false;
  // Rows at or after this position count as decode for a policy whose phase is kDecode, although they are part of the
  // prompt: a given answer is scored as it would have been generated. Earlier rows only give context: on_logits is not
  // told of them, and they may come from the cache of an earlier sequence. -1: the prompt is all prefill.
  int64_t decode_from = -1;

  // Callbacks run on the thread that calls Engine::Step. Each may be empty.
  std::function<bool(const TokenEvent&)> on_token;                          // false cancels
  std::function<void(int64_t done, int64_t total)> on_progress;             // prompt tokens read
  std::function<void(const BlockTrace&)> on_blocks;                         // for each generated row and layer
  std::function<void(int64_t position, std::span<const float>)> on_logits;  // every row, see decode_from
};

struct Completion {
  Status status;  // not OK exactly when finish_reason is kError
  FinishReason finish_reason = FinishReason::kStop;
  std::vector<int32_t> tokens;  // generated, the end token and what a stop string cut off excluded
  std::string text;
  std::vector<TokenLogprobs> logprobs;  // one for each token when asked for

  int64_t prompt_tokens = 0;
  int64_t read_tokens = 0;    // of the prompt, those in the cache included: all, unless it ended before
  int64_t cached_tokens = 0;  // of the prompt, taken from an earlier sequence's cache
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t decode_steps = 0;
  int64_t kv_bytes = 0;  // keys, values and summaries of this sequence at its end
  // Over all generated rows, layers and KV heads: blocks that existed, and blocks that attention read.
  int64_t blocks_held = 0;
  int64_t blocks_read = 0;
  int64_t kv_bytes_read = 0;  // by these rows: keys and values of the blocks, a window's too, and summaries
  int preemptions = 0;
  // Speculative decoding: steps with a draft, tokens drafted in them, and those of them that were kept.
  int64_t draft_steps = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
};

}  // namespace farsight

#endif  // FARSIGHT_REQUEST_H_
