// A made-up model whose queries are a linear map of the layer before: the fit must find it.
#include "train/forecast_fit.h"

#include <gtest/gtest.h>

#include "train/testing/golden.h"

namespace farsight {
namespace {

using testing::Floats;
using testing::Hashed;

constexpr int kHidden = 12, kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 8;

std::vector<float> MapOf(int layer) {
  return Floats(Hashed(kHeads * kDim * kHidden, static_cast<uint32_t>(50 + layer), 2));
}

class LinearModel final : public LayerSource {
 public:
  Status Run(std::span<const int32_t> tokens, const LayerFn& layer) override {
    const auto n = static_cast<int64_t>(tokens.size());
    std::vector<float> before;
    for (int l = 0; l < kLayers; ++l) {
      const auto hidden = Floats(Hashed(n * kHidden, static_cast<uint32_t>(tokens[0] * 8 + l + 100), 3));
      const auto& from = l == 0 ? hidden : before;
      const auto map = MapOf(l);
      std::vector<float> qk(static_cast<size_t>(n * (kHeads + kKvHeads) * kDim), 0.0f);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t o = 0; o < kHeads * kDim; ++o) {
          for (int64_t i = 0; i < kHidden; ++i) {
            qk[static_cast<size_t>(r * (kHeads + kKvHeads) * kDim + o)] +=
                map[static_cast<size_t>(o * kHidden + i)] * from[static_cast<size_t>(r * kHidden + i)];
          }
        }
      }
      layer({l, n, hidden.data(), qk.data(), qk.data() + kHeads * kDim, (kHeads + kKvHeads) * kDim});
      before = hidden;
    }
    return OkStatus();
  }
};

TEST(ForecastFit, FindsTheMapOfEachHeadOrOfTheirMean) {
  ThreadPool pool(2);
  LinearModel model;
  const std::vector<int32_t> a(200, 1), b(150, 2);
  const std::vector<std::span<const int32_t>> sequences = {a, b};
  for (const int queries : {1, kHeads / kKvHeads}) {
    ForecastFitOptions o;
    o.task.heads = kHeads;
    o.task.kv_heads = kKvHeads;
    o.task.head_dim = kDim;
    o.task.queries = queries;
    o.hidden = kHidden;
    o.layers = kLayers;
    o.rows_per_sequence = 100;
    o.ridge = 1e-7;
    const auto size = static_cast<size_t>(o.task.forecast_width() * kHidden);
    std::vector<std::vector<float>> initial(kLayers, std::vector<float>(size, 0.1f));
    const auto got = FitForecast(o, model, sequences, initial, &pool);
    ASSERT_TRUE(got.ok()) << got.status().message();
    for (int l = 0; l < kLayers; ++l) {
      const auto map = MapOf(l);
      for (size_t i = 0; i < size; ++i) {
        float want = map[i];
        if (queries == 1) {  // the mean of the group's two heads
          const size_t head = i / (kDim * kHidden), rest = i % (kDim * kHidden);
          want = 0.5f * (map[2 * head * kDim * kHidden + rest] + map[(2 * head + 1) * kDim * kHidden + rest]);
        }
        ASSERT_NEAR(got->at(static_cast<size_t>(l))[i], want, 1e-3) << l << " " << i;
      }
    }
    o.ridge = 1e9;  // nothing moves
    const auto kept = FitForecast(o, model, sequences, initial, &pool);
    ASSERT_TRUE(kept.ok());
    EXPECT_NEAR(kept->at(1)[5], 0.1, 1e-4);
  }
}

}  // namespace
}  // namespace farsight
