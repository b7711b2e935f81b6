// What operators do with values, and how values are written out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

namespace farsight::jinja {
namespace {

Status Mismatch(const char* what, const Value& a, const Value& b) {
  return InvalidArgument(std::string("cannot ") + what + " " + a.TypeName() + " and " + b.TypeName());
}

Status Overflow() { return ResourceExhausted("an integer left the 64-bit range"); }

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0); }

StatusOr<Value> Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t v = 1;
  for (int64_t i = 0; i < exponent && v != 0; ++i) {
    if (base == 1) return Value(int64_t{1});
    if (base == -1) return Value(int64_t{exponent % 2 == 0 ? 1 : -1});
    if (__builtin_mul_overflow(v, base, &v)) return Overflow();
  }
  return Value(v);
}

StatusOr<Value> Integers(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  const bool divides = op == Op::kFloorDiv || op == Op::kMod || op == Op::kDiv;
  if (divides && b == 0) return InvalidArgument("a division by zero");
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &r)) return Overflow();
      return Value(r);
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &r)) return Overflow();
      return Value(r);
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &r)) return Overflow();
      return Value(r);
    case Op::kDiv:
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::kFloorDiv:
      if (b == -1) return Integers(Op::kSub, 0, a);
      return Value(FloorDiv(a, b));
    case Op::kMod:
      if (b == -1) return Value(int64_t{0});
      return Value(a - FloorDiv(a, b) * b);
    default:
      return Power(a, b);
  }
}

StatusOr<Value> Reals(Op op, double a, double b) {
  const bool divides = op == Op::kFloorDiv || op == Op::kMod || op == Op::kDiv;
  if (divides && b == 0) return InvalidArgument("a division by zero");
  switch (op) {
    case Op::kAdd:
      return Value(a + b);
    case Op::kSub:
      return Value(a - b);
    case Op::kMul:
      return Value(a * b);
    case Op::kDiv:
      return Value(a / b);
    case Op::kFloorDiv:
      return Value(std::floor(a / b));
    case Op::kMod:
      return Value(a - std::floor(a / b) * b);
    default:
      return Value(std::pow(a, b));
  }
}

const char* Verb(Op op) {
  switch (op) {
    case Op::kAdd:
      return "add";
    case Op::kSub:
      return "subtract";
    case Op::kMul:
      return "multiply";
    case Op::kMod:
      return "take the remainder of";
    case Op::kPow:
      return "raise to a power";
    default:
      return "divide";
  }
}

// A string between quotes, its own bytes keeping their mark; `escape` gives what stands for a byte, or nothing.
template <typename Escape>
void Quote(const Str& s, char quote, const Escape& escape, Str* out) {
  const char mark[2] = {quote, '\0'};
  out->Append(mark, false);
  for (size_t i = 0; i < s.size(); ++i) {
    const std::string text = escape(s.text[i]);
    out->Append(text.empty() ? std::string_view(&s.text[i], 1) : std::string_view(text), s.user[i] != 0);
  }
  out->Append(mark, false);
}

std::string Hex(const char* format, char c) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(static_cast<unsigned char>(c)));
  return buffer;
}

std::string JsonEscape(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      return static_cast<unsigned char>(c) < 0x20 ? Hex("\\u%04x", c) : "";
  }
}

}  // namespace

Status Interpreter::Charge(size_t bytes) {
  if (bytes > limits_.output_bytes) {
    return ResourceExhausted("it makes a string longer than " + std::to_string(limits_.output_bytes) + " bytes");
  }
  bytes_ += static_cast<int64_t>(bytes);
  if (bytes_ <= limits_.string_bytes) return OkStatus();
  return ResourceExhausted("its strings take more than " + std::to_string(limits_.string_bytes) + " bytes");
}

StatusOr<Value> Interpreter::MakeStr(Str s) {
  FS_RETURN_IF_ERROR(Charge(s.size()));
  return Value(std::move(s));
}

