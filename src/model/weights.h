// The weights of one model on one backend, found by name in a model file and checked against the configuration.
#ifndef FARSIGHT_MODEL_WEIGHTS_H_
#define FARSIGHT_MODEL_WEIGHTS_H_

#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "io/model_file.h"
#include "model/config.h"
#include "model/runner.h"
#include "ops/backend.h"

namespace farsight {

// Where to find a layer's tensors and how their rows lie.
class WeightSource {
 public:
  WeightSource(const ModelFile& file, const ModelConfig& config, WeightNames names)
      : file_(file), config_(config), names_(names) {}

  enum class Kind {
    kEmbedding,
    kOutput,
    kOutputNorm,
    kAttnNorm,
    kQ,
    kK,
    kV,
    kO,
    kQNorm,
    kKNorm,
    kFfnNorm,
    kGate,
    kUp,
    kDown,
    // NSA
    kKCmp,
    kKSlc,
    kKWin,
    kVCmp,
    kVSlc,
    kVWin,
    kCompressK,
    kCompressV,
    kBranchGate,
    // NOSA
    kImportance,
    kImportanceDelta,
  };

  // A matrix [rows, cols]; q and k rows come in rotate-half order whatever the file's. `kept` owns reordered bytes.
  StatusOr<HostMatrix> Matrix(Kind kind, int layer, int64_t rows, int64_t cols,
                              std::vector<std::vector<std::byte>>* kept) const;
  // A small matrix as f32.
  StatusOr<std::vector<float>> Floats(Kind kind, int layer, int64_t rows, int64_t cols) const;
  // A vector of n values as f32.
  StatusOr<std::vector<float>> Vector(Kind kind, int layer, int64_t n) const;
  // Weights of an NSA compressor [kv heads, window, head_dim]: the softmax over the window of the file's tensor.
  StatusOr<std::vector<float>> Compressor(Kind kind, int layer, int64_t window) const;
  // The bias of a matrix, empty when the file has none.
  StatusOr<std::vector<float>> Bias(Kind kind, int layer, int64_t n) const;
  bool Has(Kind kind, int layer) const { return file_.FindTensor(Name(kind, layer, "weight")) != nullptr; }

 private:
  std::string Name(Kind kind, int layer, const char* suffix) const;
  // HF row of file row r, for interleaved q and k.
  int64_t HalfRow(int64_t r) const;
  bool Permuted(Kind kind) const { return config_.interleaved_rope && (kind == Kind::kQ || kind == Kind::kK); }
  StatusOr<std::vector<float>> ReadVector(const FileTensor& t, int64_t n, bool permuted) const;

  const ModelFile& file_;
  const ModelConfig& config_;
  WeightNames names_;
};

// One product made of matrices stacked along the output; more than one part only where the file mixes dtypes.
template <typename Matrix>
struct Linear {
  struct Part {
    Matrix matrix;
    int64_t first_row = 0;
  };
  std::vector<Part> parts;
  int64_t rows = 0;
  Buffer bias;  // [rows] f32, or empty

  size_t bytes() const {
    size_t n = 0;
    for (const auto& p : parts) n += p.matrix.bytes();
    return n;
  }
};

template <typename Matrix>
struct LayerWeights {
  Buffer attn_norm, ffn_norm;  // [hidden]
  Buffer q_norm, k_norm;       // [head_dim], Qwen3
  Linear<Matrix> qkv;          // [(Hq + 2 sets Hkv) * D, hidden]: q, keys of every set, values of every set
  Linear<Matrix> o;            // [hidden, Hq * D]
  Linear<Matrix> gate_up;      // [2 * ffn, hidden]
  Linear<Matrix> down;         // [hidden, ffn]
  // NSA
  Buffer compress_k, compress_v;  // [Hkv, window, D], or empty for the mean
  Linear<Matrix> branch_gate;     // [3 * Hq, hidden]
  // NOSA
  Buffer importance_scale, importance_weight, importance_bias;  // [Hkv], [Hkv, Hkv * D], [Hkv] or empty
};

template <typename Matrix>
struct Weights {
  Matrix embedding;       // [vocab, hidden]
  Linear<Matrix> output;  // no parts: the embedding is used
  Buffer output_norm;
  std::vector<LayerWeights<Matrix>> layers;
};

template <Backend B>
class WeightLoader {
 public:
  using Matrix = typename B::Matrix;
  using Kind = WeightSource::Kind;

  WeightLoader(B& backend, const WeightSource& source, const ModelConfig& config)
      : backend_(backend), source_(source), config_(config) {}

