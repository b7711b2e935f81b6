#include "train/forecast_init.h"

#include <algorithm>
#include <cmath>

#include "model/weights.h"
#include "ops/dequantise.h"
#include "train/sequences.h"

namespace farsight {
namespace {

constexpr uint64_t kInitial = 0x696e6974;  // purpose of random draws
constexpr float kMaxRatio = 10;            // of two norms' weights; a tiny weight below would blow a column up

}  // namespace

std::vector<std::vector<float>> RandomForecast(const ModelConfig& c, int queries, uint64_t seed) {
  const auto size = static_cast<size_t>(c.kv_heads) * static_cast<size_t>(queries) * static_cast<size_t>(c.head_dim) *
                    static_cast<size_t>(c.hidden);
  const double bound = 1 / std::sqrt(static_cast<double>(c.hidden));
  std::vector<std::vector<float>> out;
  for (int l = 0; l < c.layers; ++l) {
    SeededRandom random(MixSeed(seed, kInitial, static_cast<uint64_t>(l)));
    std::vector<float> w(size);
    for (float& v : w) v = static_cast<float>(bound * (2 * random.Uniform() - 1));
    out.push_back(std::move(w));
  }
  return out;
}

StatusOr<std::vector<std::vector<float>>> ForecastFromQueries(const ModelFile& file, const ModelConfig& c, int queries,
                                                              WeightNames names) {
  using Kind = WeightSource::Kind;
  const WeightSource source(file, c, names);
  const auto hidden = static_cast<size_t>(c.hidden);
  const auto dim = static_cast<size_t>(c.head_dim);
  const auto heads = static_cast<size_t>(c.kv_heads * queries);
  const size_t group = static_cast<size_t>(c.heads) / heads;  // query heads that a Forecast stands for
  std::vector<std::vector<float>> out;
  std::vector<float> norm_below, row(hidden);
  for (int l = 0; l < c.layers; ++l) {
    std::vector<std::vector<std::byte>> kept;
    FS_ASSIGN_OR_RETURN(const HostMatrix q,
                        source.Matrix(Kind::kQ, l, static_cast<int64_t>(c.heads) * c.head_dim, c.hidden, &kept));
    FS_ASSIGN_OR_RETURN(const std::vector<float> norm, source.Vector(Kind::kAttnNorm, l, c.hidden));
    if (l == 0) norm_below = norm;  // layer 0 forecasts for itself
    const size_t row_bytes = BytesOf(q.dtype, hidden);
    std::vector<float> w(heads * dim * hidden, 0.0f);
    for (size_t r = 0; r < static_cast<size_t>(q.rows); ++r) {
      DequantiseRow(q.dtype, q.data.data() + r * row_bytes, c.hidden, row.data());
      float* to = w.data() + (r / dim / group * dim + r % dim) * hidden;
      for (size_t i = 0; i < hidden; ++i) to[i] += row[i] / static_cast<float>(group);
    }
    for (size_t i = 0; i < hidden; ++i) {
      const float ratio = norm_below[i] == 0 ? 0 : std::clamp(norm[i] / norm_below[i], -kMaxRatio, kMaxRatio);
      for (size_t r = 0; r < w.size() / hidden; ++r) w[r * hidden + i] *= ratio;
    }
    out.push_back(std::move(w));
    norm_below = norm;
  }
  return out;
}

}  // namespace farsight
