#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "io/env.h"
#include "io/json.h"

namespace farsight {
namespace {

// Caps far above any real model, so that a hostile header costs nothing.
constexpr uint64_t kMaxHeader = 100'000'000;  // bytes, the format's own limit
constexpr size_t kMaxTensors = 1 << 16;       // in one file
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxName = 1024;  // bytes
constexpr uint64_t kMaxElements = uint64_t{1} << 48;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
// A tensor takes its own object, three members and at most kMaxDims + 2 numbers.
constexpr JsonLimits kHeaderLimits = {4, kMaxHeader, kMaxTensors*(kMaxDims + 8), true};

struct TypeEntry {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;  // empty: no weight is of this type
};
constexpr TypeEntry kTypes[] = {{"F32", 4, DType::kF32}, {"F16", 2, DType::kF16}, {"BF16", 2, DType::kBF16},
                                {"F64", 8, {}},          {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
                                {"BOOL", 1, {}},         {"U8", 1, {}},           {"I8", 1, {}},
                                {"U16", 2, {}},          {"I16", 2, {}},          {"U32", 4, {}},
                                {"I32", 4, {}},          {"U64", 8, {}},          {"I64", 8, {}}};

const Json* Member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

// The parser makes every number without sign, point or exponent an unsigned one.
std::optional<uint64_t> Unsigned(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

bool PlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name.find('\0') == std::string::npos;
}

// A shard's name stays inside the directory: one path component.
bool PlainFileName(const std::string& name) {
  return PlainName(name) && name.size() <= 255 && name.find_first_of("/\\") == std::string::npos && name != "." &&
         name != ".." && name.ends_with(".safetensors");
}

class SafetensorsFile : public ModelFile {
 public:
  explicit SafetensorsFile(std::string path) { path_ = std::move(path); }

  // Adds the tensors of one file; `name` is its own path for messages.
  Status Add(std::span<const std::byte> bytes, const std::string& name) {
    FS_ASSIGN_OR_RETURN(const std::string_view header, HeaderOf(bytes, name));
    FS_ASSIGN_OR_RETURN(const Json json, ParseJson(header, kHeaderLimits, "the header of '" + name + "'"));
    if (!json.is_object()) return DataLoss("the header of '" + name + "' is not a JSON object");
    if (json.size() > kMaxTensors) {
      return DataLoss("'" + name + "' holds " + std::to_string(json.size()) + " tensors, more than the limit of " +
                      std::to_string(kMaxTensors));
    }
    const std::span<const std::byte> data = bytes.subspan(8 + header.size());
    std::vector<Range> ranges;
    for (const auto& [key, value] : json.items()) {
      if (key == "__metadata__") {
        FS_RETURN_IF_ERROR(AddMetadata(value, name));
      } else {
        FS_RETURN_IF_ERROR(AddTensor(key, value, data, name, &ranges));
      }
    }
    return CheckTiling(std::move(ranges), data.size(), name);
  }

  void KeepMapping(std::shared_ptr<const MappedFile> mapping) { mappings_.push_back(std::move(mapping)); }
  // The file that holds the tensor, used or skipped; nullptr when none does.
  const std::string* ShardOf(const std::string& tensor) const {
    const auto it = shard_of_.find(tensor);
    return it == shard_of_.end() ? nullptr : &it->second;
  }

 private:
  struct Range {
    uint64_t begin, end;
    std::string tensor;
  };

  static StatusOr<std::string_view> HeaderOf(std::span<const std::byte> bytes, const std::string& name) {
    const auto broken = [&](const std::string& why) {
      const std::string guess = GuessFormat(bytes);
      const bool foreign = !guess.empty() && guess.find("safetensors") == std::string::npos;
      return DataLoss("'" + name + "' is not a safetensors file: " + (foreign ? guess : why));
    };
    if (bytes.size() < 8) return broken("it has only " + std::to_string(bytes.size()) + " bytes, fewer than 8");
    uint64_t n = 0;
    for (size_t i = 0; i < 8; ++i) n |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    if (n > bytes.size() - 8) {
      return broken("its header should take " + std::to_string(n) + " bytes, but only " +
                    std::to_string(bytes.size() - 8) + " follow");
    }
    if (n > kMaxHeader) {
      return broken("its header takes " + std::to_string(n) + " bytes, more than the limit of " +
                    std::to_string(kMaxHeader));
    }
    if (n < 2 || static_cast<char>(bytes[8]) != '{') return broken("its header does not start with '{'");
    return std::string_view(reinterpret_cast<const char*>(bytes.data() + 8), static_cast<size_t>(n));
  }

  Status AddMetadata(const Json& value, const std::string& name) {
    if (!value.is_object()) return DataLoss("'__metadata__' of '" + name + "' is not an object");
    for (const auto& [key, v] : value.items()) {
      if (!v.is_string())
        return DataLoss("'__metadata__' of '" + name + "' holds '" + key + "', which is not a string");
      metadata_.emplace(key, v.get<std::string>());
    }
    return OkStatus();
  }

  Status AddTensor(const std::string& key, const Json& value, std::span<const std::byte> data, const std::string& name,
                   std::vector<Range>* ranges) {
    if (!PlainName(key)) {
      return DataLoss("'" + name + "' has a tensor name that is empty, longer than " + std::to_string(kMaxName) +
                      " bytes or holds a NUL");
    }
    const std::string who = "tensor '" + key + "' of '" + name + "'";
    if (!value.is_object()) return DataLoss(who + " is not described by an object");
    const Json* dtype = Member(value, "dtype");
    if (dtype == nullptr || !dtype->is_string()) return DataLoss(who + " has no 'dtype' string");
    const auto& type_name = dtype->get_ref<const std::string&>();
    const auto* type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeEntry& e) { return e.name == type_name; });
    if (type == std::end(kTypes)) {
      return Unimplemented(who + " has the unknown type '" + type_name.substr(0, 32) + "'");
    }
    FileTensor t;
    t.name = key;
    FS_ASSIGN_OR_RETURN(t.shape, ShapeOf(value, who));
    FS_ASSIGN_OR_RETURN(const Range range, RangeOf(value, data.size(), key, who));
    const uint64_t want = static_cast<uint64_t>(t.num_elements()) * type->bytes;
    if (range.end - range.begin != want) {
      return DataLoss(who + " has a shape and type that take " + std::to_string(want) +
                      " bytes, but its data_offsets give " + std::to_string(range.end - range.begin));
    }
    const auto [other, inserted] = shard_of_.emplace(key, name);
    if (!inserted) return DataLoss(who + " is also in '" + other->second + "'");
    ranges->push_back(range);
    if (!type->dtype) {
      skipped_.push_back({key, type_name});
      return OkStatus();
    }
    t.dtype = *type->dtype;
    t.data = data.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(want));
    tensor_index_.emplace(key, tensors_.size());
    tensors_.push_back(std::move(t));
    return OkStatus();
  }

