// The smallest program that uses the library: loads a model and continues a text.
#include <cstdio>
#include <string>

#include "farsight/engine.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: minimal MODEL.gguf TEXT\n");
    return 2;
  }
  auto model = farsight::Model::Load(argv[1], {});
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().message().c_str());
    return 1;
  }
  auto engine = farsight::Engine::Create(*model, {.context_tokens = 2048});
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return 1;
  }
  farsight::Request request;
  request.prompt = (*model)->Tokenize(argv[2]);
  request.max_new_tokens = 64;
  request.on_token = [](const farsight::TokenEvent& e) {
    std::fwrite(e.text.data(), 1, e.text.size(), stdout);
    return true;
  };
  auto done = (*engine)->Generate(std::move(request));
  if (!done.ok()) {
    std::fprintf(stderr, "%s\n", done.status().message().c_str());
    return 1;
  }
  std::printf("\n");
  return 0;
}
