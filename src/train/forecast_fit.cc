#include "train/forecast_fit.h"

#include <cmath>

#include "train/forecast_kernels.h"
#include "train/sequences.h"

namespace farsight {
namespace {

constexpr uint64_t kFitRows = 0x666974;  // purpose of random draws
constexpr int64_t kRowsPerTask = 16;

size_t At(int64_t i) { return static_cast<size_t>(i); }

// The sums of one target layer: of input outer input [hidden, hidden], and of query outer input [width, hidden].
struct Moments {
  std::vector<double> gram, cross;
};

// Adds a^T . b, a [rows, width] and b [rows, hidden], to `sum` [width, hidden].
void AddOuter(const std::vector<float>& a, const Panels& b, int64_t rows, int64_t width, int64_t hidden,
              ThreadPool* pool, std::vector<double>* sum) {
  std::vector<float> turned(At(width * rows));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) turned[At(c * rows + r)] = a[At(r * width + c)];
  }
  std::vector<float> product(At(width * hidden));
  pool->ParallelFor((width + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t c = task * kRowsPerTask;
    BestForecastKernels().product(turned.data() + c * rows, rows, std::min(kRowsPerTask, width - c), b, rows, hidden,
                                  product.data() + c * hidden, hidden);
  });
  for (size_t i = 0; i < product.size(); ++i) (*sum)[i] += product[i];
}

// Lower Cholesky factor in place; false where the matrix is not positive definite.
bool Factor(int64_t n, std::vector<double>* a) {
  double* m = a->data();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = m[i * n + j];
      for (int64_t k = 0; k < j; ++k) sum -= m[i * n + k] * m[j * n + k];
      if (i == j) {
        if (!(sum > 0)) return false;
        m[i * n + i] = std::sqrt(sum);
      } else {
        m[i * n + j] = sum / m[j * n + j];
      }
    }
  }
  return true;
}

// x = (L L^T)^-1 x
void Solve(int64_t n, const std::vector<double>& factor, double* x) {
  const double* m = factor.data();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < i; ++k) x[i] -= m[i * n + k] * x[k];
    x[i] /= m[i * n + i];
  }
  for (int64_t i = n; i-- > 0;) {
    x[i] /= m[i * n + i];
    for (int64_t k = 0; k < i; ++k) x[k] -= m[i * n + k] * x[i];
  }
}

// Moves a projection to where (residual^2 + ridge * moved^2) is least.
Status Move(const ForecastFitOptions& o, Moments* m, std::vector<float>* projection) {
  const int64_t n = o.hidden;
  const int64_t width = o.task.forecast_width();
  for (int64_t c = 0; c < width; ++c) {  // what the start leaves unexplained
    const float* w = projection->data() + c * n;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += w[k] * m->gram[At(k * n + i)];
      m->cross[At(c * n + i)] -= sum;
    }
  }
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += m->gram[At(i * n + i)] / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) m->gram[At(i * n + i)] += o.ridge * mean;
  if (!Factor(n, &m->gram)) return InvalidArgument("the text shows too little of the model to fit a Forecast to");
  for (int64_t c = 0; c < width; ++c) {
    Solve(n, m->gram, m->cross.data() + c * n);
    for (int64_t i = 0; i < n; ++i) (*projection)[At(c * n + i)] += static_cast<float>(m->cross[At(c * n + i)]);
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<std::vector<float>>> FitForecast(const ForecastFitOptions& o, LayerSource& source,
                                                      std::span<const std::span<const int32_t>> sequences,
                                                      std::vector<std::vector<float>> initial, ThreadPool* pool) {
  const int64_t hidden = o.hidden;
  const int64_t width = o.task.forecast_width();
  const int64_t d = o.task.head_dim;
  const int64_t shared = o.task.group() / o.task.queries;  // query heads that one Forecast stands for
  std::vector<Moments> moments(At(o.layers));
  for (Moments& m : moments) {
    m.gram.assign(At(hidden * hidden), 0);
    m.cross.assign(At(width * hidden), 0);
  }
  std::vector<float> input, next, wanted;
  Panels panels;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto positions =
        DrawRows(0, static_cast<int64_t>(sequences[s].size()), o.rows_per_sequence, MixSeed(o.seed, kFitRows, s));
    const auto rows = static_cast<int64_t>(positions.size());
    FS_RETURN_IF_ERROR(source.Run(sequences[s], [&](const LayerActivations& a) {
      next.resize(At(rows * hidden));
      wanted.assign(At(rows * width), 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t p = positions[At(r)];
        std::copy_n(a.hidden + p * hidden, hidden, next.data() + r * hidden);
        for (int64_t head = 0; head < o.task.heads; ++head) {
          float* to = wanted.data() + r * width + head / shared * d;
          const float* q = a.q + p * a.stride + head * d;
          for (int64_t c = 0; c < d; ++c) to[c] += q[c] / static_cast<float>(shared);
        }
      }
      if (a.layer == 0) input = next;  // layer 0 forecasts for itself
      panels.PackColumns(input.data(), hidden, rows, hidden);
      Moments& m = moments[At(a.layer)];
      AddOuter(input, panels, rows, hidden, hidden, pool, &m.gram);
      AddOuter(wanted, panels, rows, width, hidden, pool, &m.cross);
      std::swap(input, next);
    }));
  }
  std::vector<Status> moved(moments.size());
  pool->ParallelFor(o.layers, [&](int64_t l, int) { moved[At(l)] = Move(o, &moments[At(l)], &initial[At(l)]); });
  for (const Status& status : moved) FS_RETURN_IF_ERROR(status);
  return initial;
}

}  // namespace farsight
