#include "eval/haystack.h"

namespace farsight::eval {
namespace {

constexpr std::string_view kWords[] = {
#include "eval/words.inc"
};

}  // namespace

std::span<const std::string_view> HeldOutWords() { return kWords; }
std::string_view HeldOutWord(Random& random) { return kWords[random.Below(std::size(kWords))]; }

StatusOr<Haystack> Haystack::Make(const Model& model, std::span<const std::string> texts) {
  Haystack hay;
  for (const auto& text : texts) {
    const auto tokens = model.Tokenize(text, false, false);
    hay.tokens_.insert(hay.tokens_.end(), tokens.begin(), tokens.end());
  }
  if (hay.tokens_.empty()) return InvalidArgument("the text is empty; at least one token was expected");
  return hay;
}

std::vector<int32_t> Haystack::Slice(uint64_t start, int64_t count) const {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(tokens_[(start + static_cast<uint64_t>(i)) % tokens_.size()]);
  return out;
}

}  // namespace farsight::eval
