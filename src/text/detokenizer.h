// Text out, piece by piece: whole characters only.
#ifndef FARSIGHT_TEXT_DETOKENIZER_H_
#define FARSIGHT_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <string>

#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace farsight {

// Joins tokens into well-formed UTF-8. An incomplete character at the end waits for the next token; bytes that can
// never become one turn into U+FFFD. What all calls return is ReplaceInvalidUtf8 of the bytes of all tokens.
class Detokenizer {
 public:
  // whole_text: the tokens are a text of their own, so the space that Encode puts before one is taken off again; false
  // for tokens that continue a text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool whole_text = false)
      : tokenizer_(&tokenizer), drop_space_(whole_text && tokenizer.HasSpacePrefix()) {}
  std::string Push(int32_t token);  // control tokens add nothing
  std::string Flush();              // the incomplete rest

 private:
  const Tokenizer* tokenizer_;
  bool drop_space_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_DETOKENIZER_H_
