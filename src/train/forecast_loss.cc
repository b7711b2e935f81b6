#include "train/forecast_loss.h"

#include <cmath>

#include "base/check.h"
#include "ops/sketch.h"

namespace farsight {
namespace {

constexpr int kTileRows = 16;
constexpr double kNormFloor = 1e-8;   // added to a total before dividing by it
constexpr double kEntryFloor = 1e-8;  // the least a loss entry counts

size_t At(int64_t i) { return static_cast<size_t>(i); }

// The `picks` best free blocks by (score descending, id ascending), as a flag for each block from `first` on.
struct FreeChoice {
  int64_t first = 0;
  std::vector<uint8_t> chosen;  // [free blocks]

  FreeChoice(const double* scores, int64_t begin, int64_t end, int picks) : first(begin), chosen(At(end - begin), 0) {
    std::vector<int32_t> order(chosen.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto count = std::min<size_t>(order.size(), static_cast<size_t>(picks));
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                      [&](int32_t a, int32_t b) {
                        const double x = scores[begin + a];
                        const double y = scores[begin + b];
                        return x != y ? x > y : a < b;
                      });
    for (size_t i = 0; i < count; ++i) chosen[static_cast<size_t>(order[i])] = 1;
  }
};

// One loss entry: consecutive units of the student that it adds up, and the teacher's mass.
struct Entry {
  int64_t begin = 0, end = 0;
  double teacher = 0;
  double student = 0;
  double slope = 0;  // of the loss by the student's mass
};

double Sum(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// KL divergence of the entries, `zeros` empty ones and the rest; fills the slopes, the rest's last.
double Divergence(int64_t zeros, std::vector<Entry>* entries) {
  double teacher = static_cast<double>(zeros) * kEntryFloor;
  double student = teacher;
  for (const Entry& e : *entries) {
    teacher += std::max(e.teacher, kEntryFloor);
    student += std::max(e.student, kEntryFloor);
  }
  double loss = static_cast<double>(zeros) * kEntryFloor / teacher * std::log(student / teacher);
  for (Entry& e : *entries) {
    const double share = std::max(e.teacher, kEntryFloor) / teacher;
    const double mass = std::max(e.student, kEntryFloor);
    loss += share * std::log(share / (mass / student));
    e.slope = e.student >= kEntryFloor ? 1 / student - share / mass : 0;
  }
  return loss;
}

}  // namespace

void ForecastTotals::Add(const ForecastTotals& o) {
  loss += o.loss;
  pairs += o.pairs;
  wanted += o.wanted;
  found += o.found;
  by_chance += o.by_chance;
  mass += o.mass;
  mass_found += o.mass_found;
}

ForecastLoss::ForecastLoss(const ForecastTask& task, ThreadPool* pool, const ForecastKernels& kernels)
    : task_(task), pool_(pool), kernels_(kernels) {
  FS_CHECK(Validate(task).ok(), "the task was checked by who made it");
  unit_panels_.resize(At(task.kv_heads));
  unit_columns_.resize(At(task.kv_heads));
  if (task.teacher == ForecastTeacher::kFine) teacher_panels_.resize(At(task.kv_heads));
  scratch_.resize(At(pool->num_threads()));
}

void ForecastLoss::SetPooled(int head, const float* k, int64_t k_stride) {
  const int64_t d = task_.head_dim;
  std::vector<float> units(At(units_ * d));
  for (int64_t m = 0; m < units_; ++m) {
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0;
      for (int64_t u = m * task_.stride; u < m * task_.stride + task_.kernel; ++u) sum += k[u * k_stride + c];
      units[At(m * d + c)] = static_cast<float>(sum / task_.kernel);
    }
  }
  unit_panels_[At(head)].PackRows(units.data(), d, d, units_);
  unit_columns_[At(head)].PackColumns(units.data(), d, units_, d);
  if (task_.teacher == ForecastTeacher::kModel) return;
  std::vector<float> fine(At(std::max<int64_t>(teacher_keys_, 0) * d));
  for (int64_t j = 0; j < teacher_keys_; ++j) {
    for (int64_t c = 0; c < d; ++c) fine[At(j * d + c)] = 0.5f * (k[j * k_stride + c] + k[(j + 1) * k_stride + c]);
  }
  teacher_panels_[At(head)].PackRows(fine.data(), d, d, teacher_keys_);
}

// Codes as the cache has them, but of keys that were not rounded to the cache's type.
void ForecastLoss::SetSketches(int head, const float* k, int64_t k_stride) {
  const int64_t d = task_.head_dim;
  std::vector<float> units(At(units_ * d), 0.0f);
  std::vector<double> centre(At(d), 0.0);
  std::vector<float> x(At(d));
  std::vector<int8_t> codes(At(d));
  if (length_ >= task_.block_tokens) {
    for (int64_t u = 1; u < task_.block_tokens; ++u) {
      for (int64_t c = 0; c < d; ++c) centre[At(c)] += k[u * k_stride + c];
    }
    for (double& c : centre) c /= task_.block_tokens - 1;
    for (int64_t u = 0; u < length_; ++u) {
      for (int64_t c = 0; c < d; ++c) x[At(c)] = static_cast<float>(k[u * k_stride + c] - centre[At(c)]);
      const float step = SketchToken(x.data(), task_.head_dim, task_.bits, codes.data());
      for (int64_t c = 0; c < d; ++c) units[At(u * d + c)] = step * SketchLevel(codes[At(c)], task_.bits);
    }
  }
  unit_panels_[At(head)].PackRows(units.data(), d, d, units_);
  unit_columns_[At(head)].PackColumns(units.data(), d, units_, d);
  if (task_.teacher == ForecastTeacher::kFine) teacher_panels_[At(head)].PackRows(k, k_stride, d, teacher_keys_);
}

void ForecastLoss::SetKeys(const float* k, int64_t k_stride, int64_t length) {
  length_ = length;
  units_ = NumUnits(task_, length);
  teacher_keys_ = NumTeacherKeys(task_, length);
  pool_->ParallelFor(task_.kv_heads, [&](int64_t head, int) {
    const float* keys = k + head * task_.head_dim;
    if (task_.pooled()) {
      SetPooled(static_cast<int>(head), keys, k_stride);
    } else {
      SetSketches(static_cast<int>(head), keys, k_stride);
    }
  });
}

ForecastTotals ForecastLoss::Run(std::span<const int32_t> positions, const float* queries, const float* forecast,
                                 float* gradient) {
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t heads = task_.kv_heads;
  const int64_t width = task_.forecast_width();
  const int64_t of_head = task_.queries * task_.head_dim;
  results_.assign(At(rows * heads), PairResult());
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  pool_->ParallelFor(tiles * heads, [&](int64_t index, int thread) {
    const int64_t first = index / heads * kTileRows;
    const int64_t head = index % heads;
    Tile tile;
    tile.positions = positions.subspan(At(first), At(std::min<int64_t>(kTileRows, rows - first)));
    tile.head = static_cast<int>(head);
    tile.queries = queries + first * task_.heads * task_.head_dim;
    tile.forecast = forecast + first * width + head * of_head;
    tile.gradient = gradient == nullptr ? nullptr : gradient + first * width + head * of_head;
    tile.results = results_.data() + first * heads + head;
    RunTile(tile, &scratch_[At(thread)]);
  });
  ForecastTotals totals;
  for (const PairResult& r : results_) totals.Add({r.loss, 1, r.wanted, r.found, r.by_chance, r.mass, r.mass_found});
  return totals;
}

// Adds up the group's probabilities over the teacher's keys: teacher [rows, keys the last row sees].
void ForecastLoss::TeacherOfTile(const Tile& tile, Scratch* s) const {
  const auto rows = static_cast<int64_t>(tile.positions.size());
  const int64_t d = task_.head_dim;
  const int64_t n = VisibleTeacherKeys(task_, tile.positions.back(), teacher_keys_);
  const Panels& keys = teacher_panels_.empty() ? unit_panels_[At(tile.head)] : teacher_panels_[At(tile.head)];
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  s->teacher.assign(At(rows * n), 0.0f);
  s->z.resize(At(rows * n));
  s->query.resize(At(rows * d));
  for (int g = 0; g < task_.group(); ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = tile.queries + (r * task_.heads + tile.head * task_.group() + g) * d;
      for (int64_t c = 0; c < d; ++c) s->query[At(r * d + c)] = q[c] * scale;
    }
    kernels_.product(s->query.data(), d, rows, keys, d, n, s->z.data(), n);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t seen = VisibleTeacherKeys(task_, tile.positions[At(r)], teacher_keys_);
      if (seen <= 0) continue;
      float* z = s->z.data() + r * n;
      float* out = s->teacher.data() + r * n;
      kernels_.softmax(z, seen);
      for (int64_t j = 0; j < seen; ++j) out[j] += z[j];
    }
  }
}

