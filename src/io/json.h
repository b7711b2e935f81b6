// JSON from outside: one guarded parser for configuration files, indexes and requests, and a writer that cannot throw.
#ifndef FARSIGHT_IO_JSON_H_
#define FARSIGHT_IO_JSON_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "farsight/status.h"

namespace farsight {

// Keeps the order of keys. Looking a key up walks the object, so iterate over objects with very many keys instead.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_depth = 64;                // nested objects and arrays
  size_t max_bytes = size_t{64} << 20;  // of the text
  size_t max_values = 8'000'000;        // of the whole document, counted before anything is allocated
  bool unique_keys = true;              // refuse an object that names a key twice; otherwise the last value wins
};

// Time and memory are linear in the text. `what` names the text in errors, for example "'config.json'".
// kResourceExhausted when a limit is passed, kDataLoss (with line and column) when the text is not JSON in UTF-8.
StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {}, const std::string& what = "the text");

// Reads and parses a file; errors name it.
StatusOr<Json> ReadJsonFile(const std::string& path, const JsonLimits& limits = {});

// Bytes that are not UTF-8 become U+FFFD. indent < 0: one line.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace farsight

#endif  // FARSIGHT_IO_JSON_H_
