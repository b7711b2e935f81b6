// Writes the seeds of fuzz_gguf and fuzz_safetensors below the directory given: good files and the classic lies.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "io/env.h"
#include "io/testing/gguf_writer.h"
#include "io/testing/safetensors_writer.h"

namespace {

using farsight::DType;
using farsight::testing::ByteSink;
using farsight::testing::GgufValue;
using farsight::testing::GgufWriter;
using farsight::testing::SafetensorsWriter;

struct Seed {
  const char* path;
  std::string bytes;
};

GgufWriter SmallGguf() {
  const std::vector<std::string> words = {"a", "bc"};
  const std::vector<float> scores = {0.5f, -1.0f};
  GgufWriter w;
  w.String("general.architecture", "llama").U32("llama.block_count", 1).F32("llama.eps", 1e-5f).Bool("flag", true);
  w.Strings("tokenizer.ggml.tokens", words).Numbers<float>("tokenizer.ggml.scores", GgufValue::kF32, scores);
  w.Number("wide", GgufValue::kU64, uint64_t{7}).SetAlignment(32);
  return w;
}

std::vector<Seed> GgufSeeds() {
  std::vector<Seed> out;
  const std::string good = SmallGguf()
                               .AddTensor("norm", DType::kF32, {3})
                               .AddTensor("w", DType::kQ4_0, {2, 32})
                               .AddTensor("h", DType::kBF16, {2, 2})
                               .Build();
  out.push_back({"gguf/good", good});
  out.push_back({"gguf/truncated", good.substr(0, good.size() / 2)});
  out.push_back({"gguf/quants", GgufWriter()
                                    .AddTensor("a", DType::kQ8_0, {1, 32})
                                    .AddTensor("b", DType::kQ4_K, {1, 256})
                                    .AddTensor("c", DType::kQ6_K, {1, 256})
                                    .Build()});
  GgufWriter lengths;
  lengths.Key("s", static_cast<uint32_t>(GgufValue::kString), ByteSink().Put<uint64_t>(~uint64_t{0}).bytes());
  out.push_back({"gguf/long_string", lengths.Build()});
  GgufWriter overlap;
  overlap.AddTensor({"a", {16}, 0, std::string(64, 'x'), 0, {}})
      .AddTensor({"b", {16}, 0, std::string(64, 'x'), 32, {}});
  out.push_back({"gguf/overlap", overlap.Build()});
  GgufWriter dims;
  dims.AddTensor({"a", {uint64_t{1} << 63, 2}, 2, std::string(64, 'x'), {}, {}});
  out.push_back({"gguf/huge_dims", dims.Build()});
  return out;
}

std::vector<Seed> SafetensorsSeeds() {
  std::vector<Seed> out;
  const std::string good = SafetensorsWriter()
                               .Metadata(R"({"format":"pt"})")
                               .AddTensor("w", "F32", {2, 1}, "abcdefgh")
                               .AddTensor("h", "BF16", {1, 2}, "wxyz")
                               .AddTensor("mask", "BOOL", {3}, "tft")
                               .Build();
  out.push_back({"safetensors/good", good});
  out.push_back({"safetensors/truncated", good.substr(0, good.size() - 5)});
  SafetensorsWriter overlap;
  overlap.AddTensor({"a", "F16", "[2]", "abcd", 0, 4}).AddTensor({"b", "F16", "[2]", "ab", 2, 6});
  out.push_back({"safetensors/overlap", overlap.Build()});
  SafetensorsWriter wide;
  wide.AddTensor({"a", "F32", "[4294967296,4294967296]", "abcd", {}, {}});
  out.push_back({"safetensors/huge_dims", wide.Build()});
  SafetensorsWriter header;
  header.header_bytes = ~uint64_t{0};
  out.push_back({"safetensors/long_header", header.AddTensor("a", "U8", {1}, "x").Build()});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus DIRECTORY\n");
    return 2;
  }
  for (const auto& seeds : {GgufSeeds(), SafetensorsSeeds()}) {
    for (const Seed& seed : seeds) {
      const std::filesystem::path path = std::filesystem::path(argv[1]) / seed.path;
      std::error_code error;
      std::filesystem::create_directories(path.parent_path(), error);
      if (const farsight::Status s = farsight::WriteFileAtomically(path.string(), seed.bytes); !s.ok()) {
        std::fprintf(stderr, "%s\n", s.message().c_str());
        return 1;
      }
    }
  }
  return 0;
}
