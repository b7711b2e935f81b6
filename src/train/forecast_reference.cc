#include "train/forecast_reference.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/sketch.h"

namespace farsight {
namespace {

using Vec = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNormFloor = 1e-8;   // added to a total before dividing by it
constexpr double kEntryFloor = 1e-8;  // the least a loss entry counts

size_t At(int64_t i) { return static_cast<size_t>(i); }

// softmax over the first n of z; the others become 0.
void Softmax(int64_t n, Vec* z) {
  double top = -kInf;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, (*z)[At(i)]);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (*z)[At(i)] = std::exp((*z)[At(i)] - top);
  for (size_t i = 0; i < z->size(); ++i) (*z)[i] = static_cast<int64_t>(i) < n ? (*z)[i] / sum : 0.0;
}

// Forced blocks first, then by (score descending, id ascending); ids ascend.
std::vector<int32_t> Pick(const ForecastTask& t, int64_t position, Vec scores) {
  const int64_t own = position / t.block_tokens;
  for (int64_t b = 0; b <= own; ++b) {
    if (b < t.init_blocks || own <= b + t.local_blocks) scores[At(b)] = kInf;
  }
  std::vector<int32_t> order(At(own + 1));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(t.top_k)));
  std::sort(order.begin(), order.end());
  return order;
}

// The best window that touches each block; -inf (or 0 for probabilities) where none does.
Vec MaxByBlock(const ForecastTask& t, int64_t blocks, int64_t visible, const Vec& units, double none) {
  Vec out(At(blocks), none);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = std::max<int64_t>(t.windows_per_block() * b - t.windows_before(), 0);
    for (int64_t j = first; j < std::min<int64_t>(t.windows_per_block() * (b + 1), visible); ++j) {
      out[At(b)] = std::max(out[At(b)], units[At(j)]);
    }
  }
  return out;
}

Vec SumByBlock(const ForecastTask& t, int64_t blocks, const Vec& tokens) {
  Vec out(At(blocks), 0.0);
  for (size_t u = 0; u < tokens.size(); ++u) {
    if (u / At(t.block_tokens) < out.size()) out[u / At(t.block_tokens)] += tokens[u];
  }
  return out;
}

Vec SketchedKeys(const ForecastTask& t, const ForecastReferenceInput& in, int head) {
  const int64_t width = static_cast<int64_t>(t.kv_heads) * t.head_dim;
  Vec out(At(in.length * t.head_dim), 0.0);
  if (in.length < t.block_tokens) return out;
  std::vector<float> x(At(t.head_dim));
  std::vector<int8_t> codes(At(t.head_dim));
  for (int64_t u = 0; u < in.length; ++u) {
    for (int d = 0; d < t.head_dim; ++d) {
      double centre = 0;
      for (int64_t v = 1; v < t.block_tokens; ++v) centre += in.k[At(v * width + head * t.head_dim + d)];
      x[At(d)] = static_cast<float>(in.k[At(u * width + head * t.head_dim + d)] - centre / (t.block_tokens - 1));
    }
    const float step = SketchToken(x.data(), t.head_dim, t.bits, codes.data());
    for (int d = 0; d < t.head_dim; ++d) {
      out[At(u * t.head_dim + d)] = static_cast<double>(step) * SketchLevel(codes[At(d)], t.bits);
    }
  }
  return out;
}

Vec TeacherKeys(const ForecastTask& t, const ForecastReferenceInput& in, int head) {
  if (t.teacher == ForecastTeacher::kModel) return ForecastKeys(t, in, head);
  const int64_t width = static_cast<int64_t>(t.kv_heads) * t.head_dim;
  const int64_t n = NumTeacherKeys(t, in.length);
  Vec out;
  for (int64_t j = 0; j < n; ++j) {
    for (int d = 0; d < t.head_dim; ++d) {
      const double here = in.k[At(j * width + head * t.head_dim + d)];
      out.push_back(t.pooled() ? (here + in.k[At((j + 1) * width + head * t.head_dim + d)]) / 2 : here);
    }
  }
  return out;
}

// Softmax probabilities of a query over its visible keys.
Vec Attend(const double* q, const Vec& keys, int64_t n, int64_t visible, int dim) {
  Vec z(At(n), 0.0);
  for (int64_t j = 0; j < visible; ++j) {
    for (int d = 0; d < dim; ++d) z[At(j)] += q[d] * keys[At(j * dim + d)] / std::sqrt(static_cast<double>(dim));
  }
  Softmax(visible, &z);
  return z;
}