void ForecastLoss::RunTile(const Tile& tile, Scratch* s) const {
  const auto rows = static_cast<int64_t>(tile.positions.size());
  const int64_t d = task_.head_dim;
  const int64_t width = task_.forecast_width();
  const int64_t last = tile.positions.back();
  if (tile.gradient != nullptr) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(tile.gradient + r * width, task_.queries * d, 0.0f);
  }
  if (FreeEnd(task_, last) == FreeBegin(task_)) return;  // nothing to choose: no loss
  TeacherOfTile(tile, s);

  const int64_t n = VisibleUnits(task_, last, units_);
  const int64_t teacher_width = VisibleTeacherKeys(task_, last, teacher_keys_);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  s->student.resize(At(task_.queries * rows * n));
  for (int64_t i = 0; i < task_.queries; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < d; ++c) s->query[At(r * d + c)] = tile.forecast[r * width + i * d + c] * scale;
    }
    kernels_.product(s->query.data(), d, rows, unit_panels_[At(tile.head)], d, n, s->student.data() + i * rows * n, n);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = tile.positions[At(r)];
    const int64_t seen = VisibleTeacherKeys(task_, position, teacher_keys_);
    tile.results[r * task_.kv_heads] =
        Row(position, {s->teacher.data() + r * teacher_width, At(seen)}, s->student.data() + r * n, rows * n, n, s);
  }
  if (tile.gradient == nullptr) return;
  for (int64_t i = 0; i < task_.queries; ++i) {
    kernels_.product(s->student.data() + i * rows * n, n, rows, unit_columns_[At(tile.head)], n, d,
                     tile.gradient + i * d, width);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < task_.queries * d; ++c) tile.gradient[r * width + c] *= scale;
  }
}

