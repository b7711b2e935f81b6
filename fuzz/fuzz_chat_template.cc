// Any bytes as a chat template over one fixed conversation: pieces, or one sentence, and never a user's words in a
// piece of scaffold.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace {

constexpr std::string_view kMessages = R"([
  {"role": "system", "content": "\u0001\u0001"},
  {"role": "user", "content": "\u0001\u0001 \n\u0001"},
  {"role": "assistant", "content": null, "tool_calls": [
    {"type": "function", "function": {"name": "\u0001", "arguments": {"a": [1, -2.5, true, null]}}}]},
  {"role": "tool", "content": ["\u0001", {"k": "\u0001"}]}])";

farsight::ChatTemplateOptions Options() {
  farsight::ChatTemplateOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.tools_json = R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  options.now = 0;
  options.limits.steps = 50'000;
  options.limits.string_bytes = 4 << 20;
  options.limits.output_bytes = 1 << 16;
  options.limits.range_items = 1000;
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = farsight::ChatTemplate::Parse(text);
  if (!parsed.ok()) {
    if (parsed.status().message().empty()) std::abort();
    return 0;
  }
  const farsight::ChatTemplateOptions options = Options();
  const auto pieces = parsed->RenderJson(kMessages, options);
  if (!pieces.ok()) return 0;
  // Byte 1 stands for a user's words: a template without it cannot write it. An escape in its text could.
  const bool template_has_it = text.find('\1') != std::string_view::npos || text.find('\\') != std::string_view::npos;
  size_t total = 0;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const farsight::Piece& piece = (*pieces)[i];
    total += piece.text.size();
    if (piece.text.empty()) std::abort();
    if (i > 0 && piece.is_user_text == (*pieces)[i - 1].is_user_text) std::abort();
    if (!template_has_it && !piece.is_user_text && piece.text.find('\1') != std::string::npos) std::abort();
  }
  if (total > options.limits.output_bytes) std::abort();
  return 0;
}