// The teacher's mass: by window for pooled keys, by block for sketches.
Vec TeacherMass(const ForecastTask& t, const ForecastReferenceInput& in, int64_t position, int head) {
  const int64_t n = NumTeacherKeys(t, in.length);
  const Vec keys = TeacherKeys(t, in, head);
  Vec mass(At(n), 0.0);
  for (int g = 0; g < t.group(); ++g) {
    const double* q = in.q.data() + (position * t.heads + head * t.group() + g) * t.head_dim;
    const Vec p = Attend(q, keys, n, VisibleTeacherKeys(t, position, n), t.head_dim);
    for (int64_t j = 0; j < n; ++j) mass[At(j)] += p[At(j)];
  }
  if (!t.pooled()) return SumByBlock(t, position / t.block_tokens + 1, mass);
  if (t.teacher == ForecastTeacher::kModel) return mass;
  // Windows of two keys to the coarse grid: the largest that begins from one token before the window's first to one
  // before the next window's.
  Vec coarse(At(NumUnits(t, in.length)), 0.0);
  for (int64_t m = 0; m < static_cast<int64_t>(coarse.size()); ++m) {
    const int64_t last = std::min<int64_t>(t.stride * m + t.stride - 1, n - 1);
    for (int64_t j = std::max<int64_t>(t.stride * m - 1, 0); j <= last; ++j) {
      coarse[At(m)] = std::max(coarse[At(m)], mass[At(j)]);
    }
  }
  return coarse;
}

// What the loss sees of a distribution: the units of each chosen block outside the forced ones, zeros up to a fixed
// length, and the rest. index[e] are the units that entry e adds up.
struct Entries {
  std::vector<std::vector<int64_t>> index;
  int64_t length = 0;  // without the rest

  Vec Of(const Vec& x) const {
    Vec out;
    double kept = 0;
    for (const auto& units : index) {
      double sum = 0;
      for (const int64_t m : units) sum += x[At(m)];
      out.push_back(sum);
      kept += sum;
    }
    out.resize(At(length), 0.0);
    out.push_back(std::max(0.0, std::accumulate(x.begin(), x.end(), 0.0) - kept));
    return out;
  }
};

std::vector<int64_t> ChosenFree(const ForecastTask& t, int64_t position, const std::vector<int32_t>& ids) {
  std::vector<int64_t> out;
  for (const int32_t b : ids) {
    if (b >= FreeBegin(t) && b < FreeEnd(t, position)) out.push_back(b);
  }
  return out;
}

Vec Clamped(const Vec& x, double* total) {
  Vec out;
  for (const double v : x) out.push_back(std::max(v, kEntryFloor));
  *total = std::accumulate(out.begin(), out.end(), 0.0);
  return out;
}

// KL divergence of the two entry vectors; `slope` is its derivative by the student's raw entries.
double Divergence(const Vec& teacher, const Vec& student, Vec* slope) {
  double teacher_sum = 0;
  double student_sum = 0;
  const Vec u = Clamped(teacher, &teacher_sum);
  const Vec w = Clamped(student, &student_sum);
  double loss = 0;
  slope->assign(u.size(), 0.0);
  for (size_t e = 0; e < u.size(); ++e) {
    const double share = u[e] / teacher_sum;
    loss += share * std::log(share / (w[e] / student_sum));
    if (student[e] >= kEntryFloor) (*slope)[e] = 1 / student_sum - share / w[e];
  }
  return loss;
}

}  // namespace

std::vector<double> ForecastKeys(const ForecastTask& t, const ForecastReferenceInput& in, int kv_head) {
  if (!t.pooled()) return SketchedKeys(t, in, kv_head);
  const int64_t width = static_cast<int64_t>(t.kv_heads) * t.head_dim;
  Vec out;
  for (int64_t m = 0; m < NumUnits(t, in.length); ++m) {
    for (int d = 0; d < t.head_dim; ++d) {
      double sum = 0;
      for (int64_t u = m * t.stride; u < m * t.stride + t.kernel; ++u) {
        sum += in.k[At(u * width + kv_head * t.head_dim + d)];
      }
      out.push_back(sum / t.kernel);
    }
  }
  return out;
}

