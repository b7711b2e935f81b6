// Writes the tiny random model of the engine's tests: make_tiny_model ARCHITECTURE FILE
#include <cstdio>
#include <fstream>

#include "engine/testing/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: make_tiny_model ARCHITECTURE FILE\n");
    return 2;
  }
  std::ofstream out(argv[2], std::ios::binary);
  out << farsight::testing::TinyModel(argv[1]);
  return out.good() ? 0 : 1;
}
