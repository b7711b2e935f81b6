#include "model/weights.h"

#include <cmath>
#include <cstring>

#include "ops/dequantise.h"

namespace farsight {
namespace {

struct NamePair {
  const char* gguf;
  const char* hf;  // "" where no such checkpoint exists
  bool per_layer;
};

NamePair NamesOf(WeightSource::Kind kind) {
  using K = WeightSource::Kind;
  switch (kind) {
    case K::kEmbedding:
      return {"token_embd", "model.embed_tokens", false};
    case K::kOutput:
      return {"output", "lm_head", false};
    case K::kOutputNorm:
      return {"output_norm", "model.norm", false};
    case K::kAttnNorm:
      return {"attn_norm", "input_layernorm", true};
    case K::kQ:
      return {"attn_q", "self_attn.q_proj", true};
    case K::kK:
      return {"attn_k", "self_attn.k_proj", true};
    case K::kV:
      return {"attn_v", "self_attn.v_proj", true};
    case K::kO:
      return {"attn_output", "self_attn.o_proj", true};
    case K::kQNorm:
      return {"attn_q_norm", "self_attn.q_norm", true};
    case K::kKNorm:
      return {"attn_k_norm", "self_attn.k_norm", true};
    case K::kFfnNorm:
      return {"ffn_norm", "post_attention_layernorm", true};
    case K::kGate:
      return {"ffn_gate", "mlp.gate_proj", true};
    case K::kUp:
      return {"ffn_up", "mlp.up_proj", true};
    case K::kDown:
      return {"ffn_down", "mlp.down_proj", true};
    case K::kKCmp:
      return {"attn_k_cmp", "", true};
    case K::kKSlc:
      return {"attn_k_slc", "", true};
    case K::kKWin:
      return {"attn_k_win", "", true};
    case K::kVCmp:
      return {"attn_v_cmp", "", true};
    case K::kVSlc:
      return {"attn_v_slc", "", true};
    case K::kVWin:
      return {"attn_v_win", "", true};
    case K::kCompressK:
      return {"attn_compress_k", "", true};
    case K::kCompressV:
      return {"attn_compress_v", "", true};
    case K::kBranchGate:
      return {"attn_gate", "", true};
    case K::kImportance:
      return {"attn_importance", "self_attn.A", true};
    case K::kImportanceDelta:
      return {"attn_importance_delta", "self_attn.delta", true};
  }
  return {"?", "?", false};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

}  // namespace

std::string WeightSource::Name(Kind kind, int layer, const char* suffix) const {
  const NamePair n = NamesOf(kind);
  const bool gguf = names_ == WeightNames::kGguf;
  std::string name;
  if (n.per_layer) name = (gguf ? "blk." : "model.layers.") + std::to_string(layer) + ".";
  if (!gguf && kind == Kind::kImportance) return name + n.hf;  // a parameter, not a module with a weight
  return name + (gguf ? n.gguf : n.hf) + "." + suffix;
}

int64_t WeightSource::HalfRow(int64_t r) const {
  const int64_t d = config_.head_dim;
  const int64_t i = r % d;
  return r - i + (i % 2) * (d / 2) + i / 2;
}

StatusOr<HostMatrix> WeightSource::Matrix(Kind kind, int layer, int64_t rows, int64_t cols,
                                          std::vector<std::vector<std::byte>>* kept) const {
  const std::string name = Name(kind, layer, "weight");
  const FileTensor* t = file_.FindTensor(name);
  if (t == nullptr) return DataLoss("'" + file_.path() + "' lacks the tensor '" + name + "'");
  if (t->shape.size() != 2 || t->shape[0] != rows || t->shape[1] != cols) {
    return DataLoss("tensor '" + name + "' has the shape " + ShapeText(t->shape) +
                    ", but the configuration asks for [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  HostMatrix m{t->dtype, rows, cols, t->data};
  if (Permuted(kind)) {
    const size_t row_bytes = BytesOf(t->dtype, static_cast<size_t>(cols));
    std::vector<std::byte> moved(t->data.size());
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(moved.data() + static_cast<size_t>(HalfRow(r)) * row_bytes,
                  t->data.data() + static_cast<size_t>(r) * row_bytes, row_bytes);
    }
    kept->push_back(std::move(moved));
    m.data = kept->back();
  }
  return m;
}

StatusOr<std::vector<float>> WeightSource::Floats(Kind kind, int layer, int64_t rows, int64_t cols) const {
  std::vector<std::vector<std::byte>> kept;
  FS_ASSIGN_OR_RETURN(const HostMatrix m, Matrix(kind, layer, rows, cols, &kept));
  std::vector<float> values(static_cast<size_t>(rows * cols));
  if (cols % InfoOf(m.dtype).block_elems != 0) {
    return DataLoss("tensor '" + Name(kind, layer, "weight") + "' has broken rows");
  }
  DequantiseRow(m.dtype, m.data.data(), rows * cols, values.data());
  for (const float v : values) {
    if (!std::isfinite(v)) {
      return DataLoss("tensor '" + Name(kind, layer, "weight") + "' holds a value that is not finite");
    }
  }
  return values;
}

StatusOr<std::vector<float>> WeightSource::ReadVector(const FileTensor& t, int64_t n, bool permuted) const {
  if (t.num_elements() != n || t.shape.size() != 1) {
    return DataLoss("tensor '" + t.name + "' has the shape " + ShapeText(t.shape) +
                    ", but the configuration asks for [" + std::to_string(n) + "]");
  }
  std::vector<float> values(static_cast<size_t>(n));
  DequantiseRow(t.dtype, t.data.data(), n, values.data());
  for (float v : values) {
    if (!std::isfinite(v)) return DataLoss("tensor '" + t.name + "' holds a value that is not finite");
  }
  if (!permuted) return values;
  std::vector<float> moved(values.size());
  for (int64_t r = 0; r < n; ++r) moved[static_cast<size_t>(HalfRow(r))] = values[static_cast<size_t>(r)];
  return moved;
}

StatusOr<std::vector<float>> WeightSource::Vector(Kind kind, int layer, int64_t n) const {
  const std::string name = Name(kind, layer, "weight");
  const FileTensor* t = file_.FindTensor(name);
  if (t == nullptr) return DataLoss("'" + file_.path() + "' lacks the tensor '" + name + "'");
  return ReadVector(*t, n, false);
}

StatusOr<std::vector<float>> WeightSource::Compressor(Kind kind, int layer, int64_t window) const {
  const std::string name = Name(kind, layer, "weight");
  const FileTensor* t = file_.FindTensor(name);
  if (t == nullptr) return DataLoss("'" + file_.path() + "' lacks the tensor '" + name + "'");
  const int64_t heads = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  if (t->shape != std::vector<int64_t>{heads, window, dim} || t->dtype != DType::kF32) {
    return DataLoss("tensor '" + name + "' has the shape " + ShapeText(t->shape) + ", but F32 [" +
                    std::to_string(heads) + ", " + std::to_string(window) + ", " + std::to_string(dim) +
                    "] is expected");
  }
  std::vector<float> w(static_cast<size_t>(t->num_elements()));
  DequantiseRow(t->dtype, t->data.data(), t->num_elements(), w.data());
  for (float v : w) {
    if (!std::isfinite(v)) return DataLoss("tensor '" + name + "' holds a value that is not finite");
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < dim; ++d) {
      const auto at = [&](int64_t r) -> float& { return w[static_cast<size_t>((h * window + r) * dim + d)]; };
      double top = at(0);
      for (int64_t r = 1; r < window; ++r) top = std::max<double>(top, at(r));
      double sum = 0;
      for (int64_t r = 0; r < window; ++r) sum += std::exp(at(r) - top);
      for (int64_t r = 0; r < window; ++r) at(r) = static_cast<float>(std::exp(at(r) - top) / sum);
    }
  }
  return w;
}

StatusOr<std::vector<float>> WeightSource::Bias(Kind kind, int layer, int64_t n) const {
  const FileTensor* t = file_.FindTensor(Name(kind, layer, "bias"));
  if (t == nullptr) return std::vector<float>();
  return ReadVector(*t, n, Permuted(kind));
}

}  // namespace farsight
