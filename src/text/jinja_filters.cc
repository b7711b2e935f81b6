// Filters and global functions of chat templates.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

namespace farsight::jinja {
namespace {

// One comma-separated name off the front of `names`.
std::string_view TakeName(std::string_view* names) {
  const size_t comma = names->find(',');
  const std::string_view name = names->substr(0, comma);
  *names = comma == std::string_view::npos ? std::string_view() : names->substr(comma + 1);
  return name;
}

// The civil date of a day counted from 1970-01-01 (proleptic Gregorian calendar).
struct Date {
  int64_t year;
  int month, day;  // from 1
};
Date CivilDate(int64_t days) {
  days += 719468;  // from 0000-03-01, so that a leap day ends its year
  const int64_t era = (days >= 0 ? days : days - 146096) / 146097;
  const int64_t day_of_era = days - era * 146097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month = (5 * day_of_year + 2) / 153;
  const auto day = static_cast<int>(day_of_year - (153 * month + 2) / 5 + 1);
  return {year_of_era + era * 400 + (month >= 10 ? 1 : 0), static_cast<int>(month < 10 ? month + 3 : month - 9), day};
}

std::string Padded(int64_t v, size_t width) {
  std::string text = std::to_string(v);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

}  // namespace

StatusOr<Value> Interpreter::CallBuiltin(const Builtin& f, const Value& self, const Args& args) {
  if (f.parameters == "*") return f.function(this, self, args);
  Args bound;
  size_t used = 0;
  std::string_view names = f.parameters;
  for (size_t i = 0; !names.empty(); ++i) {
    const std::string_view name = TakeName(&names);
    bound.values.emplace_back();
    if (i < args.values.size()) bound.values[i] = args.values[i];
    for (const auto& [key, v] : args.named) {
      if (key != name) continue;
      if (i < args.values.size()) return InvalidArgument("'" + std::string(f.name) + "' got '" + key + "' twice");
      bound.values[i] = v;
      ++used;
    }
  }
  if (args.values.size() > bound.values.size() || used < args.named.size()) {
    return InvalidArgument("'" + std::string(f.name) + "' takes the arguments (" + std::string(f.parameters) +
                           ") only, at most once each");
  }
  return f.function(this, self, bound);
}

StatusOr<Value> Interpreter::JoinItems(const Value& v, const Value& separator, const Value& attribute) {
  FS_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(v));
  FS_ASSIGN_OR_RETURN(const Str between, ToStr(separator));
  Str out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (!attribute.undefined() && !attribute.none()) {
      FS_ASSIGN_OR_RETURN(item, Index(item, attribute));
    }
    FS_ASSIGN_OR_RETURN(const Str text, ToStr(item));
    FS_RETURN_IF_ERROR(Charge(text.size() + between.size()));
    if (i > 0) out.Append(between);
    out.Append(text);
    if (out.size() > limits_.output_bytes) return Charge(out.size());
  }
  return Value(std::move(out));
}

StatusOr<Value> Interpreter::Range(const Args& args) {
  int64_t n[3] = {0, 0, 1};
  const size_t count = args.values.size();
  if (count < 1 || count > 3 || !args.named.empty()) return InvalidArgument("range() takes 1 to 3 arguments");
  for (size_t i = 0; i < count; ++i) {
    if (!args.values[i].AsInteger(&n[i])) {
      return InvalidArgument("range() needs integers, not " + std::string(args.values[i].TypeName()));
    }
  }
  if (count == 1) std::swap(n[0], n[1]);
  if (n[2] == 0) return InvalidArgument("the step of range() must not be 0");
  // In 128 bits, where no difference of two 64-bit numbers can overflow.
  const __int128 distance = static_cast<__int128>(n[1]) - n[0];
  const __int128 step = n[2];
  const __int128 items =
      distance == 0 || (distance > 0) != (step > 0) ? 0 : (distance + step - (step > 0 ? 1 : -1)) / step;
  if (items > limits_.range_items) {
    return ResourceExhausted("range() may give " + std::to_string(limits_.range_items) + " numbers, not more");
  }
  FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(items)));
  std::vector<Value> out;
  for (int64_t i = 0; i < static_cast<int64_t>(items); ++i) out.emplace_back(n[0] + i * n[2]);
  return Value::MakeList(std::move(out));
}

