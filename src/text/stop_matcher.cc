#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace farsight {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.text = std::move(text);
    stop.fallback.assign(stop.text.size() + 1, 0);
    for (size_t n = 1, k = 0; n < stop.text.size(); ++n) {
      while (k > 0 && stop.text[n] != stop.text[k]) k = stop.fallback[k];
      if (stop.text[n] == stop.text[k]) ++k;
      stop.fallback[n + 1] = k;
    }
    stops_.push_back(std::move(stop));
  }
}

bool StopMatcher::Advance(Stop* stop, char c) {
  while (stop->seen > 0 && stop->text[stop->seen] != c) stop->seen = stop->fallback[stop->seen];
  if (stop->text[stop->seen] == c) ++stop->seen;
  return stop->seen == stop->text.size();
}

std::string StopMatcher::Take(size_t size) {
  const std::string_view ready = std::string_view(held_).substr(start_, size);
  std::string out(ready.substr(0, size - IncompleteTail(ready)));
  start_ += out.size();
  if (start_ > held_.size() / 2) {
    held_.erase(0, start_);
    start_ = 0;
  }
  return out;
}

std::string StopMatcher::Push(std::string_view text) {
  if (matched_) return {};
  for (const char c : text) {
    held_.push_back(c);
    size_t longest = 0;
    for (Stop& stop : stops_) {
      if (Advance(&stop, c)) longest = std::max(longest, stop.text.size());
    }
    if (longest == 0) continue;
    matched_ = true;
    const size_t held = held_.size() - start_;
    // Bytes of the match that were given out already cannot be: what may belong to a match is held back.
    std::string out = Take(held - longest);
    held_.clear();
    start_ = 0;
    return out;
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.seen);
  return Take(held_.size() - start_ - keep);
}

std::string StopMatcher::Flush() {
  std::string out = held_.substr(start_);
  held_.clear();
  start_ = 0;
  return out;
}

}  // namespace farsight
