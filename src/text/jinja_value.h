// The values a chat template computes with. Strings know, byte by byte, which of their text came from outside (a user's
// words), and keep knowing it through every operation, so that the rendered prompt can be split into scaffold, where
// control tokens count, and content, where they are plain text.
#ifndef FARSIGHT_TEXT_JINJA_VALUE_H_
#define FARSIGHT_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "farsight/status.h"

namespace farsight::jinja {

// Containers nest at most this deep, so that no recursion over a value can exhaust the stack.
inline constexpr int kMaxValueDepth = 64;
inline constexpr size_t kMaxDictItems = 4096;

struct Str {
  std::string text;
  std::string user;  // as long as text: 1 for a byte from outside, 0 for one that the template wrote

  Str() = default;
  Str(std::string t, bool from_user) : text(std::move(t)), user(text.size(), from_user ? '\1' : '\0') {}

  size_t size() const { return text.size(); }
  void Append(const Str& s) {
    text += s.text;
    user += s.user;
  }
  void Append(std::string_view s, bool from_user) {
    text += s;
    user.append(s.size(), from_user ? '\1' : '\0');
  }
  Str Sub(size_t pos, size_t n) const {
    Str s;
    s.text = text.substr(pos, n);
    s.user = user.substr(pos, n);
    return s;
  }
};

class Value;
struct Stmt;
struct List;
struct Dict;
struct Namespace;  // the one mutable thing; never inside another value, so no cycle can form

struct Undefined {};
struct None {};

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Str>, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, const Stmt*>;

  Value() = default;
  Value(None v) : v_(v) {}     // NOLINT(google-explicit-constructor)
  Value(bool v) : v_(v) {}     // NOLINT(google-explicit-constructor)
  Value(int64_t v) : v_(v) {}  // NOLINT(google-explicit-constructor)
  Value(double v) : v_(v) {}   // NOLINT(google-explicit-constructor)
  Value(Str v);                // NOLINT(google-explicit-constructor)
  Value(const char*) = delete;
  explicit Value(std::shared_ptr<Namespace> v) : v_(std::move(v)) {}
  explicit Value(const Stmt* macro) : v_(macro) {}
  static Value Text(std::string_view text) { return Value(Str(std::string(text), false)); }
  static Value UserText(std::string_view text) { return Value(Str(std::string(text), true)); }
  // kResourceExhausted where they would nest too deep, kInvalidArgument for a namespace inside.
  static StatusOr<Value> MakeList(std::vector<Value> items);
  static StatusOr<Value> MakeDict(std::vector<std::pair<Str, Value>> items);  // a later equal key wins

  bool undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool none() const { return std::holds_alternative<None>(v_); }
  const bool* boolean() const { return std::get_if<bool>(&v_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&v_); }
  const double* real() const { return std::get_if<double>(&v_); }
  const Str* str() const { return Pointee<const Str>(); }
  const List* list() const { return Pointee<const List>(); }
  const Dict* dict() const { return Pointee<const Dict>(); }
  Namespace* name_space() const { return Pointee<Namespace>(); }
  const Stmt* macro() const {
    const auto* p = std::get_if<const Stmt*>(&v_);
    return p ? *p : nullptr;
  }
  // A bool, integer or double as a number; false for anything else.
  bool AsInteger(int64_t* out) const;
  bool AsReal(double* out) const;

  bool Truthy() const;
  const char* TypeName() const;
  int depth() const;  // 0 for a scalar

 private:
  template <typename T>
  T* Pointee() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&v_);
    return p ? p->get() : nullptr;
  }
  Variant v_;
};

struct List {
  std::vector<Value> items;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Str, Value>> items;  // in order of insertion
  int depth = 1;
  const Value* Find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  Value* Find(std::string_view key);
};

// Numbers compare by value, containers by content. At most `*budget` element comparisons; it is decreased.
bool Equal(const Value& a, const Value& b, int64_t* budget);

std::string RealText(double v);  // as Python writes a float

// One JSON document as values, its strings marked as from outside. kInvalidArgument with the reason.
StatusOr<Value> ValueFromJson(std::string_view json);

}  // namespace farsight::jinja

#endif  // FARSIGHT_TEXT_JINJA_VALUE_H_
