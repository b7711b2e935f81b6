#include "io/model_file.h"

#include <algorithm>

namespace farsight {
namespace {

const char* TypeName(const MetaValue& v) {
  static constexpr const char* kNames[] = {"a bool",
                                           "an integer",
                                           "a float",
                                           "a string",
                                           "an array of integers",
                                           "an array of floats",
                                           "an array of strings"};
  return kNames[v.index()];
}

}  // namespace

const FileTensor* ModelFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(std::string(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

StatusOr<const FileTensor*> ModelFile::GetTensor(std::string_view name) const {
  if (const FileTensor* t = FindTensor(name)) return t;
  for (const auto& s : skipped_) {
    if (s.name == name) {
      return Unimplemented("tensor '" + s.name + "' of '" + path_ + "' has the type " + s.dtype +
                           ", which cannot be used as a weight");
    }
  }
  return DataLoss("'" + path_ + "' lacks the tensor '" + std::string(name) + "'");
}

StatusOr<int64_t> ModelFile::GetInt(const std::string& key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return DataLoss("'" + path_ + "' lacks the required metadata key '" + key + "'");
  if (const auto* v = std::get_if<int64_t>(&it->second)) return *v;
  return DataLoss("metadata key '" + key + "' should be an integer but is " + TypeName(it->second));
}

StatusOr<double> ModelFile::GetFloat(const std::string& key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return DataLoss("'" + path_ + "' lacks the required metadata key '" + key + "'");
  if (const auto* v = std::get_if<double>(&it->second)) return *v;
  if (const auto* v = std::get_if<int64_t>(&it->second)) return static_cast<double>(*v);
  return DataLoss("metadata key '" + key + "' should be a number but is " + TypeName(it->second));
}

StatusOr<std::string> ModelFile::GetString(const std::string& key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return DataLoss("'" + path_ + "' lacks the required metadata key '" + key + "'");
  if (const auto* v = std::get_if<std::string>(&it->second)) return *v;
  return DataLoss("metadata key '" + key + "' should be a string but is " + TypeName(it->second));
}

StatusOr<int64_t> ModelFile::OptInt(const std::string& key, int64_t fallback) const {
  return Has(key) ? GetInt(key) : StatusOr<int64_t>(fallback);
}
StatusOr<double> ModelFile::OptFloat(const std::string& key, double fallback) const {
  return Has(key) ? GetFloat(key) : StatusOr<double>(fallback);
}
StatusOr<std::string> ModelFile::OptString(const std::string& key, const std::string& fallback) const {
  return Has(key) ? GetString(key) : StatusOr<std::string>(fallback);
}

StatusOr<bool> ModelFile::OptBool(const std::string& key, bool fallback) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return fallback;
  if (const auto* v = std::get_if<bool>(&it->second)) return *v;
  return DataLoss("metadata key '" + key + "' should be a bool but is " + TypeName(it->second));
}

std::string GuessFormat(std::span<const std::byte> bytes) {
  const std::string_view s(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 64));
  if (s.starts_with("version https://git-lfs")) {
    return "it is a Git LFS pointer; fetch the file itself with 'git lfs pull'";
  }
  if (s.starts_with("GGUF")) return "it is a GGUF file";
  if (s.starts_with("lmgg") || s.starts_with("tjgg") || s.starts_with("fmgg"))
    return "it is a GGML file from before GGUF";
  if (s.starts_with("PK\x03\x04") || s.starts_with("\x80\x02")) return "it looks like a PyTorch checkpoint (pickle)";
  if (s.starts_with("<!") || s.starts_with("<html")) return "it is an HTML page, perhaps a failed download";
  if (s.size() >= 9 && s[8] == '{') return "it looks like a safetensors file";
  return "";
}

}  // namespace farsight
