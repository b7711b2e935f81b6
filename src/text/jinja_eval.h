// Runs a parsed chat template. Hostile templates end in a Status: every node costs a step, every string its bytes,
// every level of nesting is counted, and nothing reaches outside of the values it was given.
#ifndef FARSIGHT_TEXT_JINJA_EVAL_H_
#define FARSIGHT_TEXT_JINJA_EVAL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farsight/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace farsight::jinja {

struct Limits {
  int64_t steps = 5'000'000;         // nodes evaluated and list items made
  int64_t string_bytes = 256 << 20;  // of all strings made on the way
  size_t output_bytes = 64 << 20;    // of the result, and of any one string
  int64_t range_items = 100'000;     // of one range()
  int depth = 400;                   // nodes below one another, macro calls included
};

class Interpreter {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  // now: seconds since 1970 for strftime_now, shown as UTC.
  Interpreter(const Limits& limits, int64_t now) : limits_(limits), now_(now) {}

  // The template's output. kInvalidArgument for raise_exception, with its message alone, and for what Jinja would
  // refuse; kResourceExhausted over a limit; kUnimplemented for filters, tests and methods left out.
  StatusOr<Str> Run(const Template& t, Variables variables);

 private:
  struct Args {
    std::vector<Value> values;  // once bound: one for each parameter, undefined where it was not given
    Variables named;
  };
  using Function = StatusOr<Value> (*)(Interpreter* in, const Value& self, const Args& args);
  struct Builtin {
    std::string_view name;
    std::string_view parameters;  // names with commas; "*": takes what comes
    Function function;
  };
  struct Frame {
    Variables variables;
    bool macro = false;  // names outside are those of the template's top only
  };
  enum class Flow { kNormal, kBreak, kContinue };

  // jinja_eval.cc: statements and expressions
  Status Step(int64_t n = 1);
  Status CheckDepth() const;
  Status Locate(Position at, Status status);
  Status ExecBlock(const Block& block, Str* out);
  Status Exec(const Stmt& s, Str* out);
  Status ExecIf(const Stmt& s, Str* out);
  Status ExecFor(const Stmt& s, Str* out);
  StatusOr<std::vector<Value>> LoopItems(const Stmt& s);
  StatusOr<Value> LoopValue(const std::vector<Value>& items, size_t i);
  Status ExecSet(const Stmt& s, Value value);
  Status Assign(const std::vector<std::string>& targets, const Value& value);
  Status Emit(const Str& text, Str* out);
  StatusOr<Value> Eval(const Expr& e);
  StatusOr<Value> EvalNode(const Expr& e);
  StatusOr<Value> EvalContainer(const Expr& e);
  StatusOr<Value> EvalName(const std::string& name);
  StatusOr<Value> EvalCompare(const Expr& e);
  StatusOr<Value> EvalTest(const Expr& e);
  StatusOr<Value> EvalCall(const Expr& e);
  StatusOr<Value> EvalSlice(const Expr& e);
  StatusOr<Args> EvalArgs(const Expr& e);
  StatusOr<Value> CallMacro(const Stmt& macro, const Args& args);
  StatusOr<Value> CallGlobal(const std::string& name, const Args& args, bool* found);
  StatusOr<Value> Test(std::string_view name, const Value& v, const Args& args);

  // jinja_operators.cc: values
  StatusOr<Value> Binary(Op op, const Value& a, const Value& b);
  StatusOr<bool> Compare(Op op, const Value& a, const Value& b);
  StatusOr<bool> Contains(const Value& container, const Value& item);
  StatusOr<Value> Attribute(const Value& object, std::string_view name);
  StatusOr<Value> Index(const Value& object, const Value& index);
  StatusOr<std::vector<Value>> Items(const Value& v);  // what a loop over v sees
  StatusOr<Value> Repeat(const Value& v, int64_t times);
  StatusOr<Value> MakeStr(Str s);  // counts its bytes
  Status Charge(size_t bytes);
  StatusOr<Str> ToStr(const Value& v);
  Status Repr(const Value& v, Str* out);
  Status Json(const Value& v, int indent, int level, Str* out);
  StatusOr<bool> Same(const Value& a, const Value& b);

  // jinja_filters.cc, jinja_methods.cc
  StatusOr<Value> CallBuiltin(const Builtin& f, const Value& self, const Args& args);
  StatusOr<Value> Filter(std::string_view name, const Value& v, const Args& args);
  StatusOr<Value> Nested(std::string_view filter, const Value& v, const Args& args);
  StatusOr<Value> Method(const Value& object, std::string_view name, const Args& args);
  StatusOr<Value> Range(const Args& args);
  StatusOr<Value> StrftimeNow(const Value& format);
  StatusOr<Value> Strip(const Str& s, const Value& chars, bool left, bool right);
  StatusOr<Value> JoinItems(const Value& items, const Value& separator, const Value& attribute);
  StatusOr<Value> ReplaceIn(const Str& s, const Value& from, const Value& to, const Value& count);
  struct Filters;
  struct Methods;

  const Limits limits_;
  const int64_t now_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  bool located_ = false;  // the failure on its way up already names its place
  Flow flow_ = Flow::kNormal;
  std::vector<Frame> frames_;
};

}  // namespace farsight::jinja

#endif  // FARSIGHT_TEXT_JINJA_EVAL_H_