  static StatusOr<std::vector<int64_t>> ShapeOf(const Json& value, const std::string& who) {
    const Json* shape = Member(value, "shape");
    if (shape == nullptr || !shape->is_array()) return DataLoss(who + " has no 'shape' array");
    if (shape->size() > kMaxDims) {
      return DataLoss(who + " has " + std::to_string(shape->size()) + " dimensions, more than the limit of " +
                      std::to_string(kMaxDims));
    }
    std::vector<int64_t> out;
    uint64_t elements = 1;
    for (const Json& d : *shape) {
      const std::optional<uint64_t> n = Unsigned(d);
      if (!n) return DataLoss(who + " has a dimension that is not a non-negative integer");
      if (*n == 0) return DataLoss(who + " has a dimension of 0");
      if (*n > kMaxElements / elements) {
        return DataLoss(who + " has an impossible shape: more than " + std::to_string(kMaxElements) + " elements");
      }
      elements *= *n;
      out.push_back(static_cast<int64_t>(*n));
    }
    return out;
  }

  static StatusOr<Range> RangeOf(const Json& value, uint64_t size, const std::string& key, const std::string& who) {
    const Json* offsets = Member(value, "data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2) {
      return DataLoss(who + " has no 'data_offsets' array of two numbers");
    }
    const std::optional<uint64_t> begin = Unsigned((*offsets)[0]);
    const std::optional<uint64_t> end = Unsigned((*offsets)[1]);
    if (!begin || !end) return DataLoss(who + " has data_offsets that are not non-negative integers");
    if (*begin > *end) {
      return DataLoss(who + " has reversed data_offsets: " + std::to_string(*begin) + " to " + std::to_string(*end));
    }
    if (*end > size) {
      return DataLoss(who + " needs data up to byte " + std::to_string(*end) +
                      ", but the file is shorter than its header says: it has " + std::to_string(size));
    }
    return Range{*begin, *end, key};
  }

