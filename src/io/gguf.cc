#include "io/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "io/env.h"

namespace farsight {
namespace {

// Caps far above any real model, so that a hostile header costs nothing.
constexpr uint32_t kMagic = 0x46554747u;                // "GGUF"
constexpr uint64_t kMaxCount = 1 << 16;                 // tensors, metadata keys
constexpr uint64_t kMaxString = uint64_t{16} << 20;     // bytes
constexpr uint64_t kMaxArray = uint64_t{1} << 22;       // elements
constexpr uint64_t kMaxMetadata = uint64_t{256} << 20;  // bytes that all metadata takes in memory
constexpr uint64_t kMaxKey = 65535;                     // bytes
constexpr uint64_t kMaxTensorName = 63;                 // bytes; the format reserves 64 with the closing NUL
constexpr uint64_t kMaxDim = uint64_t{1} << 40;
constexpr uint64_t kMaxElements = uint64_t{1} << 48;  // of one tensor
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;      // length, one character, type, the smallest value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

enum GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// Reads a header front to back. After the first error everything reads as zero and `status` keeps the reason.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  const Status& status() const { return status_; }
  size_t position() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  void Fail(const std::string& why) {
    if (status_.ok()) status_ = DataLoss("'" + name_ + "': " + why);
  }

  template <typename T>
  T Scalar(const char* what) {
    T v{};
    if (!status_.ok()) return v;
    if (left() < sizeof(T)) {
      Fail(std::string("the file ends inside ") + what + " (needs " + std::to_string(sizeof(T)) + " bytes at offset " +
           std::to_string(at_) + ", has " + std::to_string(left()) + ")");
      return v;
    }
    std::memcpy(&v, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return v;
  }

  // Counts memory about to be taken for metadata; false (and an error) past the limit.
  bool Charge(uint64_t n) {
    if (n > kMaxMetadata - charged_) {
      Fail("its metadata takes more than the limit of " + std::to_string(kMaxMetadata) + " bytes");
      return false;
    }
    charged_ += n;
    return true;
  }

  std::string String(const char* what) {
    const auto n = Scalar<uint64_t>(what);
    if (!status_.ok()) return {};
    if (n > left()) {
      Fail(std::string("the length of ") + what + " is " + std::to_string(n) + " bytes, but only " +
           std::to_string(left()) + " are left in the file");
      return {};
    }
    if (n > kMaxString) {
      Fail(std::string("the length of ") + what + " is " + std::to_string(n) + " bytes, more than the limit of " +
           std::to_string(kMaxString));
      return {};
    }
    if (!Charge(sizeof(std::string) + n)) return {};
    std::string s(reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return s;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0;
  uint64_t charged_ = 0;
  Status status_;
};

size_t ScalarSize(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

// One number of any scalar type but bool and string.
std::variant<int64_t, double> ReadNumber(Reader& r, uint32_t type, const std::string& key) {
  switch (type) {
    case kU8:
      return int64_t{r.Scalar<uint8_t>("a value")};
    case kI8:
      return int64_t{r.Scalar<int8_t>("a value")};
    case kU16:
      return int64_t{r.Scalar<uint16_t>("a value")};
    case kI16:
      return int64_t{r.Scalar<int16_t>("a value")};
    case kU32:
      return int64_t{r.Scalar<uint32_t>("a value")};
    case kI32:
      return int64_t{r.Scalar<int32_t>("a value")};
    case kI64:
      return r.Scalar<int64_t>("a value");
    case kU64: {
      const auto v = r.Scalar<uint64_t>("a value");
      if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        r.Fail("metadata key '" + key + "' holds " + std::to_string(v) + ", which is too large");
        return int64_t{0};
      }
      return static_cast<int64_t>(v);
    }
    case kF32:
      return double{r.Scalar<float>("a value")};
    default:
      return r.Scalar<double>("a value");
  }
}

bool ReadBool(Reader& r, const std::string& key) {
  const auto v = r.Scalar<uint8_t>("a bool");
  if (v > 1) r.Fail("metadata key '" + key + "' is a bool but holds " + std::to_string(v));
  return v == 1;
}

MetaValue ReadArray(Reader& r, const std::string& key) {
  const auto type = r.Scalar<uint32_t>("an array's type");
  const auto n = r.Scalar<uint64_t>("an array's length");
  if (!r.status().ok()) return false;
  if (type == kArray) {
    r.Fail("metadata key '" + key + "' is an array of arrays; only arrays of numbers, bools and strings are read");
    return false;
  }
  const size_t elem = type == kString ? 8 : ScalarSize(type);
  if (elem == 0) {
    r.Fail("metadata key '" + key + "' is an array of the unknown type " + std::to_string(type));
    return false;
  }
  if (n > r.left() / elem) {
    r.Fail("metadata key '" + key + "' is an array of " + std::to_string(n) + " elements, more than the " +
           std::to_string(r.left()) + " bytes left in the file can hold");
    return false;
  }
  if (n > kMaxArray) {
    r.Fail("metadata key '" + key + "' is an array of " + std::to_string(n) + " elements, more than the limit of " +
           std::to_string(kMaxArray));
    return false;
  }
  // Strings are charged one by one as they are read; their vector is reserved here and bounded by kMaxArray.
  if (type != kString && !r.Charge(n * sizeof(int64_t))) return false;
  if (type == kString) {
    std::vector<std::string> out;
    out.reserve(static_cast<size_t>(n));
    for (uint64_t i = 0; i < n && r.status().ok(); ++i) out.push_back(r.String("a string of an array"));
    return out;
  }
  if (type == kF32 || type == kF64) {
    std::vector<double> out(static_cast<size_t>(n));
    for (auto& v : out) v = std::get<double>(ReadNumber(r, type, key));
    return out;
  }
  std::vector<int64_t> out(static_cast<size_t>(n));
  for (auto& v : out) v = type == kBool ? int64_t{ReadBool(r, key)} : std::get<int64_t>(ReadNumber(r, type, key));
  return out;
}

MetaValue ReadValue(Reader& r, const std::string& key) {
  const auto type = r.Scalar<uint32_t>("a value's type");
  if (!r.status().ok()) return false;
  if (type == kBool) return ReadBool(r, key);
  if (type == kString) return r.String("a string value");
  if (type == kArray) return ReadArray(r, key);
  if (ScalarSize(type) == 0) {
    r.Fail("metadata key '" + key + "' has the unknown type " + std::to_string(type));
    return false;
  }
  const auto number = ReadNumber(r, type, key);
  if (const auto* i = std::get_if<int64_t>(&number)) return *i;
  return std::get<double>(number);
}

struct TypeEntry {
  uint32_t id;
  const char* name;
};
constexpr TypeEntry kKnownOnly[] = {{4, "Q4_2 (removed from the format)"},
                                    {5, "Q4_3 (removed from the format)"},
                                    {9, "Q8_1"},
                                    {10, "Q2_K"},
                                    {11, "Q3_K"},
                                    {15, "Q8_K"},
                                    {16, "IQ2_XXS"},
                                    {17, "IQ2_XS"},
                                    {18, "IQ3_XXS"},
                                    {19, "IQ1_S"},
                                    {20, "IQ4_NL"},
                                    {21, "IQ3_S"},
                                    {22, "IQ2_S"},
                                    {23, "IQ4_XS"},
                                    {24, "I8"},
                                    {25, "I16"},
                                    {26, "I32"},
                                    {27, "I64"},
                                    {28, "F64"},
                                    {29, "IQ1_M"},
                                    {31, "Q4_0_4_4 (removed from the format)"},
                                    {32, "Q4_0_4_8 (removed from the format)"},
                                    {33, "Q4_0_8_8 (removed from the format)"},
                                    {34, "TQ1_0"},
                                    {35, "TQ2_0"},
                                    {39, "MXFP4"}};

bool MapType(uint32_t id, DType* out) {
  switch (id) {
    case 0:
      *out = DType::kF32;
      return true;
    case 1:
      *out = DType::kF16;
      return true;
    case 2:
      *out = DType::kQ4_0;
      return true;
    case 3:
      *out = DType::kQ4_1;
      return true;
    case 6:
      *out = DType::kQ5_0;
      return true;
    case 7:
      *out = DType::kQ5_1;
      return true;
    case 8:
      *out = DType::kQ8_0;
      return true;
    case 12:
      *out = DType::kQ4_K;
      return true;
    case 13:
      *out = DType::kQ5_K;
      return true;
    case 14:
      *out = DType::kQ6_K;
      return true;
    case 30:
      *out = DType::kBF16;
      return true;
    default:
      return false;
  }
}

std::string TypeName(uint32_t id) {
  for (const auto& e : kKnownOnly) {
    if (e.id == id) return e.name;
  }
  return "number " + std::to_string(id);
}

class GgufFile : public ModelFile {
 public:
  Status Parse(std::span<const std::byte> bytes, const std::string& name) {
    path_ = name;
    Reader r(bytes, name);
    const auto magic = r.Scalar<uint32_t>("the magic number");
    const auto version = r.Scalar<uint32_t>("the version");
    FS_RETURN_IF_ERROR(r.status());
    if (magic != kMagic) {
      const std::string guess = GuessFormat(bytes);
      return DataLoss("'" + name +
                      "' is not a GGUF file: " + (guess.empty() ? "it does not start with 'GGUF'" : guess));
    }
    if (version != 0 && (version & 0xffffu) == 0)
      return Unimplemented("'" + name + "' is a big-endian GGUF file; only little-endian is read");
    if (version != 2 && version != 3) {
      return Unimplemented("'" + name + "' is GGUF version " + std::to_string(version) + "; versions 2 and 3 are read");
    }
    const auto num_tensors = r.Scalar<uint64_t>("the tensor count");
    const auto num_keys = r.Scalar<uint64_t>("the metadata count");
    FS_RETURN_IF_ERROR(r.status());
    FS_RETURN_IF_ERROR(CheckCount(num_keys, "metadata keys", r.left() / kMinKeyBytes));
    FS_RETURN_IF_ERROR(CheckCount(num_tensors, "tensors", r.left() / kMinTensorBytes));
    for (uint64_t i = 0; i < num_keys; ++i) FS_RETURN_IF_ERROR(ReadKey(r));
    FS_ASSIGN_OR_RETURN(const int64_t alignment, OptInt("general.alignment", 32));
    if (alignment < 8 || alignment > 65536 || (alignment & (alignment - 1)) != 0) {
      return DataLoss("'" + name + "' has the alignment " + std::to_string(alignment) +
                      "; a power of two from 8 to 65536 was expected");
    }
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < num_tensors; ++i)
      FS_RETURN_IF_ERROR(ReadTensor(r, static_cast<uint64_t>(alignment), &offsets));
    return PlaceTensors(bytes, r.position(), static_cast<uint64_t>(alignment), offsets);
  }

  void KeepMapping(std::shared_ptr<const MappedFile> mapping) { mapping_ = std::move(mapping); }

 private:
  // `room`: how many the rest of the file could hold, so that nothing is reserved for a lie.
  Status CheckCount(uint64_t count, const char* what, uint64_t room) const {
    if (count <= room && count <= kMaxCount) return OkStatus();
    const bool lie = count > room;
    return DataLoss("'" + path_ + "' claims " + std::to_string(count) + " " + what + ", more than " +
                    (lie ? "the rest of the file can hold (" : "the limit (") + std::to_string(lie ? room : kMaxCount) +
                    ")");
  }

  Status ReadKey(Reader& r) {
    const std::string key = r.String("a metadata key");
    FS_RETURN_IF_ERROR(r.status());
    if (key.empty() || key.size() > kMaxKey) {
      r.Fail("a metadata key has " + std::to_string(key.size()) + " bytes; 1 to " + std::to_string(kMaxKey) +
             " were expected");
      return r.status();
    }
    if (!std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7f; })) {
      r.Fail("a metadata key holds bytes that are not printable ASCII");
      return r.status();
    }
    MetaValue value = ReadValue(r, key);
    FS_RETURN_IF_ERROR(r.status());
    if (!metadata_.emplace(key, std::move(value)).second) r.Fail("the metadata key '" + key + "' appears twice");
    return r.status();
  }

