// Writes safetensors files byte by byte for tests and tools. It is honest by default and can lie in every field.
#ifndef FARSIGHT_IO_TESTING_SAFETENSORS_WRITER_H_
#define FARSIGHT_IO_TESTING_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farsight::testing {

class SafetensorsWriter {
 public:
  // Lies: what would be written is replaced.
  std::optional<std::string> header;  // the whole JSON
  std::optional<uint64_t> header_bytes;

  struct Tensor {
    std::string name;
    std::string dtype;
    std::string shape;  // as JSON, "[2, 3]"
    std::string data;
    std::optional<uint64_t> begin, end;  // default: the running sum
  };

  SafetensorsWriter& Metadata(std::string_view json_object) {
    metadata_ = json_object;
    return *this;
  }
  // Names and types are written as they are given, without JSON escapes.
  SafetensorsWriter& AddTensor(Tensor t) {
    tensors_.push_back(std::move(t));
    return *this;
  }
  SafetensorsWriter& AddTensor(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape,
                               std::string data) {
    std::string dims;
    for (const int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    return AddTensor({std::string(name), std::string(dtype), "[" + dims + "]", std::move(data), {}, {}});
  }

  std::string Build() const {
    std::string json;
    std::string data;
    if (!metadata_.empty()) json += "\"__metadata__\":" + metadata_;
    for (const Tensor& t : tensors_) {
      if (!json.empty()) json += ",";
      json += "\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":" + t.shape + ",\"data_offsets\":[" +
              std::to_string(t.begin.value_or(data.size())) + "," +
              std::to_string(t.end.value_or(data.size() + t.data.size())) + "]}";
      data += t.data;
    }
    json = "{" + json + "}";
    json.append((8 - json.size() % 8) % 8, ' ');  // the data starts at a multiple of 8
    const std::string& text = header ? *header : json;
    const uint64_t length = header_bytes.value_or(text.size());
    std::string out;
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>((length >> (8 * i)) & 0xffu));
    return out + text + data;
  }

 private:
  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace farsight::testing

#endif  // FARSIGHT_IO_TESTING_SAFETENSORS_WRITER_H_
