// Strings as Python sees them: characters, white space, case.
#ifndef FARSIGHT_TEXT_JINJA_TEXT_H_
#define FARSIGHT_TEXT_JINJA_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace farsight::jinja {

// The UTF-8 character at `i` and its bytes; a byte that begins none is a character of its own.
struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};
Character CharacterAt(std::string_view text, size_t i);
// Where each character begins, and the end.
std::vector<size_t> CharacterStarts(std::string_view text);
bool IsPythonSpace(uint32_t code);

enum class Case { kUpper, kLower };
// Every character in the other case, one to one.
Str Cased(const Str& s, Case to);
Str Capitalised(const Str& s);
Str Titled(const Str& s);

}  // namespace farsight::jinja

#endif  // FARSIGHT_TEXT_JINJA_TEXT_H_