  Status ReadTensor(Reader& r, uint64_t alignment, std::vector<uint64_t>* offsets) {
    FileTensor t;
    t.name = r.String("a tensor's name");
    FS_RETURN_IF_ERROR(r.status());
    if (t.name.empty() || t.name.size() > kMaxTensorName || t.name.find('\0') != std::string::npos) {
      r.Fail("a tensor's name has " + std::to_string(t.name.size()) + " bytes; 1 to " + std::to_string(kMaxTensorName) +
             " without a NUL were expected");
      return r.status();
    }
    const auto dims = r.Scalar<uint32_t>("a tensor's dimensions");
    FS_RETURN_IF_ERROR(r.status());
    if (dims < 1 || dims > 4) {
      r.Fail("tensor '" + t.name + "' has " + std::to_string(dims) + " dimensions; 1 to 4 were expected");
      return r.status();
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      const auto n = r.Scalar<uint64_t>("a tensor's shape");
      FS_RETURN_IF_ERROR(r.status());
      if (n == 0 || n > kMaxDim || elements > kMaxElements / n) {
        r.Fail("tensor '" + t.name + "' has an impossible shape: dimension " + std::to_string(d) + " is " +
               std::to_string(n) + ", and a tensor may hold 1 to " + std::to_string(kMaxElements) + " elements");
        return r.status();
      }
      elements *= n;
      t.shape.insert(t.shape.begin(), static_cast<int64_t>(n));  // the file lists the contiguous dimension first
    }
    const auto type = r.Scalar<uint32_t>("a tensor's type");
    const auto offset = r.Scalar<uint64_t>("a tensor's offset");
    FS_RETURN_IF_ERROR(r.status());
    if (!MapType(type, &t.dtype)) {
      return Unimplemented(
          "tensor '" + t.name + "' of '" + path_ + "' has the type " + TypeName(type) +
          ", which is not supported (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K are)");
    }
    if (t.shape.back() % InfoOf(t.dtype).block_elems != 0) {
      r.Fail("tensor '" + t.name + "' has rows of " + std::to_string(t.shape.back()) +
             " elements, not a multiple of the " + std::to_string(InfoOf(t.dtype).block_elems) + " of a " +
             InfoOf(t.dtype).name + " block");
    }
    if (offset % alignment != 0) {
      r.Fail("tensor '" + t.name + "' starts at offset " + std::to_string(offset) +
             ", not a multiple of the alignment " + std::to_string(alignment));
    }
    if (!tensor_index_.emplace(t.name, tensors_.size()).second) r.Fail("the tensor '" + t.name + "' appears twice");
    FS_RETURN_IF_ERROR(r.status());
    offsets->push_back(offset);
    tensors_.push_back(std::move(t));
    return OkStatus();
  }