StatusOr<Value> Interpreter::Repeat(const Value& v, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const size_t n = v.str() ? v.str()->size() : v.list()->items.size();
  // Checked as a quotient: the product may not exist.
  if (n > 0 && static_cast<uint64_t>(times) > limits_.output_bytes / n) {
    return ResourceExhausted("repeating " + std::to_string(n) + " elements " + std::to_string(times) +
                             " times is more than " + std::to_string(limits_.output_bytes));
  }
  const size_t total = n * static_cast<size_t>(n > 0 ? times : 0);
  if (v.str()) {
    FS_RETURN_IF_ERROR(Charge(total));
    Str out;
    for (size_t i = 0; i < total; i += n) out.Append(*v.str());
    return Value(std::move(out));
  }
  FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(total)));
  std::vector<Value> out;
  const auto& items = v.list()->items;
  for (size_t i = 0; i < total; i += n) out.insert(out.end(), items.begin(), items.end());
  return Value::MakeList(std::move(out));
}

StatusOr<Value> Interpreter::Binary(Op op, const Value& a, const Value& b) {
  if (op == Op::kConcat) {
    FS_ASSIGN_OR_RETURN(Str left, ToStr(a));
    FS_ASSIGN_OR_RETURN(const Str right, ToStr(b));
    FS_RETURN_IF_ERROR(Charge(left.size() + right.size()));
    left.Append(right);
    return Value(std::move(left));
  }
  int64_t ai = 0, bi = 0;
  if (a.AsInteger(&ai) && b.AsInteger(&bi)) return Integers(op, ai, bi);
  double ad = 0, bd = 0;
  if (a.AsReal(&ad) && b.AsReal(&bd)) return Reals(op, ad, bd);
  if (op == Op::kAdd && a.str() && b.str()) {
    FS_RETURN_IF_ERROR(Charge(a.str()->size() + b.str()->size()));
    Str sum = *a.str();
    sum.Append(*b.str());
    return Value(std::move(sum));
  }
  if (op == Op::kAdd && a.list() && b.list()) {
    std::vector<Value> sum = a.list()->items;
    sum.insert(sum.end(), b.list()->items.begin(), b.list()->items.end());
    FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(sum.size())));
    return Value::MakeList(std::move(sum));
  }
  if (op == Op::kMul && (a.str() || a.list()) && b.AsInteger(&bi)) return Repeat(a, bi);
  if (op == Op::kMul && (b.str() || b.list()) && a.AsInteger(&ai)) return Repeat(b, ai);
  if (op == Op::kMod && a.str()) return Unimplemented("formatting with '%' is not supported");
  return Mismatch(Verb(op), a, b);
}

StatusOr<bool> Interpreter::Same(const Value& a, const Value& b) {
  const int64_t left = limits_.steps - steps_ + 1;
  int64_t budget = left;
  const bool equal = Equal(a, b, &budget);
  FS_RETURN_IF_ERROR(Step(left - budget));
  return equal;
}

StatusOr<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (const Str* s = container.str()) {
    if (!item.str()) return Mismatch("search in", container, item);
    return s->text.find(item.str()->text) != std::string::npos;
  }
  if (const Dict* d = container.dict()) return item.str() && d->Find(item.str()->text);
  if (container.undefined()) return false;
  if (!container.list()) return Mismatch("search in", container, item);
  for (const Value& x : container.list()->items) {
    FS_ASSIGN_OR_RETURN(const bool same, Same(x, item));
    if (same) return true;
  }
  return false;
}

