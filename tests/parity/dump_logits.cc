// Writes the logits of every position of a text, for comparison with other programs.
//
//   dump_logits MODEL TEXT OUT POSITIONS [BACKEND [f32|f16|bf16]]
//
// BACKEND: reference, or an instruction set of the fast one: best (the default), amx, avx512, avx2, scalar.
//
// OUT.ids: int32 token ids; OUT.logits: f32 rows of the vocabulary's size, one a position. Both in the machine's order.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "farsight/engine.h"

namespace farsight {
namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "dump_logits: %s\n", message.c_str());
  return 1;
}

template <typename T>
void Write(std::ofstream& out, std::span<const T> values) {
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
}

int Main(int argc, char** argv) {
  if (argc < 5 || argc > 7) {
    return Fail("expected MODEL TEXT OUT POSITIONS [reference|best|amx|avx512|avx2|scalar [f32|f16|bf16]]");
  }
  const std::string backend = argc > 5 ? argv[5] : "best";
  ModelOptions how;
  how.reference = backend == "reference";
  if (!how.reference) how.isa = backend;
  EngineOptions options;
  auto kv_type = ParseKvType(argc > 6 ? argv[6] : "f16");
  if (!kv_type.ok()) return Fail(kv_type.status().message());
  options.kv_type = *kv_type;
  auto model = Model::Load(argv[1], how);
  if (!model.ok()) return Fail(model.status().message());
  std::ifstream file(argv[2], std::ios::binary);
  if (!file) return Fail(std::string("cannot read '") + argv[2] + "'");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());

  Request request;
  request.prompt = (*model)->Tokenize(text, false, false);
  const long wanted = std::strtol(argv[4], nullptr, 10);
  if (wanted < 1 || wanted > static_cast<long>(request.prompt.size())) {
    return Fail("POSITIONS must be from 1 to the text's " + std::to_string(request.prompt.size()) + " tokens");
  }
  request.prompt.resize(static_cast<size_t>(wanted));
  request.max_new_tokens = 0;
  options.context_tokens = wanted;
  auto engine = Engine::Create(*model, options);
  if (!engine.ok()) return Fail(engine.status().message());

  std::ofstream ids(std::string(argv[3]) + ".ids", std::ios::binary);
  Write(ids, std::span<const int32_t>(request.prompt));
  std::ofstream logits(std::string(argv[3]) + ".logits", std::ios::binary);
  request.on_logits = [&](int64_t, std::span<const float> row) { Write(logits, row); };
  auto done = (*engine)->Generate(std::move(request));
  if (!done.ok()) return Fail(done.status().message());
  if (!ids.flush() || !logits.flush()) return Fail(std::string("cannot write '") + argv[3] + "'");
  return 0;
}

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::Main(argc, argv); }
