// Safetensors: one file, or a directory with model.safetensors or a sharded model.safetensors.index.json.
// docs/formats.md lists the rules enforced.
#ifndef FARSIGHT_IO_SAFETENSORS_H_
#define FARSIGHT_IO_SAFETENSORS_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "farsight/status.h"
#include "io/model_file.h"

namespace farsight {

// Maps the file or the shards and reads their headers; tensor data is not touched. Tensors of type F32, F16 and BF16
// are in tensors(), all others in skipped(). metadata() holds the strings of `__metadata__`; where shards disagree, the
// first one (by file name) wins. kDataLoss for a file that contradicts itself, kNotFound when a part is missing.
StatusOr<std::shared_ptr<const ModelFile>> OpenSafetensors(const std::string& path);

// One file's bytes in memory, which must outlive the result.
StatusOr<std::shared_ptr<const ModelFile>> ParseSafetensors(std::span<const std::byte> bytes, const std::string& name);

}  // namespace farsight

#endif  // FARSIGHT_IO_SAFETENSORS_H_
