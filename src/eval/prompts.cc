#include "eval/prompts.h"

#include <algorithm>
#include <span>

namespace farsight::eval {

StatusOr<std::vector<int32_t>> PromptWriter::WithHay(const Layout& layout, int64_t hay_tokens) const {
  const std::vector<int32_t> hay = hay_.Slice(layout.hay_start, hay_tokens);
  const std::span<const int32_t> tokens(hay);
  std::string text;
  size_t done = 0;
  for (const auto& piece : layout.pieces) {
    const auto at = static_cast<size_t>(piece.depth * static_cast<double>(hay_tokens));
    const size_t cut = std::clamp(at, done, hay.size());
    text += model_.Detokenize(tokens.subspan(done, cut - done)) + piece.text;
    done = cut;
  }
  text += model_.Detokenize(tokens.subspan(done)) + layout.tail;
  if (form_ == Form::kCompletion) return model_.Tokenize(text);
  std::vector<ChatMessage> messages = {{"user", std::move(text)}};
  messages.insert(messages.end(), layout.later.begin(), layout.later.end());
  return model_.ApplyChatTemplate(messages);
}

StatusOr<int64_t> PromptWriter::HayThatFits(const Layout& layout) const {
  if (layout.hay_tokens >= 0) return layout.hay_tokens;
  FS_ASSIGN_OR_RETURN(const std::vector<int32_t> bare, WithHay(layout, 0));
  const auto overhead = static_cast<int64_t>(bare.size());
  if (overhead > layout.tokens) {
    return InvalidArgument("a prompt of " + std::to_string(layout.tokens) +
                           " tokens was asked for, but what is to be " + "found and the question take " +
                           std::to_string(overhead));
  }
  // Tokens merge differently at the seams, so the length is found by trying; it is off by a few at first.
  int64_t hay_tokens = layout.tokens - overhead;
  for (;;) {
    FS_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, WithHay(layout, hay_tokens));
    const int64_t excess = static_cast<int64_t>(prompt.size()) - layout.tokens;
    if (excess <= 0) return hay_tokens;
    hay_tokens = std::max<int64_t>(0, hay_tokens - excess);
  }
}

StatusOr<std::vector<int32_t>> PromptWriter::Write(const Layout& layout) const {
  FS_ASSIGN_OR_RETURN(const int64_t hay_tokens, HayThatFits(layout));
  return WithHay(layout, hay_tokens);
}

std::string PromptWriter::BeforeNumber(const std::string& text) const {
  const auto open = model_.Tokenize(text + " ", false, false);
  const auto full = model_.Tokenize(text + " 7", false, false);
  const bool edge = open.size() < full.size() && std::equal(open.begin(), open.end(), full.begin());
  return edge ? text + " " : text;
}

}  // namespace farsight::eval
