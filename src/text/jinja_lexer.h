// Template text to tokens. Whitespace control happens here: `-` and `+` marks, the first newline after a block tag
// (trim_blocks), the indentation before one (lstrip_blocks), one newline at the very end.
#ifndef FARSIGHT_TEXT_JINJA_LEXER_H_
#define FARSIGHT_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "farsight/status.h"
#include "text/jinja_ast.h"

namespace farsight::jinja {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kReal,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  Position at;
  std::string text = {};  // text, name, decoded string or operator
  int64_t integer = 0;
  double real = 0;
};

// The last token is kEnd.
StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace farsight::jinja

#endif  // FARSIGHT_TEXT_JINJA_LEXER_H_
