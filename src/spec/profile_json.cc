#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "io/env.h"
#include "io/json.h"
#include "spec/profile.h"

namespace farsight {
namespace {

constexpr const char* kFormat = "farsight-profile";
constexpr int64_t kVersion = 2;
constexpr JsonLimits kLimits{8, size_t{16} << 20, 1'000'000, true};
constexpr int64_t kMaxContext = int64_t{1} << 32;
constexpr int64_t kMaxBatch = 1 << 16;
constexpr double kMaxUs = 1e12;

Json ModeToJson(const VerifyMode& mode) {
  Json json;
  json["order"] = NodeOrderName(mode.order);
  json["group"] = mode.group;
  json["lists"] = mode.shared_list ? "shared" : "exact";
  std::string refresh;
  for (uint8_t bit : mode.refresh) refresh.push_back(bit != 0 ? '1' : '0');
  json["refresh"] = refresh;
  return json;
}

// One object of the file: every field is asked for once by name and range; what is left over is a fault. The first
// fault is kept and later reads give zeros, so that a reader is a plain list of fields.
class Fields {
 public:
  Fields(const Json& json, std::string where, Status* fault) : json_(json), where_(std::move(where)), fault_(*fault) {
    if (!json.is_object()) Fail("must be an object");
  }

  const Json* Get(const char* name) {
    if (!fault_.ok()) return nullptr;
    const auto at = json_.find(name);
    if (at == json_.end()) return Fail(std::string("has no field \"") + name + "\"");
    ++used_;
    return &*at;
  }
  std::string Text(const char* name) {
    const Json* value = Get(name);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(std::string(name) + " must be a string"), "";
    return value->get<std::string>();
  }
  int64_t Int(const char* name, int64_t min, int64_t max) {
    const Json* value = Get(name);
    if (value == nullptr) return 0;
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
    const int64_t n = fits ? value->get<int64_t>() : 0;
    if (fits && n >= min && n <= max) return n;
    Fail(std::string(name) + " must be a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    return 0;
  }
  double Number(const char* name, double max) {
    const Json* value = Get(name);
    return value == nullptr ? 0 : Number(*value, name, max);
  }
  double Number(const Json& value, const char* name, double max) {
    const double x = value.is_number() ? value.get<double>() : -1;
    if (x >= 0 && x <= max) return x;
    Fail(std::string(name) + " must be a number from 0 to " + std::to_string(max));
    return 0;
  }
  template <typename T>
  T Name(const char* name, StatusOr<T> (*parse)(const std::string&)) {
    const auto parsed = parse(Text(name));
    if (parsed.ok()) return *parsed;
    Fail(parsed.status().message());
    return T{};
  }
  void End() {
    if (fault_.ok() && used_ != json_.size()) Fail("has a field that no version 2 profile has");
  }
  const Json* Fail(const std::string& reason) {
    if (fault_.ok()) fault_ = DataLoss(where_ + " " + reason);
    return nullptr;
  }

 private:
  const Json& json_;
  std::string where_;
  Status& fault_;
  size_t used_ = 0;
};

StatusOr<bool> ParseShared(const std::string& name) {
  if (name == "exact" || name == "shared") return name == "shared";
  return InvalidArgument("unknown block lists '" + name + "': expected exact or shared");
}

VerifyMode ReadMode(Fields& parent, const std::string& where, Status* fault) {
  VerifyMode mode;
  const Json* json = parent.Get("mode");
  if (json == nullptr) return mode;
  Fields f(*json, where + " mode", fault);
  mode.order = f.Name("order", ParseNodeOrder);
  mode.group = static_cast<int>(f.Int("group", 1, 64));
  mode.shared_list = f.Name("lists", ParseShared);
  for (char c : f.Text("refresh")) mode.refresh.push_back(c == '1' ? 1 : c == '0' ? 0 : 2);
  f.End();
  if (const Status valid = Validate(mode); fault->ok() && !valid.ok()) f.Fail("is wrong: " + valid.message());
  return mode;
}

std::vector<std::vector<double>> ReadRates(Fields& f) {
  std::vector<std::vector<double>> rates;
  const Json* json = f.Get("rates");
  if (json == nullptr) return rates;
  if (!json->is_array()) f.Fail("rates must be a list of lists");
  for (const Json& depth : *json) {
    rates.emplace_back();
    if (!depth.is_array()) f.Fail("rates must be a list of lists");
    for (const Json& rate : depth) rates.back().push_back(f.Number(rate, "rates", 1));
  }
  return rates;
}

// Reads every element of the list `name` with read(fields, where).
template <typename T, typename Read>
std::vector<T> ReadList(Fields& top, const char* name, const std::string& what, Status* fault, Read&& read) {
  std::vector<T> list;
  const Json* json = top.Get(name);
  if (json == nullptr) return list;
  if (!json->is_array()) {
    top.Fail(std::string(name) + " must be a list");
    return list;
  }
  for (const Json& element : *json) {
    const std::string where = what + ", " + name + "[" + std::to_string(list.size()) + "]";
    Fields f(element, where, fault);
    list.push_back(read(f, where));
    f.End();
    if (!fault->ok()) break;
  }
  return list;
}

int64_t Context(Fields& f) { return f.Int("context", 0, kMaxContext); }
int Batch(Fields& f) { return static_cast<int>(f.Int("batch", 1, kMaxBatch)); }

void ReadTimes(Fields& top, const std::string& what, Status* fault, Profile* profile) {
  profile->draft = ReadList<DraftTime>(top, "draft", what, fault, [](Fields& f, const std::string&) {
    DraftTime t;
    t.drafter = f.Name("drafter", ParseDrafterKind);
    t.context = Context(f);
    t.batch = Batch(f);
    t.nodes = static_cast<int>(f.Int("nodes", 0, kMaxTreeNodes));
    t.median_us = f.Number("median_us", kMaxUs);
    t.p90_us = f.Number("p90_us", kMaxUs);
    return t;
  });
  profile->verify = ReadList<VerifyTime>(top, "verify", what, fault, [&](Fields& f, const std::string& where) {
    VerifyTime t;
    t.mode = ReadMode(f, where, fault);
    t.context = Context(f);
    t.batch = Batch(f);
    t.rows = static_cast<int>(f.Int("rows", 1, kMaxTreeNodes));
    t.median_us = f.Number("median_us", kMaxUs);
    t.p90_us = f.Number("p90_us", kMaxUs);
    t.overlap = f.Number("overlap", 1);
    // A step that takes no time would win against every other.
    if (fault->ok() && !(t.median_us > 0)) f.Fail("median_us must be above 0");
    return t;
  });
  profile->fixed = ReadList<FixedTime>(top, "fixed", what, fault, [](Fields& f, const std::string&) {
    FixedTime t;
    t.context = Context(f);
    t.batch = Batch(f);
    t.median_us = f.Number("median_us", kMaxUs);
    return t;
  });
}

void ReadRecords(Fields& top, const std::string& what, Status* fault, Profile* profile) {
  profile->acceptance = ReadList<AcceptancePrior>(top, "acceptance", what, fault, [](Fields& f, const std::string&) {
    AcceptancePrior p;
    p.drafter = f.Name("drafter", ParseDrafterKind);
    p.context = Context(f);
    p.self_match = f.Number("self_match", 1);
    p.available_first = f.Number("available_first", 1);
    p.available_later = f.Number("available_later", 1);
    p.rates = ReadRates(f);
    return p;
  });
  profile->quality = ReadList<QualityRecord>(top, "quality", what, fault, [&](Fields& f, const std::string& where) {
    QualityRecord q;
    q.mode = ReadMode(f, where, fault);
    q.context = Context(f);
    q.tokens = f.Int("tokens", 0, INT64_MAX);
    q.flip_rate = f.Number("flip_rate", 1);
    q.kl_mean = f.Number("kl_mean", 1e6);
    q.kl_p99 = f.Number("kl_p99", 1e6);
    q.substitution_p99 = f.Number("substitution_p99", 1);
    q.task_drop = f.Number("task_drop", 1);
    return q;
  });
}

template <typename T, typename Write>
void AddList(Json* json, const char* name, const std::vector<T>& list, Write&& write) {
  Json array = Json::array();
  for (const T& element : list) array.push_back(write(element));
  (*json)[name] = std::move(array);
}

}  // namespace

std::string ProfileToJson(const Profile& profile) {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["model"] = profile.of.model;
  json["machine"] = profile.of.machine;
  AddList(&json, "draft", profile.draft, [](const DraftTime& t) {
    return Json{{"drafter", DrafterKindName(t.drafter)},
                {"context", t.context},
                {"batch", t.batch},
                {"nodes", t.nodes},
                {"median_us", t.median_us},
                {"p90_us", t.p90_us}};
  });
  AddList(&json, "verify", profile.verify, [](const VerifyTime& t) {
    return Json{{"mode", ModeToJson(t.mode)}, {"context", t.context}, {"batch", t.batch},    {"rows", t.rows},
                {"median_us", t.median_us},   {"p90_us", t.p90_us},   {"overlap", t.overlap}};
  });
  AddList(&json, "fixed", profile.fixed, [](const FixedTime& t) {
    return Json{{"context", t.context}, {"batch", t.batch}, {"median_us", t.median_us}};
  });
  AddList(&json, "acceptance", profile.acceptance, [](const AcceptancePrior& p) {
    return Json{{"drafter", DrafterKindName(p.drafter)},
                {"context", p.context},
                {"self_match", p.self_match},
                {"available_first", p.available_first},
                {"available_later", p.available_later},
                {"rates", p.rates}};
  });
  AddList(&json, "quality", profile.quality, [](const QualityRecord& q) {
    return Json{{"mode", ModeToJson(q.mode)}, {"context", q.context},
                {"tokens", q.tokens},         {"flip_rate", q.flip_rate},
                {"kl_mean", q.kl_mean},       {"kl_p99", q.kl_p99},
                {"task_drop", q.task_drop},   {"substitution_p99", q.substitution_p99}};
  });
  return DumpJson(json, 1) + "\n";
}

StatusOr<Profile> ProfileFromJson(std::string_view text, const std::string& what) {
  FS_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kLimits, what));
  Status fault;
  Fields top(json, what, &fault);
  Profile profile;
  if (const std::string format = top.Text("format"); fault.ok() && format != kFormat) {
    top.Fail(std::string("is no profile: its format is not ") + kFormat);
  }
  if (const int64_t version = top.Int("version", 1, INT64_MAX); fault.ok() && version != kVersion) {
    top.Fail("is of version " + std::to_string(version) + ", but this program reads version " +
             std::to_string(kVersion));
  }
  profile.of.model = top.Text("model");
  profile.of.machine = top.Text("machine");
  ReadTimes(top, what, &fault, &profile);
  ReadRecords(top, what, &fault, &profile);
  top.End();
  if (!fault.ok()) return fault;
  return profile;
}

Status WriteProfile(const std::string& path, const Profile& profile) {
  return WriteFileAtomically(path, ProfileToJson(profile));
}

StatusOr<Profile> ReadProfile(const std::string& path, const Fingerprint& of) {
  const std::string what = "the profile '" + path + "'";
  FS_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kLimits.max_bytes));
  FS_ASSIGN_OR_RETURN(Profile profile, ProfileFromJson(text, what));
  if (profile.of.model != of.model) {
    return InvalidArgument(what + " is of the model '" + profile.of.model + "', not of '" + of.model + "'");
  }
  if (profile.of.machine != of.machine) {
    return InvalidArgument(what + " is of the machine '" + profile.of.machine + "', not of '" + of.machine + "'");
  }
  return profile;
}

}  // namespace farsight
