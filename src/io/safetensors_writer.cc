#include "io/safetensors_writer.h"

#include <set>

#include "io/env.h"
#include "io/json.h"

namespace farsight {

Status WriteSafetensors(const std::string& path, const std::vector<std::pair<std::string, std::string>>& metadata,
                        const std::vector<TensorToWrite>& tensors) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& strings = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) strings[key] = value;
  }
  std::set<std::string> names;
  size_t bytes = 0;
  for (const TensorToWrite& t : tensors) {
    if (!names.insert(t.name).second) return InvalidArgument("two tensors to write are named '" + t.name + "'");
    if (IsQuantised(t.dtype)) return InvalidArgument("safetensors has no type for the tensor '" + t.name + "'");
    size_t expected = BytesOf(t.dtype, 1);
    for (const int64_t d : t.shape) expected *= static_cast<size_t>(d);
    if (expected != t.data.size()) {
      return InvalidArgument("the tensor '" + t.name + "' to write has " + std::to_string(t.data.size()) +
                             " bytes; its shape asks for " + std::to_string(expected));
    }
    header[t.name] = {{"dtype", InfoOf(t.dtype).name}, {"shape", t.shape}, {"data_offsets", {bytes, bytes + expected}}};
    bytes += expected;
  }
  std::string text = DumpJson(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // the data starts at a multiple of 8
  std::string out;
  out.reserve(8 + text.size() + bytes);
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xffu));
  out += text;
  for (const TensorToWrite& t : tensors) out.append(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  return WriteFileAtomically(path, out);
}

}  // namespace farsight
