// Any bytes as a safetensors file: the reader returns a file whose tensors tile the data, or one sentence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/safetensors.h"

namespace {

void Use(const farsight::ModelFile& file, std::span<const std::byte> bytes) {
  unsigned sum = 0;
  size_t used = 0;
  for (const auto& t : file.tensors()) {
    if (t.data.data() < bytes.data() || t.data.data() + t.data.size() > bytes.data() + bytes.size()) std::abort();
    if (t.data.size() != farsight::BytesOf(t.dtype, static_cast<size_t>(t.num_elements()))) std::abort();
    for (const std::byte b : t.data) sum += static_cast<unsigned>(b);
    used += t.data.size();
    if (file.FindTensor(t.name) != &t) std::abort();
  }
  if (used > bytes.size()) std::abort();  // tensors that do not overlap cannot be larger than the file
  for (const auto& s : file.skipped()) {
    if (file.GetTensor(s.name).ok()) std::abort();
  }
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = farsight::ParseSafetensors(bytes, "fuzz.safetensors");
  if (file.ok()) {
    Use(**file, bytes);
  } else if (file.status().message().empty()) {
    std::abort();
  }
  return 0;
}
