#include "model/forecast_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/env.h"
#include "io/gguf.h"
#include "io/hash.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "ops/dequantise.h"

namespace farsight {
namespace {

constexpr const char* kFormat = "farsight-forecast-1";

const char* KeysName(SummaryKind keys) { return keys == SummaryKind::kSketch ? "sketch" : "pooled"; }

// Metadata of safetensors are strings; a GGUF file may have real numbers.
StatusOr<int> ReadCount(const ModelFile& file, const std::string& key, int fallback) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return fallback;
  int64_t value = -1;
  if (const auto* number = std::get_if<int64_t>(&it->second)) value = *number;
  if (const auto* text = std::get_if<std::string>(&it->second); text != nullptr && !text->empty()) {
    char* end = nullptr;
    value = std::strtoll(text->c_str(), &end, 10);
    if (*end != 0) value = -1;
  }
  if (value < 1 || value > (1 << 20)) {
    return DataLoss("'" + key + "' of the Forecast '" + file.path() + "' is not a number from 1 to 1048576");
  }
  return static_cast<int>(value);
}

Status ReadInfo(const ModelFile& file, ForecastInfo* info) {
  FS_ASSIGN_OR_RETURN(const std::string format, file.OptString("format", kFormat));
  // Published checkpoints that were converted say "pt".
  if (format != kFormat && format.rfind("farsight", 0) == 0) {
    return Unimplemented("the Forecast '" + file.path() + "' has the format '" + format + "'; '" + kFormat +
                         "' was expected");
  }
  FS_ASSIGN_OR_RETURN(info->fingerprint, file.OptString("model_fingerprint", ""));
  FS_ASSIGN_OR_RETURN(const std::string keys, file.OptString("keys", "pooled"));
  if (keys != "pooled" && keys != "sketch") {
    return DataLoss("the Forecast '" + file.path() + "' scores keys of the kind '" + keys +
                    "'; pooled or sketch was expected");
  }
  info->keys = keys == "sketch" ? SummaryKind::kSketch : SummaryKind::kPooledKeys;
  FS_ASSIGN_OR_RETURN(const std::string rotated, file.OptString("rotated", "true"));
  if (rotated != "true" && rotated != "false") {
    return DataLoss("'rotated' of the Forecast '" + file.path() + "' is '" + rotated + "'; true or false was expected");
  }
  info->rotated = rotated == "true";
  FS_ASSIGN_OR_RETURN(info->block_size, ReadCount(file, "block_size", info->block_size));
  FS_ASSIGN_OR_RETURN(info->kernel_size, ReadCount(file, "kernel_size", info->kernel_size));
  FS_ASSIGN_OR_RETURN(info->kernel_stride, ReadCount(file, "kernel_stride", info->kernel_stride));
  FS_ASSIGN_OR_RETURN(info->sketch_bits, ReadCount(file, "sketch_bits", info->sketch_bits));
  for (const auto& [key, value] : file.metadata()) {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && key.rfind("training.", 0) == 0) info->training.emplace_back(key.substr(9), *text);
  }
  std::sort(info->training.begin(), info->training.end());
  return OkStatus();
}

// `heads`: of the projections read before, 0 for the first.
StatusOr<std::vector<float>> ReadProjection(const ModelFile& file, int target, const ModelConfig& c, int heads) {
  const std::string name = ForecastTensorName(target);
  FS_ASSIGN_OR_RETURN(const FileTensor* t, file.GetTensor(name));
  const auto shape = [&](int n) { return std::vector<int64_t>{int64_t{n} * c.head_dim, c.hidden}; };
  const bool fits = heads > 0 ? t->shape == shape(heads) : t->shape == shape(c.kv_heads) || t->shape == shape(c.heads);
  if (!fits) {
    std::string found;
    for (const int64_t d : t->shape) found += (found.empty() ? "" : ", ") + std::to_string(d);
    const int wanted = heads > 0 ? heads : c.kv_heads;
    return DataLoss("the Forecast's tensor '" + name + "' has the shape [" + found + "], but the model asks for [" +
                    std::to_string(wanted * c.head_dim) + ", " + std::to_string(c.hidden) + "]");
  }
  const int64_t rows = t->shape[0], cols = t->shape[1];
  std::vector<float> values(static_cast<size_t>(rows * cols));
  if (cols % InfoOf(t->dtype).block_elems != 0) return DataLoss("the Forecast's tensor '" + name + "' has broken rows");
  DequantiseRow(t->dtype, t->data.data(), rows * cols, values.data());
  for (const float v : values) {
    if (!std::isfinite(v)) return DataLoss("the Forecast's tensor '" + name + "' holds a value that is not finite");
  }
  return values;
}