  StatusOr<Weights<Matrix>> Load() {
    Weights<Matrix> w;
    const ModelConfig& c = config_;
    const int64_t q_rows = static_cast<int64_t>(c.heads) * c.head_dim;
    const int64_t kv_rows = static_cast<int64_t>(c.kv_heads) * c.head_dim;
    Linear<Matrix> embedding;
    FS_ASSIGN_OR_RETURN(embedding, Stack({{Kind::kEmbedding, c.vocab}}, 0, c.hidden));
    w.embedding = std::move(embedding.parts[0].matrix);
    if (source_.Has(Kind::kOutput, 0)) {
      FS_ASSIGN_OR_RETURN(w.output, Stack({{Kind::kOutput, c.vocab}}, 0, c.hidden));
    }
    FS_ASSIGN_OR_RETURN(w.output_norm, Vector(Kind::kOutputNorm, 0, c.hidden));
    for (int l = 0; l < c.layers; ++l) {
      LayerWeights<Matrix> layer;
      FS_ASSIGN_OR_RETURN(layer.attn_norm, Vector(Kind::kAttnNorm, l, c.hidden));
      FS_ASSIGN_OR_RETURN(layer.ffn_norm, Vector(Kind::kFfnNorm, l, c.hidden));
      if (c.qk_norm) {
        FS_ASSIGN_OR_RETURN(layer.q_norm, Vector(Kind::kQNorm, l, c.head_dim));
        FS_ASSIGN_OR_RETURN(layer.k_norm, Vector(Kind::kKNorm, l, c.head_dim));
      }
      if (c.nsa.kv_sets == 3) {
        FS_ASSIGN_OR_RETURN(layer.qkv, Stack({{Kind::kQ, q_rows},
                                              {Kind::kKCmp, kv_rows},
                                              {Kind::kKSlc, kv_rows},
                                              {Kind::kKWin, kv_rows},
                                              {Kind::kVCmp, kv_rows},
                                              {Kind::kVSlc, kv_rows},
                                              {Kind::kVWin, kv_rows}},
                                             l, c.hidden));
      } else {
        FS_ASSIGN_OR_RETURN(layer.qkv,
                            Stack({{Kind::kQ, q_rows}, {Kind::kK, kv_rows}, {Kind::kV, kv_rows}}, l, c.hidden));
      }
      if (c.nsa.kv_sets > 0) FS_RETURN_IF_ERROR(LoadNsa(l, &layer));
      if (c.importances) FS_RETURN_IF_ERROR(LoadImportance(l, kv_rows, &layer));
      FS_ASSIGN_OR_RETURN(layer.o, Stack({{Kind::kO, c.hidden}}, l, q_rows));
      FS_ASSIGN_OR_RETURN(layer.gate_up, Stack({{Kind::kGate, c.ffn}, {Kind::kUp, c.ffn}}, l, c.hidden));
      FS_ASSIGN_OR_RETURN(layer.down, Stack({{Kind::kDown, c.hidden}}, l, c.ffn));
      w.layers.push_back(std::move(layer));
    }
    return w;
  }

 private:
  Status LoadNsa(int l, LayerWeights<Matrix>* layer) {
    const ModelConfig& c = config_;
    if (c.nsa.learned_compressor) {
      FS_ASSIGN_OR_RETURN(const auto k, source_.Compressor(Kind::kCompressK, l, c.attention.kernel_size));
      FS_ASSIGN_OR_RETURN(layer->compress_k, Upload(k));
      FS_ASSIGN_OR_RETURN(const auto v, source_.Compressor(Kind::kCompressV, l, c.attention.kernel_size));
      FS_ASSIGN_OR_RETURN(layer->compress_v, Upload(v));
    }
    FS_ASSIGN_OR_RETURN(layer->branch_gate, Stack({{Kind::kBranchGate, int64_t{3} * c.heads}}, l, c.hidden));
    if (c.nsa.gate_bias && layer->branch_gate.bias.empty()) {
      return DataLoss("layer " + std::to_string(l) + " lacks the bias of its branch gates");
    }
    return OkStatus();
  }

  Status LoadImportance(int l, int64_t kv_rows, LayerWeights<Matrix>* layer) {
    const int64_t heads = config_.kv_heads;
    FS_ASSIGN_OR_RETURN(layer->importance_scale, Vector(Kind::kImportance, l, heads));
    FS_ASSIGN_OR_RETURN(const auto weight, source_.Floats(Kind::kImportanceDelta, l, heads, kv_rows));
    FS_ASSIGN_OR_RETURN(layer->importance_weight, Upload(weight));
    FS_ASSIGN_OR_RETURN(const auto bias, source_.Bias(Kind::kImportanceDelta, l, heads));
    if (bias.empty()) return OkStatus();
    FS_ASSIGN_OR_RETURN(layer->importance_bias, Upload(bias));
    return OkStatus();
  }

  StatusOr<Buffer> Upload(const std::vector<float>& values) {
    FS_ASSIGN_OR_RETURN(Buffer b, backend_.Allocate(values.size() * sizeof(float)));
    backend_.CopyIn(b, 0, std::as_bytes(std::span(values)));
    return b;
  }

  StatusOr<Buffer> Vector(Kind kind, int layer, int64_t n) {
    FS_ASSIGN_OR_RETURN(const auto values, source_.Vector(kind, layer, n));
    return Upload(values);
  }

  // Stacks matrices, merging neighbours of one dtype into one product.
  StatusOr<Linear<Matrix>> Stack(std::vector<std::pair<Kind, int64_t>> wanted, int layer, int64_t cols) {
    Linear<Matrix> out;
    std::vector<std::vector<std::byte>> kept;
    std::vector<HostMatrix> host;
    std::vector<float> bias;
    bool has_bias = false;
    for (const auto& [kind, rows] : wanted) {
      FS_ASSIGN_OR_RETURN(const HostMatrix m, source_.Matrix(kind, layer, rows, cols, &kept));
      host.push_back(m);
      FS_ASSIGN_OR_RETURN(auto b, source_.Bias(kind, layer, rows));
      has_bias = has_bias || !b.empty();
      b.resize(static_cast<size_t>(rows), 0.0f);
      bias.insert(bias.end(), b.begin(), b.end());
    }
    for (size_t i = 0; i < host.size();) {
      size_t end = i + 1;
      while (end < host.size() && host[end].dtype == host[i].dtype) ++end;
      FS_ASSIGN_OR_RETURN(Matrix m, backend_.PrepareMatrix(std::span(host).subspan(i, end - i)));
      const int64_t rows = m.rows();
      out.parts.push_back({std::move(m), out.rows});
      out.rows += rows;
      i = end;
    }
    if (has_bias) {
      FS_ASSIGN_OR_RETURN(out.bias, Upload(bias));
    }
    return out;
  }

  B& backend_;
  const WeightSource& source_;
  const ModelConfig& config_;
};

}  // namespace farsight

#endif  // FARSIGHT_MODEL_WEIGHTS_H_
