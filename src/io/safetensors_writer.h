// Writes safetensors files: named tensors and a map of strings.
#ifndef FARSIGHT_IO_SAFETENSORS_WRITER_H_
#define FARSIGHT_IO_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "farsight/status.h"

namespace farsight {

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;        // kF32, kF16 or kBF16
  std::vector<int64_t> shape;       // outermost first
  std::span<const std::byte> data;  // as many bytes as the shape says
};

// Replaces the file as a whole: readers see the old one or the new one. Names must differ.
Status WriteSafetensors(const std::string& path, const std::vector<std::pair<std::string, std::string>>& metadata,
                        const std::vector<TensorToWrite>& tensors);

}  // namespace farsight

#endif  // FARSIGHT_IO_SAFETENSORS_WRITER_H_
