// The activations of a loaded model, from the forward pass that serves it.
#ifndef FARSIGHT_TRAIN_MODEL_LAYER_SOURCE_H_
#define FARSIGHT_TRAIN_MODEL_LAYER_SOURCE_H_

#include <memory>

#include "model/runner.h"
#include "train/layer_source.h"

namespace farsight {

class ModelLayerSource final : public LayerSource {
 public:
  // `plan` is how the frozen model attends: as it was trained. Sequences have at most `sequence_tokens` tokens, which a
  // single step reads. `model` and `config` outlive this.
  static StatusOr<std::unique_ptr<ModelLayerSource>> Create(LoadedModel& model, const ModelConfig& config,
                                                            const AttentionPlan& plan, int64_t sequence_tokens);
  ModelLayerSource(const ModelLayerSource&) = delete;
  ModelLayerSource& operator=(const ModelLayerSource&) = delete;

  Status Run(std::span<const int32_t> tokens, const LayerFn& layer) override;

 private:
  ModelLayerSource(const ModelConfig& config, const AttentionPlan& plan) : config_(config), plan_(plan) {}
  void Observe(const LayerRows& rows);

  const ModelConfig& config_;
  const AttentionPlan plan_;
  std::unique_ptr<ModelRunner> runner_;
  int64_t max_tokens_ = 0;
  const LayerFn* layer_ = nullptr;  // during Run
};

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_MODEL_LAYER_SOURCE_H_