// Begins with the magic of GGUF; files that cannot be read are left to the reader of safetensors to complain about.
bool LooksLikeGguf(const std::string& path) {
  if (IsDirectory(path)) return false;
  const auto mapped = MappedFile::Open(path);
  return mapped.ok() && (*mapped)->bytes().size() >= 4 && std::memcmp((*mapped)->bytes().data(), "GGUF", 4) == 0;
}

}  // namespace

std::string ForecastTensorName(int target) {
  if (target == 0) return "model.layers.0.self_attn.q_curr_proj.weight";
  return "model.layers." + std::to_string(target - 1) + ".self_attn.q_future_proj.weight";
}

std::string ModelFingerprint(const ModelFile& file) {
  constexpr size_t kPieces = 64;
  constexpr size_t kPieceBytes = 256;
  std::vector<const FileTensor*> sorted;
  for (const FileTensor& t : file.tensors()) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  std::string text;
  for (const FileTensor* t : sorted) {
    text += t->name + "\n" + InfoOf(t->dtype).name;
    for (const int64_t d : t->shape) text.append(" ").append(std::to_string(d));
    for (size_t i = 0; i < kPieces; ++i) {
      // Evenly spread, the last one at the end; of a small tensor the pieces overlap and cover it.
      const size_t room = t->data.size() - std::min(t->data.size(), kPieceBytes);
      const auto piece = t->data.subspan(room * i / (kPieces - 1), std::min(t->data.size(), kPieceBytes));
      text.append(" ").append(std::to_string(Checksum(piece)));
    }
    text += "\n";
  }
  const uint64_t sum = Checksum(std::as_bytes(std::span(text)));
  std::string out;
  for (int shift = 60; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[(sum >> shift) & 15u]);
  return out;
}

Status SaveForecast(const std::string& path, const Forecast& f, const ModelConfig& config, DType dtype) {
  if (f.projections.size() != static_cast<size_t>(config.layers)) {
    return InvalidArgument("a Forecast has one projection for each of " + std::to_string(config.layers) +
                           " layers, not " + std::to_string(f.projections.size()));
  }
  const int64_t rows = int64_t{f.Heads(config) == config.heads ? config.heads : config.kv_heads} * config.head_dim;
  const int64_t cols = config.hidden;
  std::vector<std::vector<std::byte>> kept;
  std::vector<TensorToWrite> tensors;
  for (int target = 0; target < config.layers; ++target) {
    const auto& values = f.projections[static_cast<size_t>(target)];
    if (values.size() != static_cast<size_t>(rows * cols)) {
      return InvalidArgument("projection " + std::to_string(target) + " has " + std::to_string(values.size()) +
                             " weights; " + std::to_string(rows * cols) + " were expected");
    }
    std::vector<std::byte> bytes(BytesOf(dtype, values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
        continue;
      }
      const uint16_t half = dtype == DType::kF16 ? F32ToF16(values[i]) : F32ToBF16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    kept.push_back(std::move(bytes));
  }
  for (int target = 0; target < config.layers; ++target) {
    tensors.push_back({ForecastTensorName(target), dtype, {rows, cols}, kept[static_cast<size_t>(target)]});
  }
  const ForecastInfo& info = f.info;
  std::vector<std::pair<std::string, std::string>> metadata = {
      {"format", kFormat},
      {"model_fingerprint", info.fingerprint},
      {"architecture", config.architecture},
      {"keys", KeysName(info.keys)},
      {"rotated", info.rotated ? "true" : "false"},
      {"block_size", std::to_string(info.block_size)},
      {"kernel_size", std::to_string(info.kernel_size)},
      {"kernel_stride", std::to_string(info.kernel_stride)},
      {"sketch_bits", std::to_string(info.sketch_bits)},
  };
  for (const auto& [key, value] : info.training) metadata.emplace_back("training." + key, value);
  return WriteSafetensors(path, metadata, tensors);
}

StatusOr<Forecast> LoadForecast(const std::string& path, const ModelConfig& config, const std::string& fingerprint) {
  if (!FileExists(path)) return NotFound("there is no Forecast at '" + path + "'");
  std::shared_ptr<const ModelFile> file;
  if (LooksLikeGguf(path)) {
    FS_ASSIGN_OR_RETURN(file, OpenGguf(path));
  } else {
    FS_ASSIGN_OR_RETURN(file, OpenSafetensors(path));
  }
  Forecast out;
  FS_RETURN_IF_ERROR(ReadInfo(*file, &out.info));
  if (!out.info.fingerprint.empty() && out.info.fingerprint != fingerprint) {
    return InvalidArgument("the Forecast '" + path + "' was trained for another model: its fingerprint is " +
                           out.info.fingerprint + ", the model's is " + fingerprint);
  }
  for (int target = 0; target < config.layers; ++target) {
    FS_ASSIGN_OR_RETURN(auto values, ReadProjection(*file, target, config, target == 0 ? 0 : out.Heads(config)));
    out.projections.push_back(std::move(values));
  }
  return out;
}

}  // namespace farsight