StatusOr<Value> Interpreter::StrftimeNow(const Value& format) {
  constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December"};
  constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  const Str* f = format.str();
  if (!f) return InvalidArgument("strftime_now needs a format, not " + std::string(format.TypeName()));
  const int64_t now = std::clamp<int64_t>(now_, 0, int64_t{253402300799});  // to the end of the year 9999
  const int64_t days = now / 86400, seconds = now % 86400;
  const Date date = CivilDate(days);
  const auto month = kMonths[date.month - 1];
  const auto weekday = kDays[(days + 4) % 7];
  std::string out;
  for (size_t i = 0; i < f->size(); ++i) {
    if (f->text[i] != '%' || i + 1 == f->size()) {
      out += f->text[i];
      continue;
    }
    const char c = f->text[++i];
    const int64_t hour = seconds / 3600;
    if (c == 'Y')
      out += Padded(date.year, 4);
    else if (c == 'y')
      out += Padded(date.year % 100, 2);
    else if (c == 'm')
      out += Padded(date.month, 2);
    else if (c == 'd')
      out += Padded(date.day, 2);
    else if (c == 'B')
      out += month;
    else if (c == 'b')
      out += month.substr(0, 3);
    else if (c == 'A')
      out += weekday;
    else if (c == 'a')
      out += weekday.substr(0, 3);
    else if (c == 'H')
      out += Padded(hour, 2);
    else if (c == 'I')
      out += Padded((hour + 11) % 12 + 1, 2);
    else if (c == 'p')
      out += hour < 12 ? "AM" : "PM";
    else if (c == 'M')
      out += Padded(seconds / 60 % 60, 2);
    else if (c == 'S')
      out += Padded(seconds % 60, 2);
    else if (c == '%')
      out += '%';
    else
      return Unimplemented(std::string("strftime_now does not know '%") + c + "'");
  }
  return MakeStr(Str(std::move(out), false));
}

// The functions behind the table at the end: each takes the filtered value and its bound arguments.
struct Interpreter::Filters {
  using In = Interpreter*;
  static constexpr int64_t kMaxIndent = 64;

  static Status Refuse(const char* filter, const Value& v) {
    return InvalidArgument(std::string("'") + filter + "' cannot take " + v.TypeName());
  }
  static StatusOr<int64_t> Number(const Value& v, int64_t otherwise) {
    int64_t n = otherwise;
    if (!v.undefined() && !v.none() && !v.AsInteger(&n)) {
      return InvalidArgument("an integer is needed, not " + std::string(v.TypeName()));
    }
    return n;
  }
  static StatusOr<int64_t> Indentation(const Value& v, int64_t otherwise) {
    FS_ASSIGN_OR_RETURN(const int64_t n, Number(v, otherwise));
    if (n >= -1 && n <= kMaxIndent) return n;
    return InvalidArgument("an indent must be between 0 and " + std::to_string(kMaxIndent) + ", not " +
                           std::to_string(n));
  }
  // The value as a string, as Python's str() would write it.
  static StatusOr<Value> String(In in, const Value& v, const Args&) {
    if (v.str()) return v;
    FS_ASSIGN_OR_RETURN(Str s, in->ToStr(v));
    return Value(std::move(s));
  }

