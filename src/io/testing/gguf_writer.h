// Writes GGUF files byte by byte for tests and tools. It is honest by default and can lie in every field.
#ifndef FARSIGHT_IO_TESTING_GGUF_WRITER_H_
#define FARSIGHT_IO_TESTING_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace farsight::testing {

// Type numbers of metadata values.
enum class GgufValue : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

inline uint32_t GgufTypeOf(DType t) {
  constexpr uint32_t kIds[] = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14};
  return kIds[static_cast<size_t>(t)];
}

// Little-endian bytes, appended.
class ByteSink {
 public:
  template <typename T>
  ByteSink& Put(T v) {
    static_assert(std::is_arithmetic_v<T>);
    char b[sizeof(T)];
    std::memcpy(b, &v, sizeof(T));
    bytes_.append(b, sizeof(T));
    return *this;
  }
  ByteSink& Raw(std::string_view s) {
    bytes_.append(s);
    return *this;
  }
  ByteSink& String(std::string_view s) { return Put<uint64_t>(s.size()).Raw(s); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class GgufWriter {
 public:
  // Lies: fields that replace what would be written.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count, key_count;
  uint64_t alignment = 32;  // of the data; SetAlignment also writes the key

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // as in the file: contiguous dimension first
    uint32_t type = 0;
    std::string data;
    std::optional<uint64_t> offset;    // default: the running aligned sum
    std::optional<uint32_t> num_dims;  // default: dims.size()
  };

  // `payload`: everything behind the type number.
  GgufWriter& Key(std::string_view key, uint32_t type, std::string_view payload) {
    keys_.String(key).Put<uint32_t>(type).Raw(payload);
    ++num_keys_;
    return *this;
  }
  template <typename T>
  GgufWriter& Number(std::string_view key, GgufValue type, T v) {
    return Key(key, static_cast<uint32_t>(type), ByteSink().Put<T>(v).bytes());
  }
  GgufWriter& U32(std::string_view key, uint32_t v) { return Number(key, GgufValue::kU32, v); }
  GgufWriter& F32(std::string_view key, float v) { return Number(key, GgufValue::kF32, v); }
  GgufWriter& Bool(std::string_view key, bool v) {
    return Number(key, GgufValue::kBool, static_cast<uint8_t>(v ? 1 : 0));
  }
  GgufWriter& String(std::string_view key, std::string_view v) {
    return Key(key, static_cast<uint32_t>(GgufValue::kString), ByteSink().String(v).bytes());
  }
  // `elements`: the encoded values; `count` is written as it is given.
  GgufWriter& Array(std::string_view key, uint32_t element_type, uint64_t count, std::string_view elements) {
    return Key(key, static_cast<uint32_t>(GgufValue::kArray),
               ByteSink().Put<uint32_t>(element_type).Put<uint64_t>(count).Raw(elements).bytes());
  }
  GgufWriter& Strings(std::string_view key, std::span<const std::string> values) {
    ByteSink s;
    for (const auto& v : values) s.String(v);
    return Array(key, static_cast<uint32_t>(GgufValue::kString), values.size(), s.bytes());
  }
  template <typename T>
  GgufWriter& Numbers(std::string_view key, GgufValue type, std::span<const T> values) {
    ByteSink s;
    for (const T v : values) s.Put<T>(v);
    return Array(key, static_cast<uint32_t>(type), values.size(), s.bytes());
  }
  GgufWriter& SetAlignment(uint32_t v) {
    alignment = v;
    return U32("general.alignment", v);
  }

  // `shape`: outermost dimension first, as FileTensor gives it back. Empty data: zeros of the right size.
  GgufWriter& AddTensor(std::string_view name, DType type, const std::vector<int64_t>& shape, std::string data = {}) {
    Tensor t;
    t.name = name;
    t.type = GgufTypeOf(type);
    size_t elements = 1;
    for (auto it = shape.rbegin(); it != shape.rend(); ++it) {
      t.dims.push_back(static_cast<uint64_t>(*it));
      elements *= static_cast<size_t>(*it);
    }
    t.data = data.empty() ? std::string(BytesOf(type, elements), '\0') : std::move(data);
    return AddTensor(std::move(t));
  }
  GgufWriter& AddTensor(Tensor t) {
    tensors_.push_back(std::move(t));
    return *this;
  }

  std::string Build() const {
    ByteSink out;
    out.Raw(magic).Put<uint32_t>(version).Put<uint64_t>(tensor_count.value_or(tensors_.size()));
    out.Put<uint64_t>(key_count.value_or(num_keys_)).Raw(keys_.bytes());
    uint64_t running = 0;
    for (const Tensor& t : tensors_) {
      out.String(t.name).Put<uint32_t>(t.num_dims.value_or(static_cast<uint32_t>(t.dims.size())));
      for (const uint64_t d : t.dims) out.Put<uint64_t>(d);
      out.Put<uint32_t>(t.type).Put<uint64_t>(t.offset.value_or(running));
      running += Padded(t.data.size());
    }
    out.Raw(std::string(Padded(out.bytes().size()) - out.bytes().size(), '\0'));
    for (const Tensor& t : tensors_) {
      out.Raw(t.data);
      // The last tensor needs no padding behind it.
      if (&t != &tensors_.back()) out.Raw(std::string(Padded(t.data.size()) - t.data.size(), '\0'));
    }
    return out.bytes();
  }

 private:
  size_t Padded(size_t n) const { return (n + alignment - 1) / alignment * alignment; }

  ByteSink keys_;
  uint64_t num_keys_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace farsight::testing

#endif  // FARSIGHT_IO_TESTING_GGUF_WRITER_H_
