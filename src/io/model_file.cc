#include "io/model_file.h"

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

}  // namespace farsight