  static StatusOr<Value> Trim(In in, const Value& v, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str s, in->ToStr(v));
    return in->Strip(s, a.values[0], true, true);
  }
  template <auto kChange>
  static StatusOr<Value> Changed(In in, const Value& v, const Args&) {
    FS_ASSIGN_OR_RETURN(const Str s, in->ToStr(v));
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(s.size() / 16)));
    return in->MakeStr(kChange(s));
  }
  static StatusOr<Value> Replace(In in, const Value& v, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str s, in->ToStr(v));
    return in->ReplaceIn(s, a.values[0], a.values[1], a.values[2]);
  }
  static StatusOr<Value> Length(In in, const Value& v, const Args&) {
    if (const Str* s = v.str()) {
      FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(s->size() / 16)));
      return Value(static_cast<int64_t>(CharacterStarts(s->text).size() - 1));
    }
    if (v.list()) return Value(static_cast<int64_t>(v.list()->items.size()));
    if (v.dict()) return Value(static_cast<int64_t>(v.dict()->items.size()));
    if (v.undefined()) return Value(int64_t{0});
    return Refuse("length", v);
  }
  static StatusOr<Value> ToJson(In in, const Value& v, const Args& a) {
    FS_ASSIGN_OR_RETURN(const int64_t indent, Indentation(a.values[0], -1));
    for (size_t i = 1; i < a.values.size(); ++i) {
      if (a.values[i].Truthy()) {
        return Unimplemented("'tojson' takes an indent only: other settings of it are not supported");
      }
    }
    Str out;
    FS_RETURN_IF_ERROR(in->Json(v, static_cast<int>(indent), 0, &out));
    return in->MakeStr(std::move(out));
  }
  static StatusOr<Value> Join(In in, const Value& v, const Args& a) {
    return in->JoinItems(v, a.values[0], a.values[1]);
  }
  static StatusOr<Value> Default(In, const Value& v, const Args& a) {
    const bool use = v.undefined() || (a.values[1].Truthy() && !v.Truthy());
    if (!use) return v;
    return a.values[0].undefined() ? Value::Text("") : a.values[0];
  }
  static StatusOr<Value> First(In in, const Value& v, const Args&) {
    if (v.str() || v.list()) return in->Index(v, Value(int64_t{0}));
    FS_ASSIGN_OR_RETURN(const std::vector<Value> items, in->Items(v));
    return items.empty() ? Value() : items.front();
  }
  static StatusOr<Value> Last(In in, const Value& v, const Args&) {
    if (v.str() || v.list()) return in->Index(v, Value(int64_t{-1}));
    FS_ASSIGN_OR_RETURN(const std::vector<Value> items, in->Items(v));
    return items.empty() ? Value() : items.back();
  }
  static StatusOr<Value> ToList(In in, const Value& v, const Args&) {
    FS_ASSIGN_OR_RETURN(std::vector<Value> items, in->Items(v));
    return Value::MakeList(std::move(items));
  }
  static StatusOr<Value> Reverse(In in, const Value& v, const Args&) {
    FS_ASSIGN_OR_RETURN(std::vector<Value> items, in->Items(v));
    std::reverse(items.begin(), items.end());
    if (!v.str()) return Value::MakeList(std::move(items));
    Str out;
    for (const Value& c : items) out.Append(*c.str());
    return in->MakeStr(std::move(out));
  }
  static StatusOr<Value> Unique(In in, const Value& v, const Args&) {
    FS_ASSIGN_OR_RETURN(const std::vector<Value> items, in->Items(v));
    std::vector<Value> kept;
    for (const Value& item : items) {
      bool seen = false;
      for (size_t i = 0; i < kept.size() && !seen; ++i) {
        FS_ASSIGN_OR_RETURN(seen, in->Same(kept[i], item));
      }
      if (!seen) kept.push_back(item);
    }
    return Value::MakeList(std::move(kept));
  }
  static StatusOr<Value> ToInteger(In, const Value& v, const Args& a) {
    FS_ASSIGN_OR_RETURN(const int64_t otherwise, Number(a.values[0], 0));
    int64_t n = 0;
    double d = 0;
    if (v.AsInteger(&n)) return Value(n);
    if (v.AsReal(&d)) return Value(std::fabs(d) < 0x1p63 ? static_cast<int64_t>(d) : otherwise);
    if (!v.str()) return Value(otherwise);
    const char* end = v.str()->text.data() + v.str()->size();
    const auto r = std::from_chars(v.str()->text.data(), end, n);
    return Value(r.ec == std::errc() && r.ptr == end ? n : otherwise);
  }
  static StatusOr<Value> ToReal(In, const Value& v, const Args&) {
    double d = 0;
    if (const Str* s = v.str()) {
      const char* end = s->text.data() + s->size();
      const auto r = std::from_chars(s->text.data(), end, d);
      return Value(r.ec == std::errc() && r.ptr == end ? d : 0.0);
    }
    return Value(v.AsReal(&d) ? d : 0.0);
  }
  static StatusOr<Value> Abs(In in, const Value& v, const Args&) {
    double d = 0;
    if (!v.AsReal(&d)) return Refuse("abs", v);
    return d < 0 ? in->Binary(Op::kSub, Value(int64_t{0}), v) : StatusOr<Value>(v);
  }
  static StatusOr<Value> PairsOf(In in, const Value& v, bool sorted) {
    if (v.undefined() && !sorted) return Value::MakeList({});
    const Dict* d = v.dict();
    if (!d) return Refuse(sorted ? "dictsort" : "items", v);
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(d->items.size())));
    auto pairs = d->items;
    if (sorted) {
      std::stable_sort(pairs.begin(), pairs.end(), [](const auto& x, const auto& y) {
        return Cased(x.first, Case::kLower).text < Cased(y.first, Case::kLower).text;
      });
    }
    std::vector<Value> out;
    for (auto& [key, item] : pairs) {
      FS_ASSIGN_OR_RETURN(Value pair, Value::MakeList({Value(std::move(key)), std::move(item)}));
      out.push_back(std::move(pair));
    }
    return Value::MakeList(std::move(out));
  }
  static StatusOr<Value> Pairs(In in, const Value& v, const Args&) { return PairsOf(in, v, false); }
  static StatusOr<Value> DictSort(In in, const Value& v, const Args&) { return PairsOf(in, v, true); }

  // Lines after the first (or with it) moved to the right; blank lines stay.
  static StatusOr<Value> Indent(In in, const Value& v, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str s, in->ToStr(v));
    FS_ASSIGN_OR_RETURN(const int64_t width, Indentation(a.values[0], 4));
    const bool first = a.values[1].Truthy(), blank = a.values[2].Truthy();
    const std::string pad(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    Str out;
    bool begin = first;
    for (size_t i = 0; i < s.size(); ++i) {
      if (begin && (blank || s.text[i] != '\n')) out.Append(pad, false);
      out.Append(s.Sub(i, 1));
      begin = s.text[i] == '\n';
      if (out.size() > in->limits_.output_bytes) break;
    }
    return in->MakeStr(std::move(out));
  }

  static StatusOr<Value> Map(In in, const Value& v, const Args& args) {
    FS_ASSIGN_OR_RETURN(const std::vector<Value> items, in->Items(v));
    std::vector<Value> out;
    Args rest = args;
    Value attribute, otherwise;
    for (const auto& [name, value] : args.named) {
      if (name == "attribute") attribute = value;
      if (name == "default") otherwise = value;
    }
    if (attribute.undefined()) {
      if (rest.values.empty() || !rest.values[0].str()) return InvalidArgument("'map' needs the name of a filter");
      rest.values.erase(rest.values.begin());
    }
    for (const Value& item : items) {
      FS_RETURN_IF_ERROR(in->Step());
      Value result;
      if (!attribute.undefined()) {
        FS_ASSIGN_OR_RETURN(result, in->Index(item, attribute));
        if (result.undefined()) result = otherwise;
      } else {
        FS_ASSIGN_OR_RETURN(result, in->Nested(args.values[0].str()->text, item, rest));
      }
      out.push_back(std::move(result));
    }
    return Value::MakeList(std::move(out));
  }

  template <bool kByAttribute, bool kKeep>
  static StatusOr<Value> Select(In in, const Value& v, const Args& args) {
    Args rest = args;
    const auto take = [&rest] {
      Value first = std::move(rest.values.front());
      rest.values.erase(rest.values.begin());
      return first;
    };
    Value attribute, test;
    if (kByAttribute) {
      if (rest.values.empty()) return InvalidArgument("the name of an attribute is missing");
      attribute = take();
    }
    if (!rest.values.empty()) {
      test = take();
      if (!test.str()) return InvalidArgument("a test is named by a string, not by " + std::string(test.TypeName()));
    }
    FS_ASSIGN_OR_RETURN(const std::vector<Value> items, in->Items(v));
    std::vector<Value> out;
    for (const Value& item : items) {
      Value subject = item;
      if (kByAttribute) {
        FS_ASSIGN_OR_RETURN(subject, in->Index(item, attribute));
      }
      if (test.str()) {
        FS_ASSIGN_OR_RETURN(subject, in->Test(test.str()->text, subject, rest));
      }
      if (subject.Truthy() == kKeep) out.push_back(item);
    }
    return Value::MakeList(std::move(out));
  }

  static Str Upper(const Str& s) { return Cased(s, Case::kUpper); }
  static Str Lower(const Str& s) { return Cased(s, Case::kLower); }
};

