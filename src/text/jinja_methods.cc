// Methods of strings and dicts, and what filters share with them. Every string function works on ranges of its input,
// so that each byte keeps its mark.
#include <algorithm>
#include <limits>
#include <utility>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

namespace farsight::jinja {

StatusOr<Value> Interpreter::Strip(const Str& s, const Value& chars, bool left, bool right) {
  const Str* set = chars.str();
  if (!set && !chars.undefined() && !chars.none()) {
    return InvalidArgument("characters to strip are a string, not " + std::string(chars.TypeName()));
  }
  const auto strips = [set](std::string_view text, size_t i) {
    const Character c = CharacterAt(text, i);
    if (!set) return IsPythonSpace(c.code) && !(c.bytes == 1 && c.code >= 0x80);
    return set->text.find(text.substr(i, c.bytes)) != std::string::npos;
  };
  size_t begin = 0, end = s.size();
  while (left && begin < end && strips(s.text, begin)) begin += CharacterAt(s.text, begin).bytes;
  while (right && end > begin) {
    size_t last = end - 1;  // back to the beginning of the last character
    while (last > begin && end - last < 4 && (static_cast<unsigned char>(s.text[last]) & 0xC0) == 0x80) --last;
    if (last + CharacterAt(s.text, last).bytes != end) last = end - 1;
    if (!strips(s.text, last)) break;
    end = last;
  }
  const size_t work = (set ? set->size() + 1 : 1) * (s.size() - (end - begin) + 1);
  FS_RETURN_IF_ERROR(Step(static_cast<int64_t>(work / 16)));
  return MakeStr(s.Sub(begin, end - begin));
}

StatusOr<Value> Interpreter::ReplaceIn(const Str& s, const Value& from, const Value& to, const Value& count) {
  if (!from.str() || !to.str()) {
    return InvalidArgument("'replace' needs two strings, not " + std::string(from.TypeName()) + " and " +
                           to.TypeName());
  }
  int64_t left = -1;
  if (!count.undefined() && !count.none() && !count.AsInteger(&left)) {
    return InvalidArgument("'replace' counts with an integer, not with " + std::string(count.TypeName()));
  }
  if (left < 0) left = std::numeric_limits<int64_t>::max();
  const std::string& old = from.str()->text;
  Str out;
  size_t at = 0;
  for (; left > 0; --left) {
    // An empty text stands before every character and at the end.
    const size_t found = s.text.find(old, at);
    if (found == std::string::npos) break;
    FS_RETURN_IF_ERROR(Step());
    out.Append(s.Sub(at, found - at));
    out.Append(*to.str());
    if (out.size() > limits_.output_bytes) return Charge(out.size());
    at = found + old.size();
    if (!old.empty()) continue;
    if (at >= s.size()) break;
    const size_t n = CharacterAt(s.text, at).bytes;
    out.Append(s.Sub(at, n));
    at += n;
  }
  out.Append(s.Sub(std::min(at, s.size()), std::string::npos));
  return MakeStr(std::move(out));
}

struct Interpreter::Methods {
  using In = Interpreter*;

  static StatusOr<const Str*> Text(const char* method, const Value& v) {
    if (v.str()) return v.str();
    return InvalidArgument(std::string("'") + method + "' needs a string, not " + v.TypeName());
  }

