// Recursive descent over the tokens of a chat template. Every node knows its depth and none may be deeper than
// kMaxAstDepth: walking or freeing a tree can then never exhaust the stack.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace farsight::jinja {
namespace {

using Kind = Token::Kind;

std::string Quoted(std::string_view text) {
  std::string out(1, '\'');
  out += text.substr(0, 40);
  out += '\'';
  return out;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  StatusOr<Template> Run() {
    Template result;
    FS_RETURN_IF_ERROR(ParseBlock({}, &result.body));
    return result;
  }

 private:
  const Token& Now() const { return tokens_[i_]; }
  const Token& Ahead() const { return tokens_[std::min(i_ + 1, tokens_.size() - 1)]; }
  void Skip() { i_ += i_ + 1 < tokens_.size(); }
  bool IsOp(std::string_view op) const { return Now().kind == Kind::kOperator && Now().text == op; }
  bool IsWord(std::string_view word) const { return Now().kind == Kind::kName && Now().text == word; }
  bool TakeOp(std::string_view op) {
    const bool is = IsOp(op);
    if (is) Skip();
    return is;
  }
  bool TakeWord(std::string_view word) {
    const bool is = IsWord(word);
    if (is) Skip();
    return is;
  }
  static std::string Shown(const Token& t) {
    switch (t.kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kBlockEnd:
        return "'%}'";
      case Kind::kOutputEnd:
        return "'}}'";
      case Kind::kString:
        return "a string";
      case Kind::kInteger:
      case Kind::kReal:
        return "a number";
      default:
        return Quoted(t.text);
    }
  }
  Status Expected(const std::string& what) const {
    return ErrorAt(Now().at, StatusCode::kDataLoss, "expected " + what + ", but got " + Shown(Now()));
  }
  Status NeedOp(std::string_view op) { return TakeOp(op) ? OkStatus() : Expected(Quoted(op)); }
  Status NeedEnd(Kind kind) {
    if (Now().kind != kind) return Expected(kind == Kind::kBlockEnd ? "'%}'" : "'}}'");
    Skip();
    return OkStatus();
  }
  StatusOr<std::string> NeedName(const char* what) {
    if (Now().kind != Kind::kName) return Expected(what);
    std::string name = Now().text;
    Skip();
    return name;
  }

  // Counts C++ recursion while parsing; the guard lives as long as one level.
  struct Level {
    explicit Level(int* n) : depth(n) { ++*depth; }
    ~Level() { --*depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int* depth;
  };
  Status CheckLevel() const {
    if (level_ < kMaxAstDepth) return OkStatus();
    return ErrorAt(Now().at, StatusCode::kResourceExhausted, "nesting deeper than " + std::to_string(kMaxAstDepth));
  }

  // ---- statements ----

  // Statements up to a block tag that begins with one of `ends`, whose begin token is consumed and its word is Now().
  // No ends: up to the end of the template.
  Status ParseBlock(std::initializer_list<std::string_view> ends, Block* out) {
    const Level level(&level_);
    FS_RETURN_IF_ERROR(CheckLevel());
    while (Now().kind != Kind::kEnd) {
      auto stmt = std::make_unique<Stmt>();
      stmt->at = Now().at;
      if (Now().kind == Kind::kText) {
        stmt->text = Now().text;
        Skip();
      } else if (Now().kind == Kind::kOutputBegin) {
        Skip();
        stmt->kind = Stmt::Kind::kOutput;
        FS_ASSIGN_OR_RETURN(stmt->expr, ParseExpr());
        FS_RETURN_IF_ERROR(NeedEnd(Kind::kOutputEnd));
      } else {
        const Position at = Now().at;
        Skip();
        if (Now().kind != Kind::kName) return Expected("the name of a block");
        if (std::find(ends.begin(), ends.end(), Now().text) != ends.end()) return OkStatus();
        FS_RETURN_IF_ERROR(ParseTag(at, stmt.get()));
      }
      out->push_back(std::move(stmt));
    }
    if (ends.size() == 0) return OkStatus();
    return Expected(Quoted("{% " + std::string(*(ends.end() - 1)) + " %}"));
  }

  Status ParseTag(Position at, Stmt* s) {
    const std::string word = Now().text;
    Skip();
    if (word == "if") return ParseIf(s);
    if (word == "for") return ParseFor(s);
    if (word == "set") return ParseSet(s);
    if (word == "macro") return ParseMacro(s);
    if (word == "generation") {  // marks the assistant's words for training; prints its body
      s->kind = Stmt::Kind::kScope;
      FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
      return ParseBody({"endgeneration"}, &s->body);
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return ErrorAt(at, StatusCode::kDataLoss, Quoted(word) + " outside of a loop");
      s->kind = word == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
      return NeedEnd(Kind::kBlockEnd);
    }
    for (std::string_view known : {"include", "import", "from", "extends", "block", "call", "filter", "raw", "with",
                                   "do", "autoescape", "trans", "debug"}) {
      if (word == known)
        return ErrorAt(at, StatusCode::kUnimplemented, Quoted("{% " + word + " %}") + " is not supported");
    }
    return ErrorAt(at, StatusCode::kDataLoss, "unknown block " + Quoted(word));
  }

  // A body, its end word and the end of that tag.
  Status ParseBody(std::initializer_list<std::string_view> ends, Block* out) {
    FS_RETURN_IF_ERROR(ParseBlock(ends, out));
    Skip();
    return NeedEnd(Kind::kBlockEnd);
  }

  Status ParseIf(Stmt* s) {
    s->kind = Stmt::Kind::kIf;
    bool more = true;
    while (more) {
      s->branches.emplace_back();
      FS_ASSIGN_OR_RETURN(s->branches.back().condition, ParseExpr());
      FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
      FS_RETURN_IF_ERROR(ParseBlock({"elif", "else", "endif"}, &s->branches.back().body));
      more = TakeWord("elif");
    }
    if (TakeWord("else")) {
      FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
      s->branches.emplace_back();
      FS_RETURN_IF_ERROR(ParseBlock({"endif"}, &s->branches.back().body));
    }
    Skip();
    return NeedEnd(Kind::kBlockEnd);
  }

  Status ParseTargets(std::vector<std::string>* names) {
    const bool parens = TakeOp("(");
    do {
      FS_ASSIGN_OR_RETURN(std::string name, NeedName("the name of a variable"));
      names->push_back(std::move(name));
    } while (TakeOp(","));
    return parens ? NeedOp(")") : OkStatus();
  }

  Status ParseFor(Stmt* s) {
    s->kind = Stmt::Kind::kFor;
    FS_RETURN_IF_ERROR(ParseTargets(&s->targets));
    if (!TakeWord("in")) return Expected("'in'");
    // Without its own `if ... else`: a condition after the list filters the loop.
    FS_ASSIGN_OR_RETURN(s->expr, ParseTuple(/*ternary=*/false));
    if (TakeWord("if")) {
      FS_ASSIGN_OR_RETURN(s->condition, ParseExpr());
    }
    if (IsWord("recursive")) return ErrorAt(Now().at, StatusCode::kUnimplemented, "recursive loops are not supported");
    FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
    ++loops_;
    const Status body = ParseBlock({"else", "endfor"}, &s->body);
    --loops_;
    FS_RETURN_IF_ERROR(body);
    if (TakeWord("else")) {
      FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
      FS_RETURN_IF_ERROR(ParseBlock({"endfor"}, &s->otherwise));
    }
    Skip();
    return NeedEnd(Kind::kBlockEnd);
  }

  Status ParseSet(Stmt* s) {
    FS_RETURN_IF_ERROR(ParseTargets(&s->targets));
    if (s->targets.size() == 1 && TakeOp(".")) {
      FS_ASSIGN_OR_RETURN(s->text, NeedName("the name of an attribute"));
    }
    if (TakeOp("=")) {
      s->kind = Stmt::Kind::kSet;
      FS_ASSIGN_OR_RETURN(s->expr, ParseTuple(/*ternary=*/true));
      return NeedEnd(Kind::kBlockEnd);
    }
    s->kind = Stmt::Kind::kSetBlock;
    if (s->targets.size() != 1) return Expected("'='");
    FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
    return ParseBody({"endset"}, &s->body);
  }

  Status ParseMacro(Stmt* s) {
    s->kind = Stmt::Kind::kMacro;
    FS_ASSIGN_OR_RETURN(s->text, NeedName("the name of a macro"));
    FS_RETURN_IF_ERROR(NeedOp("("));
    while (!IsOp(")")) {
      FS_ASSIGN_OR_RETURN(std::string name, NeedName("the name of a parameter"));
      s->targets.push_back(std::move(name));
      s->defaults.emplace_back();
      if (TakeOp("=")) {
        FS_ASSIGN_OR_RETURN(s->defaults.back(), ParseExpr());
      }
      if (!TakeOp(",")) break;
    }
    FS_RETURN_IF_ERROR(NeedOp(")"));
    FS_RETURN_IF_ERROR(NeedEnd(Kind::kBlockEnd));
    const int loops = std::exchange(loops_, 0);
    const Status body = ParseBody({"endmacro"}, &s->body);
    loops_ = loops;
    return body;
  }

  // ---- expressions ----

  static ExprPtr Node(Expr::Kind kind, Position at) {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->at = at;
    return e;
  }
  StatusOr<ExprPtr> Done(ExprPtr e) const {
    const auto below = [&e](const ExprPtr& child) {
      if (child) e->depth = std::max(e->depth, child->depth + 1);
    };
    for (const auto& child : e->args) below(child);
    for (const auto& child : e->named) below(child.second);
    if (e->depth <= kMaxAstDepth) return e;
    return ErrorAt(e->at, StatusCode::kResourceExhausted,
                   "an expression nested deeper than " + std::to_string(kMaxAstDepth));
  }
  template <typename... Children>
  StatusOr<ExprPtr> Make(Expr::Kind kind, Position at, Children... children) const {
    ExprPtr e = Node(kind, at);
    (e->args.push_back(std::move(children)), ...);
    return Done(std::move(e));
  }
  StatusOr<ExprPtr> Binary(Position at, Op op, ExprPtr a, ExprPtr b) const {
    ExprPtr e = Node(Expr::Kind::kBinary, at);
    e->ops = {op};
    e->args.push_back(std::move(a));
    e->args.push_back(std::move(b));
    return Done(std::move(e));
  }

  // An expression, or several with commas as a list.
  StatusOr<ExprPtr> ParseTuple(bool ternary) {
    const Position at = Now().at;
    FS_ASSIGN_OR_RETURN(ExprPtr first, ternary ? ParseExpr() : ParseOr());
    if (!IsOp(",")) return first;
    ExprPtr list = Node(Expr::Kind::kList, at);
    list->args.push_back(std::move(first));
    while (TakeOp(",")) {
      if (Now().kind == Kind::kBlockEnd || IsOp(")")) break;
      FS_ASSIGN_OR_RETURN(ExprPtr item, ternary ? ParseExpr() : ParseOr());
      list->args.push_back(std::move(item));
    }
    return Done(std::move(list));
  }

  StatusOr<ExprPtr> ParseExpr() {
    const Level level(&level_);
    FS_RETURN_IF_ERROR(CheckLevel());
    FS_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
    while (IsWord("if")) {
      const Position at = Now().at;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
      ExprPtr otherwise;
      if (TakeWord("else")) {
        FS_ASSIGN_OR_RETURN(otherwise, ParseExpr());
      }
      FS_ASSIGN_OR_RETURN(value,
                          Make(Expr::Kind::kTernary, at, std::move(value), std::move(condition), std::move(otherwise)));
    }
    return value;
  }

  StatusOr<ExprPtr> ParseOr() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
    while (IsWord("or")) {
      const Position at = Now().at;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
      FS_ASSIGN_OR_RETURN(left, Make(Expr::Kind::kOr, at, std::move(left), std::move(right)));
    }
    return left;
  }

  StatusOr<ExprPtr> ParseAnd() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
    while (IsWord("and")) {
      const Position at = Now().at;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
      FS_ASSIGN_OR_RETURN(left, Make(Expr::Kind::kAnd, at, std::move(left), std::move(right)));
    }
    return left;
  }

