// Text out, piece by piece: whole characters only, and nothing that a stop string may still swallow.
#ifndef FARSIGHT_TEXT_DETOKENIZER_H_
#define FARSIGHT_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace farsight {

// Joins tokens into well-formed UTF-8. An incomplete character at the end waits for the next token; bytes that can
// never become one turn into U+FFFD. What all calls return is ReplaceInvalidUtf8 of the whole.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string Push(int32_t token);  // control tokens add nothing
  std::string Flush();              // the incomplete rest

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

// Ends a text before the first of several stop strings, wherever token edges fall.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored
  // Adds text and returns what can no longer be part of a stop string. After a match, returns what came before it and
  // then nothing more.
  std::string Push(std::string_view text);
  std::string Flush();  // what was held back, when the text ended without a match
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_DETOKENIZER_H_
