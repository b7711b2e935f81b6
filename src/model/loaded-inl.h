// A model on a backend: its weights, and runners over them.
#ifndef FARSIGHT_MODEL_LOADED_INL_H_
#define FARSIGHT_MODEL_LOADED_INL_H_

#include <memory>
#include <string>
#include <utility>

#include "model/forward-inl.h"
#include "model/forward_memory-inl.h"
#include "model/forward_tiers-inl.h"

namespace farsight {

// Weights and backend of one loaded model.
template <Backend B>
class Loaded : public LoadedModel {
 public:
  using Matrix = typename B::Matrix;

  Loaded(std::unique_ptr<B> backend, ModelConfig config) : backend_(std::move(backend)), config_(std::move(config)) {}

  Status Load(const ModelFile& file, WeightNames names) {
    const WeightSource source(file, config_, names);
    FS_ASSIGN_OR_RETURN(weights_, (WeightLoader<B>(*backend_, source, config_).Load()));
    fingerprint_ = ModelFingerprint(file);
    return OkStatus();
  }

  StatusOr<std::unique_ptr<ModelRunner>> NewRunner(const RunnerOptions& options) override {
    auto forward = std::make_unique<Forward<B>>(*backend_, weights_, config_, options);
    FS_RETURN_IF_ERROR(forward->Prepare());
    return std::unique_ptr<ModelRunner>(std::move(forward));
  }

  std::string fingerprint() const override { return fingerprint_; }
  int64_t weight_bytes() const override { return LayerBytes() + HeadBytes() + (Tied() ? 0 : EmbeddingBytes()); }
  int64_t weight_bytes_token() const override { return LayerBytes() + HeadBytes(); }

 protected:
  B& backend() { return *backend_; }
  const B& backend() const { return *backend_; }

 private:
  bool Tied() const { return weights_.output.parts.empty(); }
  int64_t EmbeddingBytes() const { return static_cast<int64_t>(weights_.embedding.bytes()); }
  int64_t HeadBytes() const { return Tied() ? EmbeddingBytes() : static_cast<int64_t>(weights_.output.bytes()); }
  int64_t LayerBytes() const {
    size_t n = 0;
    for (const auto& l : weights_.layers) {
      n += l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes() + l.branch_gate.bytes();
    }
    return static_cast<int64_t>(n);
  }

  std::unique_ptr<B> backend_;
  ModelConfig config_;
  Weights<Matrix> weights_;
  std::string fingerprint_;
};

}  // namespace farsight

#endif  // FARSIGHT_MODEL_LOADED_INL_H_
