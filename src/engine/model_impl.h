// What a public Model holds.
#ifndef FARSIGHT_ENGINE_MODEL_IMPL_H_
#define FARSIGHT_ENGINE_MODEL_IMPL_H_

#include <functional>
#include <memory>
#include <optional>

#include "farsight/engine.h"
#include "model/runner.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace farsight {

struct Model::Impl {
  ModelInfo info;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<LoadedModel> loaded;
  // For tests: the file of the KV tiers of engines made from now on, in place of one on the disk.
  std::function<StatusOr<std::unique_ptr<AsyncFile>>()> open_kv_file;
};

inline DType ToDType(KvType t) {
  switch (t) {
    case KvType::kF32:
      return DType::kF32;
    case KvType::kF16:
      return DType::kF16;
    case KvType::kBF16:
      return DType::kBF16;
  }
  return DType::kF16;
}

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_MODEL_IMPL_H_