  template <bool kLeft, bool kRight>
  static StatusOr<Value> StripMethod(In in, const Value& s, const Args& a) {
    return in->Strip(*s.str(), a.values[0], kLeft, kRight);
  }
  template <auto kChange>
  static StatusOr<Value> Changed(In in, const Value& s, const Args&) {
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(s.str()->size() / 16)));
    return in->MakeStr(kChange(*s.str()));
  }
  static Str Upper(const Str& s) { return Cased(s, Case::kUpper); }
  static Str Lower(const Str& s) { return Cased(s, Case::kLower); }

  // startswith, endswith: a string, or a list of which one must match.
  template <bool kStart>
  static StatusOr<Value> Affix(In in, const Value& s, const Args& a) {
    std::vector<Value> affixes = {a.values[0]};
    if (a.values[0].list()) {
      FS_ASSIGN_OR_RETURN(affixes, in->Items(a.values[0]));
    }
    for (const Value& v : affixes) {
      FS_ASSIGN_OR_RETURN(const Str* affix, Text(kStart ? "startswith" : "endswith", v));
      if (kStart ? s.str()->text.starts_with(affix->text) : s.str()->text.ends_with(affix->text)) return Value(true);
    }
    return Value(false);
  }
  template <bool kStart>
  static StatusOr<Value> RemoveAffix(In in, const Value& s, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str* affix, Text(kStart ? "removeprefix" : "removesuffix", a.values[0]));
    const std::string& text = s.str()->text;
    const size_t n = affix->size();
    if (kStart ? text.starts_with(affix->text) : text.ends_with(affix->text)) {
      return in->MakeStr(s.str()->Sub(kStart ? n : 0, text.size() - n));
    }
    return s;
  }

  static StatusOr<int64_t> MaxSplit(const Value& v) {
    int64_t n = -1;
    if (!v.undefined() && !v.none() && !v.AsInteger(&n)) {
      return InvalidArgument("'split' counts with an integer, not with " + std::string(v.TypeName()));
    }
    return n < 0 ? std::numeric_limits<int64_t>::max() : n;
  }
  static Status Part(In in, const Str& s, size_t begin, size_t end, std::vector<Value>* out) {
    FS_RETURN_IF_ERROR(in->Step());
    FS_ASSIGN_OR_RETURN(Value part, in->MakeStr(s.Sub(begin, end - begin)));
    out->push_back(std::move(part));
    return OkStatus();
  }
  static StatusOr<Value> SplitAtSpaces(In in, const Str& s, int64_t left) {
    std::vector<Value> out;
    const auto space = [&](size_t i) { return IsPythonSpace(CharacterAt(s.text, i).code); };
    size_t i = 0;
    while (true) {
      while (i < s.size() && space(i)) i += CharacterAt(s.text, i).bytes;
      if (i >= s.size()) break;
      size_t end = i;
      if (left-- == 0) {
        FS_RETURN_IF_ERROR(Part(in, s, i, s.size(), &out));
        break;
      }
      while (end < s.size() && !space(end)) end += CharacterAt(s.text, end).bytes;
      FS_RETURN_IF_ERROR(Part(in, s, i, end, &out));
      i = end;
    }
    return Value::MakeList(std::move(out));
  }
  static StatusOr<Value> Split(In in, const Value& v, const Args& a) {
    const Str& s = *v.str();
    FS_ASSIGN_OR_RETURN(int64_t left, MaxSplit(a.values[1]));
    if (a.values[0].undefined() || a.values[0].none()) return SplitAtSpaces(in, s, left);
    FS_ASSIGN_OR_RETURN(const Str* separator, Text("split", a.values[0]));
    if (separator->size() == 0) return InvalidArgument("'split' needs a separator that is not empty");
    std::vector<Value> out;
    size_t at = 0;
    for (; left > 0; --left) {
      const size_t found = s.text.find(separator->text, at);
      if (found == std::string::npos) break;
      FS_RETURN_IF_ERROR(Part(in, s, at, found, &out));
      at = found + separator->size();
    }
    FS_RETURN_IF_ERROR(Part(in, s, at, s.size(), &out));
    return Value::MakeList(std::move(out));
  }
  static StatusOr<Value> RSplit(In in, const Value& v, const Args& a) {
    const Str& s = *v.str();
    FS_ASSIGN_OR_RETURN(int64_t left, MaxSplit(a.values[1]));
    FS_ASSIGN_OR_RETURN(const Str* separator, Text("rsplit", a.values[0]));
    if (separator->size() == 0) return InvalidArgument("'rsplit' needs a separator that is not empty");
    std::vector<Value> out;
    size_t end = s.size();
    for (; left > 0 && end >= separator->size(); --left) {
      const size_t found = s.text.rfind(separator->text, end - separator->size());
      if (found == std::string::npos) break;
      FS_RETURN_IF_ERROR(Part(in, s, found + separator->size(), end, &out));
      end = found;
    }
    FS_RETURN_IF_ERROR(Part(in, s, 0, end, &out));
    std::reverse(out.begin(), out.end());
    return Value::MakeList(std::move(out));
  }
  static StatusOr<Value> SplitLines(In in, const Value& v, const Args&) {
    const Str& s = *v.str();
    std::vector<Value> out;
    for (size_t at = 0; at < s.size();) {
      const size_t end = std::min(s.text.find_first_of("\r\n", at), s.size());
      FS_RETURN_IF_ERROR(Part(in, s, at, end, &out));
      at = end + (s.text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    }
    return Value::MakeList(std::move(out));
  }

  static StatusOr<Value> Join(In in, const Value& s, const Args& a) { return in->JoinItems(a.values[0], s, Value()); }
  static StatusOr<Value> Replace(In in, const Value& s, const Args& a) {
    return in->ReplaceIn(*s.str(), a.values[0], a.values[1], a.values[2]);
  }
  template <bool kLast>
  static StatusOr<Value> Find(In in, const Value& s, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str* what, Text("find", a.values[0]));
    const std::string& text = s.str()->text;
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(text.size() / 16)));
    const size_t at = kLast ? text.rfind(what->text) : text.find(what->text);
    if (at == std::string::npos) return Value(int64_t{-1});
    return Value(static_cast<int64_t>(CharacterStarts(std::string_view(text).substr(0, at)).size()) - 1);
  }
  static StatusOr<Value> Count(In in, const Value& s, const Args& a) {
    FS_ASSIGN_OR_RETURN(const Str* what, Text("count", a.values[0]));
    if (what->size() == 0) return InvalidArgument("'count' needs a text that is not empty");
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(s.str()->size() / 16)));
    int64_t n = 0;
    const std::string& text = s.str()->text;
    for (size_t at = text.find(what->text); at != std::string::npos; at = text.find(what->text, at + what->size())) ++n;
    return Value(n);
  }
  static StatusOr<Value> IsDigits(In, const Value& s, const Args&) {
    const std::string& text = s.str()->text;
    return Value(!text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }));
  }

  static StatusOr<Value> Items(In in, const Value& d, const Args&) { return in->Filter("items", d, {}); }
  static StatusOr<Value> Keys(In in, const Value& d, const Args&) { return in->Filter("list", d, {}); }
  static StatusOr<Value> Values(In in, const Value& d, const Args&) {
    FS_RETURN_IF_ERROR(in->Step(static_cast<int64_t>(d.dict()->items.size())));
    std::vector<Value> out;
    for (const auto& item : d.dict()->items) out.push_back(item.second);
    return Value::MakeList(std::move(out));
  }
  static StatusOr<Value> Get(In, const Value& d, const Args& a) {
    const Value* found = a.values[0].str() ? d.dict()->Find(a.values[0].str()->text) : nullptr;
    if (found) return *found;
    return a.values[1].undefined() ? Value(None{}) : a.values[1];
  }
  // Of `loop`: its arguments in turn.
  static StatusOr<Value> Cycle(In, const Value& d, const Args& a) {
    const Value* index = d.dict()->Find("index0");
    int64_t i = 0;
    if (!index || !index->AsInteger(&i) || i < 0 || a.values.empty() || !a.named.empty()) {
      return InvalidArgument("'cycle' belongs to 'loop' and needs at least one value");
    }
    return a.values[static_cast<size_t>(i) % a.values.size()];
  }
};

