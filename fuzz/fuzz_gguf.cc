// Any bytes as a GGUF file: the reader returns a file whose tensors lie inside the bytes, or one sentence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/gguf.h"

namespace {

// Touches what a caller may touch; the sanitizers see a span that is too long.
void Use(const farsight::ModelFile& file, std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const auto& t : file.tensors()) {
    if (t.data.data() < bytes.data() || t.data.data() + t.data.size() > bytes.data() + bytes.size()) std::abort();
    const auto elements = static_cast<size_t>(t.num_elements());
    if (t.data.size() != farsight::BytesOf(t.dtype, elements)) std::abort();
    for (const std::byte b : t.data) sum += static_cast<unsigned>(b);
    if (file.FindTensor(t.name) != &t) std::abort();
  }
  for (const auto& [key, value] : file.metadata()) {
    const bool number = value.index() == 1 || value.index() == 2;
    if (file.GetFloat(key).ok() != number || file.GetString(key).ok() != (value.index() == 3)) std::abort();
  }
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = farsight::ParseGguf(bytes, "fuzz.gguf");
  if (file.ok()) {
    Use(**file, bytes);
  } else if (file.status().message().empty()) {
    std::abort();
  }
  return 0;
}
