// Prompts of a wanted length: hay with pieces of text hidden in it, and what is asked at the end.
#ifndef FARSIGHT_EVAL_PROMPTS_H_
#define FARSIGHT_EVAL_PROMPTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "eval/haystack.h"
#include "farsight/engine.h"

namespace farsight::eval {

enum class Form {
  kCompletion,  // plain text that breaks off where the answer belongs
  kQuestion,    // one user turn of the model's chat template; the answer is the assistant's
};

struct Piece {
  double depth = 0;  // share of the hay that comes before it, 0 to 1
  std::string text;
};

struct Layout {
  uint64_t hay_start = 0;          // first token of the hay
  int64_t tokens = 0;              // the whole prompt has at most this many, and as few less as the hay allows
  int64_t hay_tokens = -1;         // instead of `tokens`, if not negative: exactly so much hay
  std::vector<Piece> pieces;       // by ascending depth; equal depths keep their order
  std::string tail;                // after the hay: the beginning of an answer, or the question
  std::vector<ChatMessage> later;  // kQuestion: turns after the first
};

class PromptWriter {
 public:
  // Both must outlive the writer.
  PromptWriter(const Model& model, const Haystack& hay, Form form) : model_(model), hay_(hay), form_(form) {}

  Form form() const { return form_; }
  StatusOr<std::vector<int32_t>> Write(const Layout& layout) const;
  // Tokens of hay that Write would use. kInvalidArgument when the prompt without any hay exceeds `tokens`.
  StatusOr<int64_t> HayThatFits(const Layout& layout) const;

  // `text`, a space where the answer's first digit is a token of its own, so that the prompt ends at a token's edge.
  std::string BeforeNumber(const std::string& text) const;

 private:
  StatusOr<std::vector<int32_t>> WithHay(const Layout& layout, int64_t hay_tokens) const;

  const Model& model_;
  const Haystack& hay_;
  Form form_;
};

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_PROMPTS_H_
