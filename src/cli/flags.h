// Checks of flag values: a mistake is told before a model is loaded, in words of the flag. CLI11 by itself takes
// numbers beyond 64 bits as the largest there is.
#ifndef FARSIGHT_CLI_FLAGS_H_
#define FARSIGHT_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace farsight::cli {

template <typename T>
CLI::Validator WholeNumber(T low, T high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        T value = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end && value >= low && value <= high) return "";
        return "a whole number from " + std::to_string(low) + " to " + std::to_string(high) + " was expected, not '" +
               text + "'";
      },
      "");
}

inline CLI::Validator Seed() { return WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max()); }

inline constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a context
inline CLI::Validator Tokens(int64_t low) { return WholeNumber<int64_t>(low, kMostTokens); }

}  // namespace farsight::cli

#endif  // FARSIGHT_CLI_FLAGS_H_
