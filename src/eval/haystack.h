// The text that needles are hidden in.
#ifndef FARSIGHT_EVAL_HAYSTACK_H_
#define FARSIGHT_EVAL_HAYSTACK_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/random.h"
#include "farsight/engine.h"

namespace farsight::eval {

// A book of the repository (data/esther.txt), part of the program: the hay when no text is named.
std::string_view BuiltInText();

// Words of needle keys that models trained by this project never saw in a needle.
std::span<const std::string_view> HeldOutWords();
std::string_view HeldOutWord(Random& random);

// Texts one after another as tokens of a model, without control tokens. Slices wrap around at the end.
class Haystack {
 public:
  // An empty text is refused: there must be at least one token.
  static StatusOr<Haystack> Make(const Model& model, std::span<const std::string> texts);

  size_t size() const { return tokens_.size(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::vector<int32_t> Slice(uint64_t start, int64_t count) const;

 private:
  std::vector<int32_t> tokens_;
};

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_HAYSTACK_H_
