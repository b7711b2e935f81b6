#include "train/model_layer_source.h"

#include <algorithm>

namespace farsight {

StatusOr<std::unique_ptr<ModelLayerSource>> ModelLayerSource::Create(LoadedModel& model, const ModelConfig& config,
                                                                     const AttentionPlan& plan,
                                                                     int64_t sequence_tokens) {
  if (sequence_tokens < 1 || sequence_tokens > config.context) {
    return InvalidArgument("sequences of " + std::to_string(sequence_tokens) +
                           " tokens do not fit the model's context of " + std::to_string(config.context));
  }
  std::unique_ptr<ModelLayerSource> source(new ModelLayerSource(config, plan));
  source->max_tokens_ = sequence_tokens;
  RunnerOptions options;
  options.context_tokens = config.context;  // decides how RoPE is stretched, as in an engine of the whole context
  options.max_rows = static_cast<int>(sequence_tokens);
  options.max_seqs = 1;
  options.max_logit_rows = 1;
  const int64_t block = plan.options.block_size;
  options.num_blocks = static_cast<int32_t>((sequence_tokens + block - 1) / block);
  options.plan = plan;
  options.observe_layer = [s = source.get()](const LayerRows& rows) { s->Observe(rows); };
  FS_ASSIGN_OR_RETURN(source->runner_, model.NewRunner(options));
  return source;
}

void ModelLayerSource::Observe(const LayerRows& rows) {
  LayerActivations a;
  a.layer = rows.layer;
  a.rows = rows.num_rows;
  a.hidden = rows.hidden;
  a.q = rows.qkv;
  a.k = rows.qkv + static_cast<int64_t>(config_.heads) * config_.head_dim;
  a.stride = rows.qkv_width;
  (*layer_)(a);
}

Status ModelLayerSource::Run(std::span<const int32_t> tokens, const LayerFn& layer) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n < 1 || n > max_tokens_) {
    return InvalidArgument("a sequence to train on has " + std::to_string(n) + " tokens; 1 to " +
                           std::to_string(max_tokens_) + " were expected");
  }
  Batch batch;
  batch.num_seqs = 1;
  batch.block_tables.assign(static_cast<size_t>(runner_->max_blocks()), -1);
  const int64_t block = plan_.options.block_size;
  for (int64_t b = 0; b * block < n; ++b) batch.block_tables[static_cast<size_t>(b)] = static_cast<int32_t>(b);
  for (int64_t p = 0; p < n; ++p) {
    const int32_t token = tokens[static_cast<size_t>(p)];
    if (token < 0 || token >= config_.vocab) {
      return InvalidArgument("token " + std::to_string(token) + " is not in the model's vocabulary of " +
                             std::to_string(config_.vocab));
    }
    batch.tokens.push_back(token);
    batch.positions.push_back(static_cast<int32_t>(p));
    batch.row_seq.push_back(0);
    batch.selects.push_back(plan_.RowSelects(p, false) ? 1 : 0);
  }
  layer_ = &layer;
  StepResult result;
  const Status status = runner_->Step(batch, &result);
  layer_ = nullptr;
  return status;
}

}  // namespace farsight