// A filter inside a filter: one level deeper.
StatusOr<Value> Interpreter::Nested(std::string_view filter, const Value& v, const Args& args) {
  ++depth_;
  const Status status = CheckDepth();
  StatusOr<Value> result = status.ok() ? Filter(filter, v, args) : StatusOr<Value>(status);
  --depth_;
  return result;
}

StatusOr<Value> Interpreter::Filter(std::string_view name, const Value& v, const Args& args) {
  static constexpr Builtin kFilters[] = {
      {"trim", "chars", Filters::Trim},
      {"length", "", Filters::Length},
      {"count", "", Filters::Length},
      {"tojson", "indent,ensure_ascii,separators,sort_keys", Filters::ToJson},
      {"join", "d,attribute", Filters::Join},
      {"default", "default_value,boolean", Filters::Default},
      {"d", "default_value,boolean", Filters::Default},
      {"string", "", Filters::String},
      {"safe", "", Filters::String},
      {"upper", "", Filters::Changed<Filters::Upper>},
      {"lower", "", Filters::Changed<Filters::Lower>},
      {"capitalize", "", Filters::Changed<Capitalised>},
      {"title", "", Filters::Changed<Titled>},
      {"replace", "old,new,count", Filters::Replace},
      {"first", "", Filters::First},
      {"last", "", Filters::Last},
      {"list", "", Filters::ToList},
      {"reverse", "", Filters::Reverse},
      {"unique", "", Filters::Unique},
      {"int", "default", Filters::ToInteger},
      {"float", "", Filters::ToReal},
      {"abs", "", Filters::Abs},
      {"items", "", Filters::Pairs},
      {"dictsort", "", Filters::DictSort},
      {"indent", "width,first,blank", Filters::Indent},
      {"map", "*", Filters::Map},
      {"select", "*", Filters::Select<false, true>},
      {"reject", "*", Filters::Select<false, false>},
      {"selectattr", "*", Filters::Select<true, true>},
      {"rejectattr", "*", Filters::Select<true, false>},
  };
  for (const Builtin& f : kFilters) {
    if (f.name == name) return CallBuiltin(f, v, args);
  }
  return Unimplemented("the filter '" + std::string(name) + "' is not supported");
}

}  // namespace farsight::jinja
