#include "io/json.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "io/env.h"

namespace farsight {
namespace {

std::string Where(std::string_view text, size_t position) {
  position = std::min(position, text.size());
  const std::string_view before = text.substr(0, position);
  const auto line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t start = before.rfind('\n');
  const size_t column = start == std::string_view::npos ? position : position - start - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

// One pass over the brackets and commas outside strings: bounds the recursion and the number of values of the parser
// that follows. Broken text may pass here; the parser reports it.
Status CheckLimits(std::string_view text, const JsonLimits& limits, const std::string& what) {
  size_t depth = 0;
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') {
      ++values;
      if (++depth > limits.max_depth) {
        return ResourceExhausted(what + " nests deeper than " + std::to_string(limits.max_depth) + " levels at " +
                                 Where(text, i));
      }
    } else if (c == ',') {
      ++values;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  if (values > limits.max_values) {
    return ResourceExhausted(what + " holds about " + std::to_string(values) + " values, more than the limit of " +
                             std::to_string(limits.max_values));
  }
  return OkStatus();
}

// The library's sentence without its own prefix and position, short and free of bytes that are not plain text.
std::string Reason(const char* text) {
  std::string_view s(text);
  if (const size_t at = s.find("parse error at line"); at != std::string_view::npos) {
    if (const size_t colon = s.find(": ", at); colon != std::string_view::npos) s = s.substr(colon + 2);
  } else if (const size_t bracket = s.find("] "); bracket != std::string_view::npos) {
    s = s.substr(bracket + 2);
  }
  std::string out(s.substr(0, 160));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

// Builds the document as the parser reports its parts. The library's own builder looks every new key up by walking the
// object, which takes minutes on a vocabulary of 150,000 tokens.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, bool unique_keys, const std::string& what)
      : text_(text), unique_keys_(unique_keys), what_(what) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool v) override { return Add(v); }
  bool number_integer(int64_t v) override { return Add(v); }
  bool number_unsigned(uint64_t v) override { return Add(v); }
  bool number_float(double v, const std::string&) override { return Add(v); }
  bool string(std::string& v) override { return Add(std::move(v)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool key(std::string& name) override {
    Members(open_.back()).emplace_back(std::move(name), Json());
    return true;
  }
  bool end_object() override {
    const bool fine = CheckKeys(open_.back());
    open_.pop_back();
    return fine;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    status_ = DataLoss(what_ + " is not valid JSON at " + Where(text_, position) + ": " + Reason(e.what()));
    return false;
  }

  Json& root() { return root_; }
  const Status& status() const { return status_; }

 private:
  using MemberList = Json::object_t::Container;

  static MemberList& Members(Json* object) { return object->get_ref<Json::object_t&>(); }

  // Where the next value belongs. Pointers to open parents stay valid: a parent does not grow while a child is open.
  Json* Place(Json value) {
    Json* place = &root_;
    if (!open_.empty()) {
      Json* parent = open_.back();
      if (parent->is_array()) {
        parent->get_ref<Json::array_t&>().emplace_back();
        place = &parent->get_ref<Json::array_t&>().back();
      } else {
        place = &Members(parent).back().second;
      }
    }
    *place = std::move(value);
    return place;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool CheckKeys(Json* object) {
    MemberList& members = Members(object);
    std::vector<size_t> order(members.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const int c = members[a].first.compare(members[b].first);
      return c != 0 ? c < 0 : a < b;
    });
    std::vector<bool> dropped(members.size(), false);
    bool any = false;
    for (size_t i = 1; i < order.size(); ++i) {
      if (members[order[i]].first != members[order[i - 1]].first) continue;
      if (unique_keys_) {
        status_ =
            DataLoss(what_ + " names the key \"" + Reason(members[order[i]].first.c_str()) + "\" twice in one object");
        return false;
      }
      dropped[order[i - 1]] = true;
      any = true;
    }
    if (any) {
      MemberList kept;
      for (size_t i = 0; i < members.size(); ++i) {
        if (!dropped[i]) kept.emplace_back(members[i].first, std::move(members[i].second));
      }
      members = std::move(kept);
    }
    return true;
  }

  std::string_view text_;
  bool unique_keys_;
  const std::string& what_;
  Json root_;
  std::vector<Json*> open_;
  Status status_;
};

}  // namespace

StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits, const std::string& what) {
  if (text.size() > limits.max_bytes) {
    return ResourceExhausted(what + " has " + std::to_string(text.size()) + " bytes, more than the limit of " +
                             std::to_string(limits.max_bytes));
  }
  FS_RETURN_IF_ERROR(CheckLimits(text, limits, what));
  try {
    Builder builder(text, limits.unique_keys, what);
    const bool fine = Json::sax_parse(text.begin(), text.end(), &builder);
    if (!builder.status().ok()) return builder.status();
    if (!fine) return DataLoss(what + " is not valid JSON");
    return std::move(builder.root());
  } catch (const std::exception& e) {
    return ResourceExhausted(what + " could not be read as JSON: " + Reason(e.what()));
  }
}

StatusOr<Json> ReadJsonFile(const std::string& path, const JsonLimits& limits) {
  FS_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, limits.max_bytes));
  return ParseJson(text, limits, "'" + path + "'");
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace farsight
