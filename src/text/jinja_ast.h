// A parsed chat template: plain trees, immutable once built.
#ifndef FARSIGHT_TEXT_JINJA_AST_H_
#define FARSIGHT_TEXT_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farsight/status.h"
#include "text/jinja_value.h"

namespace farsight::jinja {

inline constexpr size_t kMaxTemplateBytes = 1 << 20;
inline constexpr int kMaxAstDepth = 200;

struct Position {
  int line = 1, column = 1;  // from 1; columns are bytes
};

// "the chat template, line 3, column 7: <what>"
Status ErrorAt(Position at, StatusCode code, const std::string& what);

enum class Op { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kConcat, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kLiteral,    // value
    kName,       // name
    kList,       // args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0] . name
    kIndex,      // args[0] [ args[1] ]
    kSlice,      // args[0] [ args[1] : args[2] : args[3] ], each of the last three may be null
    kCall,       // args[0] ( args[1..], named )
    kFilter,     // args[0] | name ( args[1..], named )
    kTest,       // args[0] is name ( args[1..], named )
    kNegate,     // - args[0]
    kPlus,       // + args[0]
    kNot,        // not args[0]
    kAnd,        // args[0] and args[1]
    kOr,         // args[0] or args[1]
    kBinary,     // args[0] ops[0] args[1]
    kCompare,    // args[0] ops[0] args[1] ops[1] args[2] ...
    kTernary,    // args[0] if args[1] else args[2]; args[2] may be null
  };
  Kind kind = Kind::kLiteral;
  Position at;
  int depth = 1;
  Value value;
  std::string name;
  std::vector<Op> ops;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind { kText, kOutput, kIf, kFor, kSet, kSetBlock, kMacro, kBreak, kContinue, kScope };
  struct Branch {
    ExprPtr condition;  // null: else
    Block body;
  };
  Kind kind = Kind::kText;
  Position at;
  std::string text;                  // kText: what; kMacro: its name; kSet with one dotted target: the attribute
  std::vector<std::string> targets;  // kFor, kSet, kSetBlock: names assigned; kMacro: parameters
  std::vector<ExprPtr> defaults;     // kMacro: one for each parameter, may be null
  ExprPtr expr;                      // kOutput, kFor: what to iterate; kSet
  ExprPtr condition;                 // kFor: `if`, may be null
  Block body;                        // kFor, kSetBlock, kMacro, kScope
  Block otherwise;                   // kFor: `else`
  std::vector<Branch> branches;      // kIf
};

struct Template {
  Block body;
};

// The language is that of Jinja 3 with trim_blocks, lstrip_blocks and the loop controls, less everything that reaches
// outside of the template. kDataLoss for text that is not a template, kUnimplemented for parts of Jinja left out,
// kResourceExhausted over a limit; each with its place.
StatusOr<Template> ParseTemplate(std::string_view source);

}  // namespace farsight::jinja

#endif  // FARSIGHT_TEXT_JINJA_AST_H_