StatusOr<bool> Interpreter::Compare(Op op, const Value& a, const Value& b) {
  if (op == Op::kEq || op == Op::kNe) {
    FS_ASSIGN_OR_RETURN(const bool same, Same(a, b));
    return same == (op == Op::kEq);
  }
  if (op == Op::kIn || op == Op::kNotIn) {
    FS_ASSIGN_OR_RETURN(const bool has, Contains(b, a));
    return has == (op == Op::kIn);
  }
  int64_t ai = 0, bi = 0;
  double ad = 0, bd = 0;
  int order = 0;
  if (a.AsInteger(&ai) && b.AsInteger(&bi)) {
    order = ai < bi ? -1 : ai > bi;
  } else if (a.AsReal(&ad) && b.AsReal(&bd)) {
    if (std::isnan(ad) || std::isnan(bd)) return false;
    order = ad < bd ? -1 : ad > bd;
  } else if (a.str() && b.str()) {
    order = a.str()->text.compare(b.str()->text);
  } else {
    return Mismatch("order", a, b);
  }
  return op == Op::kLt ? order < 0 : op == Op::kLe ? order <= 0 : op == Op::kGt ? order > 0 : order >= 0;
}

StatusOr<Value> Interpreter::Attribute(const Value& object, std::string_view name) {
  if (name.starts_with("__")) {
    return InvalidArgument("the attribute '" + std::string(name) + "' is not allowed in a chat template");
  }
  if (object.undefined()) {
    return InvalidArgument("an undefined value has no attribute '" + std::string(name) + "'");
  }
  const Value* found = nullptr;
  if (const Dict* d = object.dict()) found = d->Find(name);
  if (Namespace* ns = object.name_space()) found = ns->Find(name);
  return found ? *found : Value();
}

StatusOr<Value> Interpreter::Index(const Value& object, const Value& index) {
  if (object.undefined()) return InvalidArgument("an undefined value has no elements");
  if (const Str* key = index.str()) {
    if (const Dict* d = object.dict()) {
      const Value* found = d->Find(key->text);
      return found ? *found : Value();
    }
    return Attribute(object, key->text);
  }
  int64_t i = 0;
  if (!index.AsInteger(&i)) return Value();
  if (const List* list = object.list()) {
    const auto n = static_cast<int64_t>(list->items.size());
    if (i < 0) i += n;
    return i >= 0 && i < n ? list->items[static_cast<size_t>(i)] : Value();
  }
  if (const Str* s = object.str()) {
    FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(s->size() / 16)));
    const auto starts = CharacterStarts(s->text);
    const auto n = static_cast<int64_t>(starts.size()) - 1;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return Value();
    const auto at = static_cast<size_t>(i);
    return MakeStr(s->Sub(starts[at], starts[at + 1] - starts[at]));
  }
  return Value();
}

StatusOr<std::vector<Value>> Interpreter::Items(const Value& v) {
  std::vector<Value> items;
  if (const List* list = v.list()) {
    FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(list->items.size())));
    items = list->items;
  } else if (const Dict* d = v.dict()) {
    FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(d->items.size())));
    for (const auto& item : d->items) items.emplace_back(item.first);
  } else if (const Str* s = v.str()) {
    FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(s->size())));
    const auto starts = CharacterStarts(s->text);
    for (size_t i = 0; i + 1 < starts.size(); ++i) items.emplace_back(s->Sub(starts[i], starts[i + 1] - starts[i]));
  } else if (!v.undefined()) {
    return InvalidArgument("cannot go through " + std::string(v.TypeName()) + " item by item");
  }
  return items;
}

StatusOr<Str> Interpreter::ToStr(const Value& v) {
  if (v.str()) return *v.str();
  Str out;
  if (!v.undefined()) FS_RETURN_IF_ERROR(Repr(v, &out));
  return out;
}