  Status PlaceTensors(std::span<const std::byte> bytes, uint64_t header, uint64_t alignment,
                      const std::vector<uint64_t>& offsets) {
    // No sum here can wrap: the header lies inside the file, and sizes and offsets are compared by subtraction.
    const uint64_t data = (header + alignment - 1) / alignment * alignment;
    struct Range {
      uint64_t begin, end;
      size_t tensor;
    };
    std::vector<Range> ranges;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      FileTensor& t = tensors_[i];
      const uint64_t size = BytesOf(t.dtype, static_cast<uint64_t>(t.num_elements()));
      const uint64_t have = bytes.size() > data ? bytes.size() - data : 0;
      if (offsets[i] > have || size > have - offsets[i]) {
        return DataLoss("'" + path_ + "' is shorter than its header says: tensor '" + t.name + "' needs " +
                        std::to_string(size) + " bytes at offset " + std::to_string(data + offsets[i]) +
                        ", the file has " + std::to_string(bytes.size()));
      }
      t.data = bytes.subspan(data + offsets[i], size);
      ranges.push_back({offsets[i], offsets[i] + size, i});
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].begin < ranges[i - 1].end) {
        return DataLoss("'" + path_ + "' has tensors that overlap: '" + tensors_[ranges[i - 1].tensor].name +
                        "' and '" + tensors_[ranges[i].tensor].name + "'");
      }
    }
    return OkStatus();
  }

  std::shared_ptr<const MappedFile> mapping_;
};

}  // namespace

StatusOr<std::shared_ptr<const ModelFile>> ParseGguf(std::span<const std::byte> bytes, const std::string& name) {
  auto file = std::make_shared<GgufFile>();
  FS_RETURN_IF_ERROR(file->Parse(bytes, name));
  return std::shared_ptr<const ModelFile>(std::move(file));
}

StatusOr<std::shared_ptr<const ModelFile>> OpenGguf(const std::string& path) {
  FS_ASSIGN_OR_RETURN(auto mapping, MappedFile::Open(path));
  auto file = std::make_shared<GgufFile>();
  FS_RETURN_IF_ERROR(file->Parse(mapping->bytes(), path));
  file->KeepMapping(std::move(mapping));
  return std::shared_ptr<const ModelFile>(std::move(file));
}

}  // namespace farsight
