// What a public Model holds.
#ifndef FARSIGHT_ENGINE_MODEL_IMPL_H_
#define FARSIGHT_ENGINE_MODEL_IMPL_H_

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
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_MODEL_IMPL_H_