ForecastReferenceRow ForecastReference(const ForecastTask& t, const ForecastReferenceInput& in, int64_t position,
                                       int kv_head, std::span<const double> forecast) {
  ForecastReferenceRow out;
  out.gradient.assign(At(t.queries * t.head_dim), 0.0);
  const int64_t blocks = position / t.block_tokens + 1;
  const int64_t units = NumUnits(t, in.length);
  const int64_t visible = VisibleUnits(t, position, units);
  out.teacher = TeacherMass(t, in, position, kv_head);
  out.teacher_ids = Pick(t, position, t.pooled() ? MaxByBlock(t, blocks, units, out.teacher, 0.0) : out.teacher);

  const Vec keys = ForecastKeys(t, in, kv_head);
  const double scale = 1 / std::sqrt(static_cast<double>(t.head_dim));
  std::vector<Vec> students;  // of each query
  out.student.assign(At(units), 0.0);
  for (int i = 0; i < t.queries; ++i) {
    students.push_back(Attend(forecast.data() + i * t.head_dim, keys, units, visible, t.head_dim));
    for (int64_t m = 0; m < units; ++m) out.student[At(m)] += students.back()[At(m)] / t.queries;
  }
  if (t.pooled() && t.queries > 1) {
    out.scores = MaxByBlock(t, blocks, visible, out.student, 0.0);
  } else if (t.pooled()) {
    Vec raw(At(visible), 0.0);  // what selection scores by: plain dot products
    for (int64_t m = 0; m < visible; ++m) {
      for (int d = 0; d < t.head_dim; ++d) raw[At(m)] += forecast[At(d)] * keys[At(m * t.head_dim + d)];
    }
    out.scores = MaxByBlock(t, blocks, visible, raw, -kInf);
  } else {
    out.scores = SumByBlock(t, blocks, out.student);
  }
  out.forecast_ids = Pick(t, position, out.scores);

  if (t.queries > 1) {  // the local blocks take no part
    const size_t end = t.pooled() ? At(visible) : At(FreeEnd(t, position));
    if (out.teacher.size() > end)
      std::fill(out.teacher.begin() + static_cast<std::ptrdiff_t>(end), out.teacher.end(), 0.0);
  }
  const double student_total = std::accumulate(out.student.begin(), out.student.end(), 0.0) + kNormFloor;
  const double teacher_total = std::accumulate(out.teacher.begin(), out.teacher.end(), 0.0) + kNormFloor;
  Vec y = out.student;
  Vec target = out.teacher;
  for (double& v : y) v /= student_total;
  for (double& v : target) v /= teacher_total;

  Entries of_student;
  Entries of_teacher;
  of_student.length = of_teacher.length = static_cast<int64_t>(t.top_k) * t.entries_per_block();
  for (const int64_t b : ChosenFree(t, position, out.teacher_ids)) {
    if (t.pooled()) {
      for (int r = 0; r < t.windows_per_block(); ++r) {
        const int64_t m = std::min<int64_t>(t.windows_per_block() * b + r, units - 1);
        if (m < 0) continue;
        of_student.index.push_back({m});
        of_teacher.index.push_back({m});
      }
    } else {
      std::vector<int64_t> tokens(At(t.block_tokens));
      std::iota(tokens.begin(), tokens.end(), b * t.block_tokens);
      of_student.index.push_back(tokens);
      of_teacher.index.push_back({b});
    }
  }
  Vec slope;
  out.loss = Divergence(of_teacher.Of(target), of_student.Of(y), &slope);

  // Back through the entries, the normalisation and the softmax.
  const double rest = slope.back();
  Vec by_y(At(units), rest);
  for (size_t e = 0; e < of_student.index.size(); ++e) {
    for (const int64_t m : of_student.index[e]) by_y[At(m)] += slope[e] - rest;
  }
  double along = 0;
  for (int64_t m = 0; m < units; ++m) along += by_y[At(m)] * y[At(m)];
  Vec by_p(At(units), 0.0);
  for (int64_t m = 0; m < units; ++m) by_p[At(m)] = (by_y[At(m)] - along) / student_total / t.queries;
  for (int i = 0; i < t.queries; ++i) {
    const Vec& p = students[At(i)];
    double mean = 0;
    for (int64_t m = 0; m < units; ++m) mean += by_p[At(m)] * p[At(m)];
    for (int64_t m = 0; m < visible; ++m) {
      const double by_z = p[At(m)] * (by_p[At(m)] - mean) * scale;
      for (int d = 0; d < t.head_dim; ++d) out.gradient[At(i * t.head_dim + d)] += by_z * keys[At(m * t.head_dim + d)];
    }
  }
  return out;
}

}  // namespace farsight
