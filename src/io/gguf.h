// GGUF, the single-file model format (versions 2 and 3, little-endian). docs/formats.md lists the rules enforced.
#ifndef FARSIGHT_IO_GGUF_H_
#define FARSIGHT_IO_GGUF_H_

#include <memory>
#include <span>
#include <string>

#include "io/model_file.h"

namespace farsight {

// Maps the file and reads its header; tensor data is not touched. kDataLoss for a file that contradicts itself,
// kUnimplemented for a version or tensor type that we do not read.
StatusOr<std::shared_ptr<const ModelFile>> OpenGguf(const std::string& path);

// The same over bytes in memory, which must outlive the result.
StatusOr<std::shared_ptr<const ModelFile>> ParseGguf(std::span<const std::byte> bytes, const std::string& name);

}  // namespace farsight

#endif  // FARSIGHT_IO_GGUF_H_