StatusOr<Value> Interpreter::Method(const Value& object, std::string_view name, const Args& args) {
  static constexpr Builtin kString[] = {
      {"strip", "chars", Methods::StripMethod<true, true>},
      {"lstrip", "chars", Methods::StripMethod<true, false>},
      {"rstrip", "chars", Methods::StripMethod<false, true>},
      {"split", "sep,maxsplit", Methods::Split},
      {"rsplit", "sep,maxsplit", Methods::RSplit},
      {"splitlines", "", Methods::SplitLines},
      {"startswith", "prefix", Methods::Affix<true>},
      {"endswith", "suffix", Methods::Affix<false>},
      {"removeprefix", "prefix", Methods::RemoveAffix<true>},
      {"removesuffix", "suffix", Methods::RemoveAffix<false>},
      {"upper", "", Methods::Changed<Methods::Upper>},
      {"lower", "", Methods::Changed<Methods::Lower>},
      {"capitalize", "", Methods::Changed<Capitalised>},
      {"title", "", Methods::Changed<Titled>},
      {"replace", "old,new,count", Methods::Replace},
      {"join", "iterable", Methods::Join},
      {"find", "sub", Methods::Find<false>},
      {"rfind", "sub", Methods::Find<true>},
      {"count", "sub", Methods::Count},
      {"isdigit", "", Methods::IsDigits},
  };
  static constexpr Builtin kDict[] = {
      {"items", "", Methods::Items},        {"keys", "", Methods::Keys},    {"values", "", Methods::Values},
      {"get", "key,default", Methods::Get}, {"cycle", "*", Methods::Cycle},
  };
  if (object.str()) {
    for (const Builtin& f : kString) {
      if (f.name == name) return CallBuiltin(f, object, args);
    }
  }
  if (object.dict()) {
    for (const Builtin& f : kDict) {
      if (f.name == name) return CallBuiltin(f, object, args);
    }
  }
  return Unimplemented(std::string(object.TypeName()) + " has no method '" + std::string(name) + "' here");
}

}  // namespace farsight::jinja
