#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace farsight::jinja {
namespace {

Status CheckItem(const Value& item, int* depth) {
  if (item.name_space()) return InvalidArgument("a namespace cannot be put into a list, a dict or another namespace");
  *depth = std::max(*depth, item.depth() + 1);
  if (*depth <= kMaxValueDepth) return OkStatus();
  return ResourceExhausted("values nest deeper than " + std::to_string(kMaxValueDepth));
}

// Builds values while the JSON is read: the tree of the JSON library is never made, so that depth and sizes are
// checked before anything is walked or searched.
class JsonReader final : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  bool null() override { return Add(Value(None{})); }
  bool boolean(bool v) override { return Add(Value(v)); }
  bool number_integer(number_integer_t v) override { return Add(Value(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override {
    return Add(v > uint64_t{INT64_MAX} ? Value(static_cast<double>(v)) : Value(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override { return Add(Value(double{v})); }
  bool string(string_t& v) override { return Add(Value::UserText(v)); }
  bool binary(binary_t&) override { return Fail(InvalidArgument("the JSON document holds binary data")); }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool key(string_t& v) override {
    open_.back().keys.emplace_back(v, true);
    return true;
  }
  bool end_array() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    return Close(Value::MakeList(std::move(level.values)));
  }
  bool end_object() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    std::vector<std::pair<Str, Value>> items;
    for (size_t i = 0; i < level.keys.size(); ++i) {
      items.emplace_back(std::move(level.keys[i]), std::move(level.values[i]));
    }
    return Close(Value::MakeDict(std::move(items)));
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(InvalidArgument("the text is not valid JSON near byte " + std::to_string(at)));
  }

  Status status;
  Value result;

 private:
  struct Level {
    std::vector<Str> keys;
    std::vector<Value> values;
  };

  bool Fail(Status s) {
    status = std::move(s);
    return false;
  }
  bool Open() {
    if (open_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      return Fail(InvalidArgument("the JSON document nests deeper than " + std::to_string(kMaxValueDepth)));
    }
    open_.emplace_back();
    return true;
  }
  bool Close(StatusOr<Value> v) { return v.ok() ? Add(std::move(v).value()) : Fail(v.status()); }
  bool Add(Value v) {
    if (open_.empty()) {
      result = std::move(v);
    } else {
      open_.back().values.push_back(std::move(v));
    }
    return true;
  }

  std::vector<Level> open_;
};

bool EqualSize(size_t a, size_t b, int64_t* budget) {
  *budget -= static_cast<int64_t>(a) + 1;
  return a == b && *budget > 0;
}

}  // namespace

Value::Value(Str v) : v_(std::make_shared<const Str>(std::move(v))) {}

StatusOr<Value> Value::MakeList(std::vector<Value> items) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) FS_RETURN_IF_ERROR(CheckItem(item, &list->depth));
  list->items = std::move(items);
  Value v;
  v.v_ = std::shared_ptr<const List>(std::move(list));
  return v;
}

StatusOr<Value> Value::MakeDict(std::vector<std::pair<Str, Value>> items) {
  auto dict = std::make_shared<Dict>();
  if (items.size() > kMaxDictItems) {  // keys are searched one by one
    return ResourceExhausted("a dict may have " + std::to_string(kMaxDictItems) + " keys, but this one has " +
                             std::to_string(items.size()));
  }
  for (auto& [key, item] : items) {
    FS_RETURN_IF_ERROR(CheckItem(item, &dict->depth));
    const auto old = std::find_if(dict->items.begin(), dict->items.end(),
                                  [&k = key](const auto& x) { return x.first.text == k.text; });
    if (old != dict->items.end()) {
      old->second = std::move(item);
    } else {
      dict->items.emplace_back(std::move(key), std::move(item));
    }
  }
  Value v;
  v.v_ = std::shared_ptr<const Dict>(std::move(dict));
  return v;
}

bool Value::AsInteger(int64_t* out) const {
  if (const bool* b = boolean()) {
    *out = *b ? 1 : 0;
    return true;
  }
  if (const int64_t* i = integer()) {
    *out = *i;
    return true;
  }
  return false;
}

bool Value::AsReal(double* out) const {
  int64_t i = 0;
  if (AsInteger(&i)) {
    *out = static_cast<double>(i);
    return true;
  }
  if (const double* d = real()) {
    *out = *d;
    return true;
  }
  return false;
}

bool Value::Truthy() const {
  double number = 0;
  if (AsReal(&number)) return number != 0;
  if (const Str* s = str()) return s->size() > 0;
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  return name_space() || macro();
}

const char* Value::TypeName() const {
  constexpr const char* kNames[] = {"undefined", "none",   "a bool", "an integer",  "a float",
                                    "a string",  "a list", "a dict", "a namespace", "a macro"};
  return kNames[v_.index()];
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth;
  return 0;
}

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k.text == key) return &v;
  }
  return nullptr;
}

Value* Namespace::Find(std::string_view key) {
  for (auto& [k, v] : items) {
    if (k == key) return &v;
  }
  return nullptr;
}

bool Equal(const Value& a, const Value& b, int64_t* budget) {
  if (--*budget <= 0) return false;
  int64_t ai = 0, bi = 0;
  if (a.AsInteger(&ai) && b.AsInteger(&bi)) return ai == bi;
  double ad = 0, bd = 0;
  if (a.AsReal(&ad) && b.AsReal(&bd)) return ad == bd;
  if (a.str() && b.str()) return a.str()->text == b.str()->text;
  if (a.list() && b.list()) {
    const auto &x = a.list()->items, &y = b.list()->items;
    if (!EqualSize(x.size(), y.size(), budget)) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!Equal(x[i], y[i], budget)) return false;
    }
    return true;
  }
  if (a.dict() && b.dict()) {
    if (!EqualSize(a.dict()->items.size(), b.dict()->items.size(), budget)) return false;
    for (const auto& [key, v] : a.dict()->items) {
      const Value* other = b.dict()->Find(key.text);
      if (!other || !Equal(v, *other, budget)) return false;
    }
    return true;
  }
  if (a.name_space() || b.name_space()) return a.name_space() == b.name_space();
  if (a.macro() || b.macro()) return a.macro() == b.macro();
  return (a.none() && b.none()) || (a.undefined() && b.undefined());
}

std::string RealText(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  char buffer[40];
  const double size = std::fabs(v);
  // The shortest digits that read back as v; an exponent only outside [1e-4, 1e16).
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), v,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

StatusOr<Value> ValueFromJson(std::string_view json) {
  JsonReader reader;
  if (!nlohmann::ordered_json::sax_parse(json.begin(), json.end(), &reader)) {
    return reader.status.ok() ? InvalidArgument("the text is not valid JSON") : reader.status;
  }
  return std::move(reader.result);
}

}  // namespace farsight::jinja
