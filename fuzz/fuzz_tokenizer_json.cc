// A hostile tokenizer.json must be refused or give a tokenizer that encodes and decodes any text. The input is the
// file, then a zero byte, then the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view text = zero == input.npos ? "don't 123 \xff<s>" : input.substr(zero + 1);
  const auto loaded = farsight::TokenizerFromJson(input.substr(0, zero), "", "input");
  if (!loaded.ok()) return 0;
  const farsight::Tokenizer& t = *loaded->tokenizer;
  for (const int32_t id : t.Encode(text, {})) {
    if (id < 0 || id >= t.vocab_size()) std::abort();
  }
  farsight::Detokenizer stream(t);
  for (const int32_t id : t.Encode(text, {.add_bos = true, .add_eos = true, .parse_control = true})) stream.Push(id);
  stream.Flush();
  return 0;
}