  // The format asks that the tensors fill the data exactly: a hole could hide bytes, an overlap is a lie.
  static Status CheckTiling(std::vector<Range> ranges, uint64_t size, const std::string& name) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    uint64_t at = 0;
    for (const Range& r : ranges) {
      if (r.begin < at) return DataLoss("'" + name + "' has tensors that overlap at '" + r.tensor + "'");
      if (r.begin > at) {
        return DataLoss("'" + name + "' has a gap of " + std::to_string(r.begin - at) + " bytes before tensor '" +
                        r.tensor + "'");
      }
      at = r.end;
    }
    if (at != size) {
      return DataLoss("'" + name + "' has " + std::to_string(size - at) + " bytes that belong to no tensor at its end");
    }
    return OkStatus();
  }

  std::vector<std::shared_ptr<const MappedFile>> mappings_;
  std::unordered_map<std::string, std::string> shard_of_;  // used and skipped tensors
};

Status AddFile(const std::string& path, SafetensorsFile* file) {
  FS_ASSIGN_OR_RETURN(auto mapping, MappedFile::Open(path));
  FS_RETURN_IF_ERROR(file->Add(mapping->bytes(), path));
  file->KeepMapping(std::move(mapping));
  return OkStatus();
}

// Tensor name -> shard file name.
StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  JsonLimits limits;
  limits.max_depth = 8;
  limits.max_bytes = kMaxIndexBytes;
  FS_ASSIGN_OR_RETURN(const Json index, ReadJsonFile(path, limits));
  const Json* map = index.is_object() ? Member(index, "weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return DataLoss("'" + path + "' has no 'weight_map' object that names tensors");
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !PlainFileName(shard.get_ref<const std::string&>())) {
      return DataLoss("'" + path + "' names a shard for tensor '" + tensor.substr(0, kMaxName) +
                      "' that is not a plain file name ending in .safetensors");
    }
    out.emplace(tensor, shard.get<std::string>());
  }
  return out;
}

Status AddShards(const std::string& directory, SafetensorsFile* file) {
  const std::string index_path = directory + "/model.safetensors.index.json";
  FS_ASSIGN_OR_RETURN(const auto index, ReadIndex(index_path));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    return DataLoss("'" + index_path + "' names " + std::to_string(shards.size()) + " shards, more than the limit of " +
                    std::to_string(kMaxShards));
  }
  for (const std::string& shard : shards) FS_RETURN_IF_ERROR(AddFile(directory + "/" + shard, file));
  for (const auto& [tensor, shard] : index) {
    const std::string* found = file->ShardOf(tensor);
    if (found == nullptr || *found != directory + "/" + shard) {
      return DataLoss("'" + index_path + "' says that tensor '" + tensor + "' is in '" + shard + "', but " +
                      (found == nullptr ? "no shard has it" : "it is in '" + *found + "'"));
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::shared_ptr<const ModelFile>> ParseSafetensors(std::span<const std::byte> bytes, const std::string& name) {
  auto file = std::make_shared<SafetensorsFile>(name);
  FS_RETURN_IF_ERROR(file->Add(bytes, name));
  return std::shared_ptr<const ModelFile>(std::move(file));
}

StatusOr<std::shared_ptr<const ModelFile>> OpenSafetensors(const std::string& path) {
  auto file = std::make_shared<SafetensorsFile>(path);
  if (!IsDirectory(path)) {
    FS_RETURN_IF_ERROR(AddFile(path, file.get()));
  } else if (FileExists(path + "/model.safetensors")) {
    FS_RETURN_IF_ERROR(AddFile(path + "/model.safetensors", file.get()));
  } else if (FileExists(path + "/model.safetensors.index.json")) {
    FS_RETURN_IF_ERROR(AddShards(path, file.get()));
  } else {
    return NotFound("the directory '" + path + "' has neither model.safetensors nor model.safetensors.index.json");
  }
  return std::shared_ptr<const ModelFile>(std::move(file));
}

}  // namespace farsight