  StatusOr<ExprPtr> ParseNot() {
    if (!IsWord("not")) return ParseCompare();
    const Level level(&level_);
    FS_RETURN_IF_ERROR(CheckLevel());
    const Position at = Now().at;
    Skip();
    FS_ASSIGN_OR_RETURN(ExprPtr e, ParseNot());
    return Make(Expr::Kind::kNot, at, std::move(e));
  }

  std::optional<Op> TakeComparison() {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<=", Op::kLe},
                                                        {">=", Op::kGe}, {"<", Op::kLt},  {">", Op::kGt}};
    for (const auto& [text, op] : kOps) {
      if (TakeOp(text)) return op;
    }
    if (TakeWord("in")) return Op::kIn;
    if (IsWord("not") && Ahead().kind == Kind::kName && Ahead().text == "in") {
      Skip();
      Skip();
      return Op::kNotIn;
    }
    return std::nullopt;
  }

  StatusOr<ExprPtr> ParseCompare() {
    const Position at = Now().at;
    FS_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
    auto op = TakeComparison();
    if (!op) return first;
    ExprPtr e = Node(Expr::Kind::kCompare, at);
    e->args.push_back(std::move(first));
    for (; op; op = TakeComparison()) {
      e->ops.push_back(*op);
      FS_ASSIGN_OR_RETURN(ExprPtr next, ParseSum());
      e->args.push_back(std::move(next));
    }
    return Done(std::move(e));
  }

  StatusOr<ExprPtr> ParseSum() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
    while (IsOp("+") || IsOp("-")) {
      const Position at = Now().at;
      const Op op = IsOp("+") ? Op::kAdd : Op::kSub;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
      FS_ASSIGN_OR_RETURN(left, Binary(at, op, std::move(left), std::move(right)));
    }
    return left;
  }

  StatusOr<ExprPtr> ParseConcat() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParseProduct());
    while (IsOp("~")) {
      const Position at = Now().at;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParseProduct());
      FS_ASSIGN_OR_RETURN(left, Binary(at, Op::kConcat, std::move(left), std::move(right)));
    }
    return left;
  }

  StatusOr<ExprPtr> ParseProduct() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
    constexpr std::pair<std::string_view, Op> kOps[] = {
        {"*", Op::kMul}, {"//", Op::kFloorDiv}, {"/", Op::kDiv}, {"%", Op::kMod}};
    while (true) {
      const Position at = Now().at;
      const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return IsOp(o.first); });
      if (op == std::end(kOps)) return left;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
      FS_ASSIGN_OR_RETURN(left, Binary(at, op->second, std::move(left), std::move(right)));
    }
  }

  // As in Jinja, and unlike Python: a sign binds closer than a power, and powers group from the left.
  StatusOr<ExprPtr> ParsePower() {
    FS_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
    while (IsOp("**")) {
      const Position at = Now().at;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
      FS_ASSIGN_OR_RETURN(left, Binary(at, Op::kPow, std::move(left), std::move(right)));
    }
    return left;
  }

  StatusOr<ExprPtr> ParseUnary(bool filters) {
    const Level level(&level_);
    FS_RETURN_IF_ERROR(CheckLevel());
    const Position at = Now().at;
    ExprPtr e;
    if (IsOp("-") || IsOp("+")) {
      const auto kind = IsOp("-") ? Expr::Kind::kNegate : Expr::Kind::kPlus;
      Skip();
      FS_ASSIGN_OR_RETURN(ExprPtr inner, ParseUnary(false));
      FS_ASSIGN_OR_RETURN(e, Make(kind, at, std::move(inner)));
    } else {
      FS_ASSIGN_OR_RETURN(ExprPtr primary, ParsePrimary());
      FS_ASSIGN_OR_RETURN(e, ParsePostfix(std::move(primary)));
    }
    if (!filters) return e;
    return ParseFilters(std::move(e));
  }

  StatusOr<ExprPtr> ParsePrimary() {
    const Token& t = Now();
    const Position at = t.at;
    ExprPtr e = Node(Expr::Kind::kLiteral, at);
    switch (t.kind) {
      case Kind::kString: {
        std::string text;  // neighbours are one string
        for (; Now().kind == Kind::kString; Skip()) text += Now().text;
        e->value = Value::Text(text);
        return e;
      }
      case Kind::kInteger:
        e->value = Value(t.integer);
        break;
      case Kind::kReal:
        e->value = Value(t.real);
        break;
      case Kind::kName:
        if (t.text == "true" || t.text == "True") {
          e->value = Value(true);
        } else if (t.text == "false" || t.text == "False") {
          e->value = Value(false);
        } else if (t.text == "none" || t.text == "None") {
          e->value = Value(None{});
        } else {
          e->kind = Expr::Kind::kName;
          e->name = t.text;
        }
        break;
      case Kind::kOperator:
        if (TakeOp("(")) return ParseParens(at);
        if (TakeOp("[")) return ParseListLiteral(at);
        if (TakeOp("{")) return ParseDictLiteral(at);
        return Expected("an expression");
      default:
        return Expected("an expression");
    }
    Skip();
    return e;
  }

  StatusOr<ExprPtr> ParseParens(Position at) {
    if (TakeOp(")")) return Make(Expr::Kind::kList, at);
    FS_ASSIGN_OR_RETURN(ExprPtr e, ParseTuple(/*ternary=*/true));
    FS_RETURN_IF_ERROR(NeedOp(")"));
    return e;
  }

  StatusOr<ExprPtr> ParseListLiteral(Position at) {
    ExprPtr e = Node(Expr::Kind::kList, at);
    while (!IsOp("]")) {
      FS_ASSIGN_OR_RETURN(ExprPtr item, ParseExpr());
      e->args.push_back(std::move(item));
      if (!TakeOp(",")) break;
    }
    FS_RETURN_IF_ERROR(NeedOp("]"));
    return Done(std::move(e));
  }

  StatusOr<ExprPtr> ParseDictLiteral(Position at) {
    ExprPtr e = Node(Expr::Kind::kDict, at);
    while (!IsOp("}")) {
      FS_ASSIGN_OR_RETURN(ExprPtr key, ParseExpr());
      FS_RETURN_IF_ERROR(NeedOp(":"));
      FS_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      e->args.push_back(std::move(key));
      e->args.push_back(std::move(value));
      if (!TakeOp(",")) break;
    }
    FS_RETURN_IF_ERROR(NeedOp("}"));
    return Done(std::move(e));
  }

  StatusOr<ExprPtr> ParsePostfix(ExprPtr e) {
    while (true) {
      const Position at = Now().at;
      if (TakeOp(".")) {
        ExprPtr attribute = Node(Expr::Kind::kAttribute, at);
        if (Now().kind == Kind::kInteger) {  // x.0 is x[0]
          attribute->kind = Expr::Kind::kIndex;
          attribute->args.push_back(std::move(e));
          FS_ASSIGN_OR_RETURN(ExprPtr index, ParsePrimary());
          attribute->args.push_back(std::move(index));
        } else {
          FS_ASSIGN_OR_RETURN(attribute->name, NeedName("the name of an attribute"));
          if (attribute->name.starts_with("__")) {
            return ErrorAt(at, StatusCode::kInvalidArgument,
                           "the attribute " + Quoted(attribute->name) + " is not allowed in a chat template");
          }
          attribute->args.push_back(std::move(e));
        }
        FS_ASSIGN_OR_RETURN(e, Done(std::move(attribute)));
      } else if (TakeOp("[")) {
        FS_ASSIGN_OR_RETURN(e, ParseSubscript(at, std::move(e)));
      } else if (TakeOp("(")) {
        ExprPtr call = Node(Expr::Kind::kCall, at);
        call->args.push_back(std::move(e));
        FS_RETURN_IF_ERROR(ParseArguments(call.get()));
        FS_ASSIGN_OR_RETURN(e, Done(std::move(call)));
      } else {
        return e;
      }
    }
  }

  StatusOr<ExprPtr> ParseSubscript(Position at, ExprPtr object) {
    ExprPtr e = Node(Expr::Kind::kIndex, at);
    e->args.push_back(std::move(object));
    ExprPtr part;
    if (!IsOp(":")) {
      FS_ASSIGN_OR_RETURN(part, ParseExpr());
    }
    e->args.push_back(std::move(part));
    while (e->args.size() < 4 && TakeOp(":")) {
      e->kind = Expr::Kind::kSlice;
      ExprPtr bound;
      if (!IsOp(":") && !IsOp("]")) {
        FS_ASSIGN_OR_RETURN(bound, ParseExpr());
      }
      e->args.push_back(std::move(bound));
    }
    FS_RETURN_IF_ERROR(NeedOp("]"));
    if (e->kind == Expr::Kind::kSlice) e->args.resize(4);
    return Done(std::move(e));
  }

  // After '(': up to ')', into e's args and named.
  Status ParseArguments(Expr* e) {
    while (!IsOp(")")) {
      if (Now().kind == Kind::kName && Ahead().kind == Kind::kOperator && Ahead().text == "=") {
        std::string name = Now().text;
        Skip();
        Skip();
        FS_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
        e->named.emplace_back(std::move(name), std::move(value));
      } else {
        if (IsOp("*") || IsOp("**")) {
          return ErrorAt(Now().at, StatusCode::kUnimplemented, "unpacked arguments are not supported");
        }
        if (!e->named.empty()) return Expected("a named argument");
        FS_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
        e->args.push_back(std::move(value));
      }
      if (!TakeOp(",")) break;
    }
    return NeedOp(")");
  }

  StatusOr<ExprPtr> ParseFilters(ExprPtr e) {
    while (true) {
      const Position at = Now().at;
      if (TakeOp("|")) {
        ExprPtr filter = Node(Expr::Kind::kFilter, at);
        FS_ASSIGN_OR_RETURN(filter->name, NeedName("the name of a filter"));
        filter->args.push_back(std::move(e));
        if (TakeOp("(")) FS_RETURN_IF_ERROR(ParseArguments(filter.get()));
        FS_ASSIGN_OR_RETURN(e, Done(std::move(filter)));
      } else if (TakeWord("is")) {
        FS_ASSIGN_OR_RETURN(e, ParseTest(at, std::move(e)));
      } else if (IsOp("(") || IsOp(".") || IsOp("[")) {
        FS_ASSIGN_OR_RETURN(e, ParsePostfix(std::move(e)));
      } else {
        return e;
      }
    }
  }

  StatusOr<ExprPtr> ParseTest(Position at, ExprPtr value) {
    const bool negated = TakeWord("not");
    ExprPtr test = Node(Expr::Kind::kTest, at);
    FS_ASSIGN_OR_RETURN(test->name, NeedName("the name of a test"));
    test->args.push_back(std::move(value));
    if (TakeOp("(")) {
      FS_RETURN_IF_ERROR(ParseArguments(test.get()));
    } else if (BeginsTestArgument()) {
      FS_ASSIGN_OR_RETURN(ExprPtr primary, ParsePrimary());
      FS_ASSIGN_OR_RETURN(ExprPtr argument, ParsePostfix(std::move(primary)));
      test->args.push_back(std::move(argument));
    }
    FS_ASSIGN_OR_RETURN(ExprPtr e, Done(std::move(test)));
    if (!negated) return e;
    return Make(Expr::Kind::kNot, at, std::move(e));
  }

  bool BeginsTestArgument() const {
    const Token& t = Now();
    if (t.kind == Kind::kString || t.kind == Kind::kInteger || t.kind == Kind::kReal) return true;
    if (t.kind == Kind::kOperator) return t.text == "[" || t.text == "{";
    if (t.kind != Kind::kName) return false;
    for (std::string_view word : {"else", "or", "and", "is", "if", "not", "in", "recursive"}) {
      if (t.text == word) return false;
    }
    return true;
  }

  std::vector<Token> tokens_;
  size_t i_ = 0;
  int level_ = 0;
  int loops_ = 0;
};

}  // namespace

StatusOr<Template> ParseTemplate(std::string_view source) {
  FS_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace farsight::jinja
