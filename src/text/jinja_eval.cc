#include "text/jinja_eval.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "text/jinja_text.h"

namespace farsight::jinja {
namespace {

constexpr int64_t kLoopSteps = 16;  // what `loop` costs to make, measured in nodes

bool IsGlobalFunction(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

}  // namespace

Status Interpreter::Step(int64_t n) {
  steps_ += n;
  if (steps_ <= limits_.steps) return OkStatus();
  return ResourceExhausted("it takes more than " + std::to_string(limits_.steps) + " steps");
}

Status Interpreter::CheckDepth() const {
  if (depth_ <= limits_.depth) return OkStatus();
  return ResourceExhausted("it nests or calls itself deeper than " + std::to_string(limits_.depth) + " levels");
}

Status Interpreter::Locate(Position at, Status status) {
  if (located_) return status;
  located_ = true;
  return ErrorAt(at, status.code(), status.message());
}

StatusOr<Str> Interpreter::Run(const Template& t, Variables variables) {
  frames_.clear();
  frames_.push_back({std::move(variables), false});
  Str out;
  FS_RETURN_IF_ERROR(ExecBlock(t.body, &out));
  return out;
}

// ---- statements ----

Status Interpreter::ExecBlock(const Block& block, Str* out) {
  for (const auto& stmt : block) {
    ++depth_;
    Status status = CheckDepth();
    if (status.ok()) status = Step();
    if (status.ok()) status = Exec(*stmt, out);
    --depth_;
    if (!status.ok()) return Locate(stmt->at, std::move(status));
    if (flow_ != Flow::kNormal) break;
  }
  return OkStatus();
}

Status Interpreter::Emit(const Str& text, Str* out) {
  if (text.size() > limits_.output_bytes - std::min(limits_.output_bytes, out->size())) {
    return ResourceExhausted("its output is longer than " + std::to_string(limits_.output_bytes) + " bytes");
  }
  FS_RETURN_IF_ERROR(Charge(text.size()));
  out->Append(text);
  return OkStatus();
}

Status Interpreter::Exec(const Stmt& s, Str* out) {
  switch (s.kind) {
    case Stmt::Kind::kText:
      return Emit(Str(s.text, false), out);
    case Stmt::Kind::kOutput: {
      FS_ASSIGN_OR_RETURN(const Value v, Eval(*s.expr));
      if (const Str* text = v.str()) return Emit(*text, out);
      FS_ASSIGN_OR_RETURN(const Str text, ToStr(v));
      return Emit(text, out);
    }
    case Stmt::Kind::kIf:
      return ExecIf(s, out);
    case Stmt::Kind::kFor:
      return ExecFor(s, out);
    case Stmt::Kind::kSet: {
      FS_ASSIGN_OR_RETURN(Value v, Eval(*s.expr));
      return ExecSet(s, std::move(v));
    }
    case Stmt::Kind::kSetBlock: {
      Str text;
      FS_RETURN_IF_ERROR(ExecBlock(s.body, &text));
      return ExecSet(s, Value(std::move(text)));
    }
    case Stmt::Kind::kMacro:
      return Assign({s.text}, Value(&s));
    case Stmt::Kind::kBreak:
      flow_ = Flow::kBreak;
      return OkStatus();
    case Stmt::Kind::kContinue:
      flow_ = Flow::kContinue;
      return OkStatus();
    case Stmt::Kind::kScope:
      return ExecBlock(s.body, out);
  }
  return Internal("an unknown statement");
}

Status Interpreter::ExecIf(const Stmt& s, Str* out) {
  for (const auto& branch : s.branches) {
    if (branch.condition) {
      FS_ASSIGN_OR_RETURN(const Value v, Eval(*branch.condition));
      if (!v.Truthy()) continue;
    }
    return ExecBlock(branch.body, out);
  }
  return OkStatus();
}

StatusOr<std::vector<Value>> Interpreter::LoopItems(const Stmt& s) {
  FS_ASSIGN_OR_RETURN(const Value over, Eval(*s.expr));
  FS_ASSIGN_OR_RETURN(std::vector<Value> items, Items(over));
  if (!s.condition) return items;
  std::vector<Value> kept;
  frames_.emplace_back();
  for (Value& item : items) {
    FS_RETURN_IF_ERROR(Assign(s.targets, item));
    FS_ASSIGN_OR_RETURN(const Value keep, Eval(*s.condition));
    if (keep.Truthy()) kept.push_back(std::move(item));
  }
  frames_.pop_back();
  return kept;
}

StatusOr<Value> Interpreter::LoopValue(const std::vector<Value>& items, size_t i) {
  const auto at = static_cast<int64_t>(i), n = static_cast<int64_t>(items.size());
  std::vector<std::pair<Str, Value>> loop;
  const auto add = [&loop](const char* name, Value v) { loop.emplace_back(Str(name, false), std::move(v)); };
  add("index0", Value(at));
  add("index", Value(at + 1));
  add("first", Value(at == 0));
  add("last", Value(at + 1 == n));
  add("length", Value(n));
  add("revindex", Value(n - at));
  add("revindex0", Value(n - at - 1));
  add("depth", Value(int64_t{loops_}));
  add("depth0", Value(int64_t{loops_ - 1}));
  if (i > 0) add("previtem", items[i - 1]);
  if (i + 1 < items.size()) add("nextitem", items[i + 1]);
  return Value::MakeDict(std::move(loop));
}

Status Interpreter::ExecFor(const Stmt& s, Str* out) {
  FS_ASSIGN_OR_RETURN(const std::vector<Value> items, LoopItems(s));
  if (items.empty()) return ExecBlock(s.otherwise, out);
  ++loops_;
  for (size_t i = 0; i < items.size(); ++i) {
    FS_RETURN_IF_ERROR(Step(kLoopSteps));
    frames_.emplace_back();
    FS_ASSIGN_OR_RETURN(Value loop, LoopValue(items, i));
    frames_.back().variables.emplace_back("loop", std::move(loop));
    FS_RETURN_IF_ERROR(Assign(s.targets, items[i]));
    FS_RETURN_IF_ERROR(ExecBlock(s.body, out));
    frames_.pop_back();
    const Flow flow = std::exchange(flow_, Flow::kNormal);
    if (flow == Flow::kBreak) break;
  }
  --loops_;
  return OkStatus();
}

Status Interpreter::ExecSet(const Stmt& s, Value value) {
  if (s.text.empty()) return Assign(s.targets, value);
  FS_ASSIGN_OR_RETURN(const Value object, EvalName(s.targets[0]));
  Namespace* ns = object.name_space();
  if (!ns) return InvalidArgument("cannot set an attribute of " + std::string(object.TypeName()));
  if (value.name_space()) return InvalidArgument("a namespace cannot be put into another namespace");
  if (Value* old = ns->Find(s.text)) {
    *old = std::move(value);
  } else {
    ns->items.emplace_back(s.text, std::move(value));
  }
  return OkStatus();
}

Status Interpreter::Assign(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) {
    auto& variables = frames_.back().variables;
    for (auto& [name, v] : variables) {
      if (name != targets[0]) continue;
      v = value;
      return OkStatus();
    }
    variables.emplace_back(targets[0], value);
    return OkStatus();
  }
  FS_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(value));
  if (items.size() != targets.size()) {
    return InvalidArgument(std::to_string(targets.size()) + " names cannot take " + std::to_string(items.size()) +
                           " values");
  }
  for (size_t i = 0; i < items.size(); ++i) FS_RETURN_IF_ERROR(Assign({targets[i]}, items[i]));
  return OkStatus();
}

