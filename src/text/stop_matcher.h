// Ends a text before the first of several stop strings, wherever the edges of tokens fall.
#ifndef FARSIGHT_TEXT_STOP_MATCHER_H_
#define FARSIGHT_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace farsight {

// The match that is complete first ends the text; of those complete at the same byte, the longest. How the text is cut
// into calls changes nothing. Time is linear in the text for each stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored
  // Adds text and returns what can no longer be part of a stop string, in whole characters. After a match, returns what
  // came before it and then nothing more; a character that a stop string begins inside of goes with it.
  std::string Push(std::string_view text);
  std::string Flush();  // what was held back, when the text ended without a match
  bool matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [n]: longest proper beginning of text that ends its first n bytes
    size_t seen = 0;               // longest beginning of text that ends what was pushed
  };
  static bool Advance(Stop* stop, char c);  // true when the stop string is complete
  std::string Take(size_t size);            // the first `size` held bytes, less a broken character at their end

  std::vector<Stop> stops_;
  std::string held_;
  size_t start_ = 0;  // of what is still held in held_
  bool matched_ = false;
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_STOP_MATCHER_H_