ForecastLoss::PairResult ForecastLoss::Row(int64_t position, std::span<const float> keys, float* student,
                                           int64_t stride, int64_t width, Scratch* s) const {
  PairResult out;
  const int64_t begin = FreeBegin(task_);
  const int64_t end = FreeEnd(task_, position);
  const int64_t visible = VisibleUnits(task_, position, units_);
  if (begin == end) {
    for (int i = 0; i < task_.queries; ++i) std::fill_n(student + i * stride, width, 0.0f);
    return out;
  }
  // The queries' probabilities, then their mean.
  for (int i = 0; i < task_.queries; ++i) {
    float* z = student + i * stride;
    kernels_.softmax(z, visible);
    std::fill(z + visible, z + width, 0.0f);
  }
  s->mixed.assign(student, student + visible);
  for (int i = 1; i < task_.queries; ++i) {
    for (int64_t m = 0; m < visible; ++m) s->mixed[At(m)] += student[i * stride + m];
  }
  if (task_.queries > 1) {
    for (float& p : s->mixed) p /= static_cast<float>(task_.queries);
  }
  const std::vector<float>& mixed = s->mixed;
  // Teacher: mass of the units (pooled) or blocks (sketches), and the score of every free block.
  const int per_block = task_.windows_per_block();
  const int before = task_.windows_before();
  const bool fine = task_.teacher == ForecastTeacher::kFine;
  const auto window = [&](int64_t m) {  // the teacher's mass of a pooled window
    if (!fine) return m < static_cast<int64_t>(keys.size()) ? keys[At(m)] : 0.0f;
    const int64_t first = std::max<int64_t>(task_.stride * m - 1, 0);
    const auto stop = std::min<int64_t>(task_.stride * (m + 1), static_cast<int64_t>(keys.size()));
    float top = 0;
    for (int64_t j = first; j < stop; ++j) top = std::max(top, keys[At(j)]);
    return top;
  };
  s->teacher_blocks.assign(At(end), 0.0);
  s->student_blocks.assign(At(end), 0.0);
  double teacher_total = kNormFloor;
  std::vector<double> mass;  // of the windows
  if (task_.pooled()) {
    mass.resize(At(units_));
    const int64_t all = fine ? std::min(units_, (position + 1) / task_.stride + 1) : visible;
    const int64_t reach = task_.queries == 1 ? all : visible;
    for (int64_t m = 0; m < reach; ++m) teacher_total += mass[At(m)] = window(m);
  } else {
    teacher_total += Sum(keys.data(), task_.queries == 1 ? static_cast<int64_t>(keys.size()) : visible);
  }
  for (int64_t b = begin; b < end; ++b) {
    if (task_.pooled()) {
      double best = 0;
      for (int64_t m = std::max<int64_t>(per_block * b - before, 0); m < std::min(per_block * (b + 1), visible); ++m) {
        s->teacher_blocks[At(b)] = std::max(s->teacher_blocks[At(b)], mass[At(m)]);
        best = std::max<double>(best, mixed[At(m)]);
      }
      s->student_blocks[At(b)] = best;
    } else {
      s->teacher_blocks[At(b)] = Sum(keys.data() + b * task_.block_tokens, task_.block_tokens);
      s->student_blocks[At(b)] = Sum(mixed.data() + b * task_.block_tokens, task_.block_tokens);
    }
  }

  const int picks = FreePicks(task_);
  const FreeChoice wanted(s->teacher_blocks.data(), begin, end, picks);
  const FreeChoice chosen(s->student_blocks.data(), begin, end, picks);
  if (end - begin > picks) {  // else there is no choice
    out.wanted = picks;
    for (size_t i = 0; i < wanted.chosen.size(); ++i) {
      const double mass_of_block = s->teacher_blocks[static_cast<size_t>(begin) + i];
      out.found += wanted.chosen[i] & chosen.chosen[i];
      if (wanted.chosen[i] != 0) out.mass += mass_of_block;
      if (chosen.chosen[i] != 0) out.mass_found += mass_of_block;
    }
    out.by_chance = static_cast<double>(picks) * picks / static_cast<double>(end - begin);
  }

  // Entries: those of each wanted block, then the rest.
  const double student_sum = Sum(mixed.data(), visible);
  const double student_total = student_sum + kNormFloor;
  std::vector<Entry> entries;
  Entry rest;
  rest.teacher = (teacher_total - kNormFloor) / teacher_total;
  rest.student = student_sum / student_total;
  for (int64_t b = begin; b < end; ++b) {
    if (wanted.chosen[At(b - begin)] == 0) continue;
    for (int r = 0; r < task_.entries_per_block(); ++r) {
      Entry e;
      if (task_.pooled()) {
        e.begin = std::min<int64_t>(per_block * b + r, units_ - 1);
        e.end = e.begin + 1;
        e.teacher = mass[At(e.begin)] / teacher_total;
        e.student = mixed[At(e.begin)] / student_total;
      } else {
        e.begin = b * task_.block_tokens;
        e.end = e.begin + task_.block_tokens;
        e.teacher = s->teacher_blocks[At(b)] / teacher_total;
        e.student = s->student_blocks[At(b)] / student_total;
      }
      rest.teacher -= e.teacher;
      rest.student -= e.student;
      entries.push_back(e);
    }
  }
  rest.teacher = std::max(rest.teacher, 0.0);
  rest.student = std::max(rest.student, 0.0);
  entries.push_back(rest);
  const int64_t zeros =
      static_cast<int64_t>(task_.top_k) * task_.entries_per_block() + 1 - static_cast<int64_t>(entries.size());
  out.loss = Divergence(zeros, &entries);

  // Back to the logits of each query. Every unit has the rest's slope, the entries' units theirs instead; the
  // normalisation and the softmax only shift all slopes by one number.
  const double common = entries.back().slope;
  entries.pop_back();
  double along = common * student_sum;  // sum of slope * probability
  for (const Entry& e : entries) along += (e.slope - common) * e.student * student_total;
  const double shift = along / student_total;  // of the normalisation
  const double share = 1.0 / (student_total * task_.queries);
  std::vector<std::pair<int64_t, double>> changes;  // to add after all units were scaled
  for (int i = 0; i < task_.queries; ++i) {
    float* p = student + i * stride;
    changes.clear();
    double mean = (common - shift) * Sum(p, visible);
    for (const Entry& e : entries) {
      for (int64_t m = e.begin; m < e.end; ++m) {
        changes.emplace_back(m, (e.slope - common) * p[m]);
        mean += changes.back().second;
      }
    }
    const double unchanged = (common - shift - mean) * share;
    for (int64_t m = 0; m < visible; ++m) p[m] = static_cast<float>(unchanged * p[m]);
    for (const auto& [m, change] : changes) p[m] += static_cast<float>(change * share);
  }
  return out;
}

}  // namespace farsight
