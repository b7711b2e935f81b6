// What every model file format is read into: typed metadata and a table of tensors that point into a mapped file.
#ifndef FARSIGHT_IO_MODEL_FILE_H_
#define FARSIGHT_IO_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "farsight/status.h"

namespace farsight {

// One tensor as it lies in the file. Dimensions are outermost first, as PyTorch prints them: a weight of a linear layer
// is [out, in] and its rows (of `in` elements) are contiguous.
struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // size == BytesOf(dtype, product of shape); lives as long as its file

  int64_t num_elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// A metadata value. Integers of every width become int64_t (u64 values above INT64_MAX are refused by the reader).
using MetaValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

// A tensor that is in the file but of a type no weight has (masks, counters, indices): named, never read.
struct SkippedTensor {
  std::string name;
  std::string dtype;  // as the file spells it
};

// Owns the mapping; tensors stay valid as long as one shared_ptr does.
class ModelFile {
 public:
  virtual ~ModelFile() = default;

  const FileTensor* FindTensor(std::string_view name) const;  // nullptr when there is none
  // The tensor, or a sentence that says it is missing or was skipped for its type.
  StatusOr<const FileTensor*> GetTensor(std::string_view name) const;
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const std::vector<SkippedTensor>& skipped() const { return skipped_; }
  const std::unordered_map<std::string, MetaValue>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

  // Typed metadata. The error names the key and says which type was found; Opt* return `fallback` when the key is
  // absent.
  StatusOr<int64_t> GetInt(const std::string& key) const;
  StatusOr<double> GetFloat(const std::string& key) const;  // accepts integers too
  StatusOr<std::string> GetString(const std::string& key) const;
  StatusOr<int64_t> OptInt(const std::string& key, int64_t fallback) const;
  StatusOr<double> OptFloat(const std::string& key, double fallback) const;
  StatusOr<bool> OptBool(const std::string& key, bool fallback) const;
  StatusOr<std::string> OptString(const std::string& key, const std::string& fallback) const;
  bool Has(const std::string& key) const { return metadata_.contains(key); }

 protected:
  std::string path_;
  std::vector<FileTensor> tensors_;
  std::vector<SkippedTensor> skipped_;
  std::unordered_map<std::string, size_t> tensor_index_;
  std::unordered_map<std::string, MetaValue> metadata_;
};

// What a file that is not the expected model format seems to be, as a clause such as "it is a Git LFS pointer; ...".
// Empty when nothing is recognised.
std::string GuessFormat(std::span<const std::byte> bytes);

}  // namespace farsight

#endif  // FARSIGHT_IO_MODEL_FILE_H_