Status Interpreter::Repr(const Value& v, Str* out) {
  FS_RETURN_IF_ERROR(Step());
  const size_t before = out->size();
  if (const Str* s = v.str()) {
    const bool doubles = s->text.find('\'') != std::string::npos && s->text.find('"') == std::string::npos;
    const char quote = doubles ? '"' : '\'';
    Quote(
        *s, quote,
        [quote](char c) -> std::string {
          if (c == quote || c == '\\') return {'\\', c};
          if (c == '\n' || c == '\r' || c == '\t') return JsonEscape(c);
          return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? Hex("\\x%02x", c) : "";
        },
        out);
  } else if (v.none() || v.undefined()) {
    out->Append(v.none() ? "None" : "Undefined", false);
  } else if (const bool* b = v.boolean()) {
    out->Append(*b ? "True" : "False", false);
  } else if (const int64_t* i = v.integer()) {
    out->Append(std::to_string(*i), false);
  } else if (const double* d = v.real()) {
    out->Append(RealText(*d), false);
  } else if (const List* list = v.list()) {
    out->Append("[", false);
    for (size_t k = 0; k < list->items.size(); ++k) {
      if (k > 0) out->Append(", ", false);
      FS_RETURN_IF_ERROR(Repr(list->items[k], out));
    }
    out->Append("]", false);
  } else if (const Dict* dict = v.dict()) {
    out->Append("{", false);
    for (size_t k = 0; k < dict->items.size(); ++k) {
      if (k > 0) out->Append(", ", false);
      FS_RETURN_IF_ERROR(Repr(Value(dict->items[k].first), out));
      out->Append(": ", false);
      FS_RETURN_IF_ERROR(Repr(dict->items[k].second, out));
    }
    out->Append("}", false);
  } else {
    return InvalidArgument(std::string(v.TypeName()) + " cannot be written out");
  }
  if (out->size() > limits_.output_bytes) return Charge(out->size());
  return v.list() || v.dict() ? OkStatus() : Charge(out->size() - before);
}

Status Interpreter::Json(const Value& v, int indent, int level, Str* out) {
  const auto line = [&](int depth) {
    if (indent < 0) return;
    out->Append("\n", false);
    out->Append(std::string(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' '), false);
  };
  const char* comma = indent >= 0 ? "," : ", ";
  if (const Str* s = v.str()) {
    FS_RETURN_IF_ERROR(Step());
    FS_RETURN_IF_ERROR(Charge(s->size()));
    Quote(*s, '"', JsonEscape, out);
  } else if (const bool* b = v.boolean()) {
    out->Append(*b ? "true" : "false", false);
  } else if (v.none()) {
    out->Append("null", false);
  } else if (const double* d = v.real()) {
    out->Append(std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d > 0 ? "Infinity" : "-Infinity") : RealText(*d), false);
  } else if (const List* list = v.list()) {
    FS_RETURN_IF_ERROR(Step(1 + static_cast<int64_t>(list->items.size())));
    out->Append("[", false);
    for (size_t k = 0; k < list->items.size(); ++k) {
      if (k > 0) out->Append(comma, false);
      line(level + 1);
      FS_RETURN_IF_ERROR(Json(list->items[k], indent, level + 1, out));
    }
    if (!list->items.empty()) line(level);
    out->Append("]", false);
  } else if (const Dict* dict = v.dict()) {
    FS_RETURN_IF_ERROR(Step(1 + static_cast<int64_t>(dict->items.size())));
    out->Append("{", false);
    for (size_t k = 0; k < dict->items.size(); ++k) {
      if (k > 0) out->Append(comma, false);
      line(level + 1);
      FS_RETURN_IF_ERROR(Json(Value(dict->items[k].first), indent, level + 1, out));
      out->Append(": ", false);
      FS_RETURN_IF_ERROR(Json(dict->items[k].second, indent, level + 1, out));
    }
    if (!dict->items.empty()) line(level);
    out->Append("}", false);
  } else if (v.integer()) {
    out->Append(std::to_string(*v.integer()), false);
  } else {
    return InvalidArgument(std::string(v.TypeName()) + " cannot be written as JSON");
  }
  return out->size() > limits_.output_bytes ? Charge(out->size()) : OkStatus();
}

}  // namespace farsight::jinja