// ---- expressions ----

StatusOr<Value> Interpreter::Eval(const Expr& e) {
  ++depth_;
  Status status = CheckDepth();
  if (status.ok()) status = Step();
  StatusOr<Value> v = status.ok() ? EvalNode(e) : StatusOr<Value>(status);
  --depth_;
  if (!v.ok()) return Locate(e.at, v.status());
  return v;
}

StatusOr<Value> Interpreter::EvalNode(const Expr& e) {
  switch (e.kind) {
    case Expr::Kind::kLiteral:
      return e.value;
    case Expr::Kind::kName:
      return EvalName(e.name);
    case Expr::Kind::kList:
    case Expr::Kind::kDict:
      return EvalContainer(e);
    case Expr::Kind::kSlice:
      return EvalSlice(e);
    case Expr::Kind::kCall:
      return EvalCall(e);
    case Expr::Kind::kTest:
      return EvalTest(e);
    case Expr::Kind::kCompare:
      return EvalCompare(e);
    default:
      break;
  }
  if (e.kind == Expr::Kind::kTernary) {
    FS_ASSIGN_OR_RETURN(const Value condition, Eval(*e.args[1]));
    if (condition.Truthy()) return Eval(*e.args[0]);
    return e.args[2] ? Eval(*e.args[2]) : StatusOr<Value>(Value());
  }
  FS_ASSIGN_OR_RETURN(const Value a, Eval(*e.args[0]));
  switch (e.kind) {
    case Expr::Kind::kAttribute: {
      if (a.undefined() && e.args[0]->kind == Expr::Kind::kName) {
        return InvalidArgument("'" + e.args[0]->name + "' is undefined, so it has no attribute '" + e.name + "'");
      }
      return Attribute(a, e.name);
    }
    case Expr::Kind::kNot:
      return Value(!a.Truthy());
    case Expr::Kind::kAnd:
      return a.Truthy() ? Eval(*e.args[1]) : a;
    case Expr::Kind::kOr:
      return a.Truthy() ? a : Eval(*e.args[1]);
    case Expr::Kind::kNegate:
      return Binary(Op::kSub, Value(int64_t{0}), a);
    case Expr::Kind::kPlus:
      return Binary(Op::kAdd, Value(int64_t{0}), a);
    case Expr::Kind::kFilter: {
      FS_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
      return Filter(e.name, a, args);
    }
    default: {
      FS_ASSIGN_OR_RETURN(const Value b, Eval(*e.args[1]));
      return e.kind == Expr::Kind::kIndex ? Index(a, b) : Binary(e.ops[0], a, b);
    }
  }
}

