// What a model makes of given text: perplexity, bits per byte by position, and how far a policy is from dense.
#ifndef FARSIGHT_EVAL_LIKELIHOOD_H_
#define FARSIGHT_EVAL_LIKELIHOOD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "eval/policies.h"
#include "eval/retrieval.h"
#include "eval/statistics.h"

namespace farsight::eval {

// Windows of `context` tokens. Rows at or after `prefix` are scored and count as decode for policies whose phase that
// is; earlier ones only give context.
struct TextSpec {
  int64_t context = 2048;
  int64_t prefix = 0;
  int64_t tokens = 2048;  // most tokens to score
  bool spread = false;    // windows evenly over the whole text, not one after another from its beginning
};

// Natural logarithms, so perplexity is exp(nll.mean()).
struct TextScore {
  Mean nll;
  struct Bucket {
    int64_t low = 0, high = 0;  // positions in the window
    double nats = 0;
    int64_t bytes = 0, tokens = 0;
  };
  std::vector<Bucket> buckets;  // edges 0, 256, 1K, 4K, 8K, 16K, 32K, ... up to the context
};
double BitsPerByte(double nats, int64_t bytes);

// One score a variant, all of the same windows; fewer windows when hooks.stop ended it, and none if it was in the
// first. kInvalidArgument when the text has nothing to score.
StatusOr<std::vector<TextScore>> ScoreText(const Model& model, PolicyEngines& engines, std::span<const int32_t> text,
                                           const TextSpec& spec, const Hooks& hooks);

struct Comparison {
  int64_t tokens = 0;
  double kl_mean = 0, kl_p99 = 0;     // nats, KL(reference || policy)
  double top1 = 0;                    // share of rows with the same most probable token
  double nll = 0, nll_reference = 0;  // mean nats of the text's next token, over the rows that have one
};

// Logits of the rows at and after `prefix`, which count as decode; [rows, vocabulary].
StatusOr<std::vector<float>> TailLogits(Engine& engine, std::span<const int32_t> text, int64_t prefix);
// Both [rows, vocab] with the same number of rows, at least one. `next` holds the text's token after each row; the last
// row may have none.
Comparison Compare(std::span<const float> reference, std::span<const float> other, int64_t vocab,
                   std::span<const int32_t> next);

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_LIKELIHOOD_H_