StatusOr<Value> Interpreter::EvalContainer(const Expr& e) {
  std::vector<Value> values;
  for (const auto& arg : e.args) {
    FS_ASSIGN_OR_RETURN(Value v, Eval(*arg));
    values.push_back(std::move(v));
  }
  if (e.kind == Expr::Kind::kList) return Value::MakeList(std::move(values));
  std::vector<std::pair<Str, Value>> items;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    const Str* key = values[i].str();
    if (!key) return InvalidArgument("the key of a dict must be a string, not " + std::string(values[i].TypeName()));
    items.emplace_back(*key, std::move(values[i + 1]));
  }
  return Value::MakeDict(std::move(items));
}

StatusOr<Value> Interpreter::EvalName(const std::string& name) {
  const auto find = [&name](const Frame& frame) -> const Value* {
    for (const auto& [key, v] : frame.variables) {
      if (key == name) return &v;
    }
    return nullptr;
  };
  for (size_t i = frames_.size(); i-- > 0;) {
    if (const Value* v = find(frames_[i])) return *v;
    if (frames_[i].macro) break;
  }
  if (const Value* v = find(frames_[0])) return *v;
  return Value();
}

StatusOr<Value> Interpreter::EvalCompare(const Expr& e) {
  FS_ASSIGN_OR_RETURN(Value left, Eval(*e.args[0]));
  for (size_t i = 0; i < e.ops.size(); ++i) {
    FS_ASSIGN_OR_RETURN(Value right, Eval(*e.args[i + 1]));
    FS_ASSIGN_OR_RETURN(const bool holds, Compare(e.ops[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

StatusOr<Interpreter::Args> Interpreter::EvalArgs(const Expr& e) {
  Args args;
  for (size_t i = 1; i < e.args.size(); ++i) {
    FS_ASSIGN_OR_RETURN(Value v, Eval(*e.args[i]));
    args.values.push_back(std::move(v));
  }
  for (const auto& [name, arg] : e.named) {
    FS_ASSIGN_OR_RETURN(Value v, Eval(*arg));
    args.named.emplace_back(name, std::move(v));
  }
  return args;
}

StatusOr<Value> Interpreter::EvalTest(const Expr& e) {
  const Expr& subject = *e.args[0];
  if (subject.kind == Expr::Kind::kName && e.name == "defined" && IsGlobalFunction(subject.name)) return Value(true);
  FS_ASSIGN_OR_RETURN(const Value v, Eval(subject));
  FS_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
  return Test(e.name, v, args);
}

StatusOr<Value> Interpreter::EvalCall(const Expr& e) {
  const Expr& callee = *e.args[0];
  if (callee.kind == Expr::Kind::kAttribute) {
    FS_ASSIGN_OR_RETURN(const Value object, Eval(*callee.args[0]));
    FS_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
    if (object.undefined()) return InvalidArgument("an undefined value has no method '" + callee.name + "'");
    return Method(object, callee.name, args);
  }
  FS_ASSIGN_OR_RETURN(const Value f, Eval(callee));
  FS_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
  if (f.macro()) return CallMacro(*f.macro(), args);
  if (callee.kind == Expr::Kind::kName && f.undefined()) {
    bool found = false;
    auto result = CallGlobal(callee.name, args, &found);
    if (found) return result;
    return InvalidArgument("'" + callee.name + "' is undefined and cannot be called");
  }
  return InvalidArgument(std::string(f.TypeName()) + " cannot be called");
}

StatusOr<Value> Interpreter::CallMacro(const Stmt& macro, const Args& args) {
  if (args.values.size() > macro.targets.size()) {
    return InvalidArgument("the macro '" + macro.text + "' takes " + std::to_string(macro.targets.size()) +
                           " arguments, but got " + std::to_string(args.values.size()));
  }
  for (const auto& [name, v] : args.named) {
    if (std::find(macro.targets.begin(), macro.targets.end(), name) == macro.targets.end()) {
      return InvalidArgument("the macro '" + macro.text + "' has no parameter '" + name + "'");
    }
  }
  frames_.emplace_back();
  frames_.back().macro = true;
  for (size_t i = 0; i < macro.targets.size(); ++i) {
    Value v;
    const auto named =
        std::find_if(args.named.begin(), args.named.end(), [&](const auto& x) { return x.first == macro.targets[i]; });
    if (i < args.values.size()) {
      v = args.values[i];
    } else if (named != args.named.end()) {
      v = named->second;
    } else if (macro.defaults[i]) {
      FS_ASSIGN_OR_RETURN(v, Eval(*macro.defaults[i]));
    }
    frames_.back().variables.emplace_back(macro.targets[i], std::move(v));
  }
  Str out;
  FS_RETURN_IF_ERROR(ExecBlock(macro.body, &out));
  frames_.pop_back();
  return Value(std::move(out));
}

StatusOr<Value> Interpreter::CallGlobal(const std::string& name, const Args& args, bool* found) {
  *found = IsGlobalFunction(name);
  if (!*found) return Value();
  if (name == "range") return Range(args);
  if (name == "strftime_now" || name == "raise_exception") {
    if (args.values.size() != 1 || !args.named.empty()) return InvalidArgument("'" + name + "' takes one argument");
    if (name == "strftime_now") return StrftimeNow(args.values[0]);
    FS_ASSIGN_OR_RETURN(const Str message, ToStr(args.values[0]));
    located_ = true;  // the template's own words, for whoever sent the conversation
    return InvalidArgument(message.text);
  }
  if (args.values.size() > (name == "dict" ? 1u : 0u)) return InvalidArgument("'" + name + "' takes named arguments");
  if (name == "namespace") {
    auto ns = std::make_shared<Namespace>();
    for (const auto& [key, v] : args.named) {
      if (v.name_space()) return InvalidArgument("a namespace cannot be put into another namespace");
      if (Value* old = ns->Find(key)) {
        *old = v;
      } else {
        ns->items.emplace_back(key, v);
      }
    }
    return Value(std::move(ns));
  }
  std::vector<std::pair<Str, Value>> items;
  if (!args.values.empty()) {
    const Dict* from = args.values[0].dict();
    if (!from) return InvalidArgument("dict() takes a dict, not " + std::string(args.values[0].TypeName()));
    items = from->items;
  }
  for (const auto& [key, v] : args.named) items.emplace_back(Str(key, false), v);
  FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(items.size())));
  return Value::MakeDict(std::move(items));
}

StatusOr<Value> Interpreter::Test(std::string_view name, const Value& v, const Args& args) {
  const size_t wanted = name == "divisibleby" || name == "in" || name == "equalto" || name == "eq" || name == "==" ||
                                name == "ne" || name == "sameas" || name == "lt" || name == "gt" || name == "le" ||
                                name == "ge"
                            ? 1
                            : 0;
  if (args.values.size() != wanted || !args.named.empty()) {
    return InvalidArgument("the test '" + std::string(name) + "' takes " + std::to_string(wanted) + " arguments, not " +
                           std::to_string(args.values.size() + args.named.size()));
  }
  int64_t i = 0;
  if (name == "defined") return Value(!v.undefined());
  if (name == "undefined") return Value(v.undefined());
  if (name == "none") return Value(v.none());
  if (name == "string") return Value(v.str() != nullptr);
  if (name == "mapping") return Value(v.dict() != nullptr);
  if (name == "boolean") return Value(v.boolean() != nullptr);
  if (name == "true") return Value(v.boolean() && *v.boolean());
  if (name == "false") return Value(v.boolean() && !*v.boolean());
  if (name == "integer") return Value(v.integer() != nullptr);
  if (name == "float") return Value(v.real() != nullptr);
  if (name == "number") return Value(v.boolean() || v.integer() || v.real());
  if (name == "iterable" || name == "sequence") return Value(v.str() || v.list() || v.dict() || v.undefined());
  if (name == "callable") return Value(v.macro() != nullptr);
  if (name == "odd" || name == "even") {
    if (!v.AsInteger(&i)) return InvalidArgument("only integers are odd or even, not " + std::string(v.TypeName()));
    return Value((i % 2 != 0) == (name == "odd"));
  }
  if (name == "divisibleby") {
    int64_t by = 0;
    if (!v.AsInteger(&i) || !args.values[0].AsInteger(&by) || by == 0) {
      return InvalidArgument("'divisibleby' needs integers and no zero");
    }
    return Value(by == -1 || i % by == 0);
  }
  constexpr std::pair<std::string_view, Op> kComparisons[] = {
      {"in", Op::kIn}, {"equalto", Op::kEq}, {"eq", Op::kEq}, {"sameas", Op::kEq}, {"ne", Op::kNe},
      {"lt", Op::kLt}, {"gt", Op::kGt},      {"le", Op::kLe}, {"ge", Op::kGe}};
  for (const auto& [test, op] : kComparisons) {
    if (name != test) continue;
    FS_ASSIGN_OR_RETURN(const bool holds, Compare(op, v, args.values[0]));
    return Value(holds);
  }
  return Unimplemented("the test '" + std::string(name) + "' is not supported");
}

StatusOr<Value> Interpreter::EvalSlice(const Expr& e) {
  FS_ASSIGN_OR_RETURN(const Value object, Eval(*e.args[0]));
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!e.args[i + 1]) continue;
    FS_ASSIGN_OR_RETURN(const Value v, Eval(*e.args[i + 1]));
    if (v.none()) continue;
    int64_t n = 0;
    if (!v.AsInteger(&n)) return InvalidArgument("a slice needs integers, not " + std::string(v.TypeName()));
    // Sizes are far below 2^32: a bound beyond it acts as the nearest end, and no sum can overflow.
    bounds[i] = std::clamp<int64_t>(n, -(int64_t{1} << 32), int64_t{1} << 32);
  }
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return InvalidArgument("the step of a slice must not be 0");
  if (!object.str() && !object.list()) {
    return InvalidArgument("a slice needs a string or a list, not " + std::string(object.TypeName()));
  }
  const std::vector<size_t> starts = object.str() ? CharacterStarts(object.str()->text) : std::vector<size_t>();
  const auto n = static_cast<int64_t>(object.str() ? starts.size() - 1 : object.list()->items.size());
  FS_RETURN_IF_ERROR(Step(n / 16));
  const auto place = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t at = *bound < 0 ? *bound + n : *bound;
    return step > 0 ? std::clamp<int64_t>(at, 0, n) : std::clamp<int64_t>(at, -1, n - 1);
  };
  const int64_t begin = place(bounds[0], step > 0 ? 0 : n - 1);
  const int64_t end = place(bounds[1], step > 0 ? n : -1);
  std::vector<Value> picked;
  Str text;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    const auto at = static_cast<size_t>(i);
    if (object.str()) {
      text.Append(object.str()->Sub(starts[at], starts[at + 1] - starts[at]));
    } else {
      picked.push_back(object.list()->items[at]);
    }
  }
  if (object.str()) return MakeStr(std::move(text));
  return Value::MakeList(std::move(picked));
}

}  // namespace farsight::jinja
