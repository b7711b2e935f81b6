#include "eval/likelihood.h"

#include <algorithm>
#include <cmath>

namespace farsight::eval {
namespace {

std::vector<TextScore::Bucket> MakeBuckets(int64_t context) {
  std::vector<TextScore::Bucket> buckets;
  int64_t low = 0;
  for (int64_t high : {int64_t{256}, int64_t{1024}, int64_t{4096}}) {
    if (low >= context) return buckets;
    buckets.push_back({low, std::min(high, context), 0, 0, 0});
    low = high;
  }
  for (int64_t high = 8192; low < context; high *= 2) {
    buckets.push_back({low, std::min(high, context), 0, 0, 0});
    low = high;
  }
  return buckets;
}

std::vector<size_t> WindowStarts(size_t size, const TextSpec& spec) {
  const auto context = static_cast<size_t>(spec.context);
  std::vector<size_t> starts;
  if (size <= context || !spec.spread) {
    for (size_t s = 0; s + 2 <= size; s += context) starts.push_back(s);
    return starts;
  }
  const auto scored = static_cast<size_t>(std::max<int64_t>(1, spec.context - spec.prefix));
  const size_t fit = size / context;
  const size_t count = std::clamp((static_cast<size_t>(spec.tokens) + scored - 1) / scored, size_t{1}, fit);
  for (size_t i = 0; i < count; ++i) {
    starts.push_back(count == 1 ? 0 : i * ((size - context) / (count - 1)));
  }
  return starts;
}

// Reads the prefix as a prompt is read, so that scoring rows after it takes it from the cache, under every policy that
// reads alike.
Status ReadPrefix(Engine& engine, std::span<const int32_t> text, int64_t prefix) {
  if (prefix < 1) return OkStatus();
  Request r;
  r.prompt.assign(text.begin(), text.begin() + prefix);
  r.max_new_tokens = 0;
  return engine.Generate(std::move(r)).status();
}

// Adds the window's tokens after the prefix; false when hooks.stop ended it.
StatusOr<bool> ScoreWindow(const Model& model, Engine& engine, std::span<const int32_t> window, const TextSpec& spec,
                           const Hooks& hooks, TextScore* score) {
  const auto stopped = [&hooks] { return hooks.stop && hooks.stop(); };
  if (spec.prefix + 1 >= static_cast<int64_t>(window.size())) return true;
  FS_RETURN_IF_ERROR(ReadPrefix(engine, window, spec.prefix));
  Request r;
  r.prompt.assign(window.begin(), window.end());
  r.max_new_tokens = 0;
  if (spec.prefix > 0) r.decode_from = spec.prefix;
  r.on_logits = [&](int64_t position, std::span<const float> logits) {
    if (position + 1 >= static_cast<int64_t>(window.size())) return;
    const int32_t next = window[static_cast<size_t>(position) + 1];
    const double nats = LogSum(logits) - logits[static_cast<size_t>(next)];
    score->nll.Add(nats);
    for (auto& bucket : score->buckets) {
      if (position < bucket.low || position >= bucket.high) continue;
      bucket.nats += nats;
      bucket.bytes += static_cast<int64_t>(model.TokenText(next).size());
      ++bucket.tokens;
    }
  };
  bool done = false;
  Status status;
  FS_ASSIGN_OR_RETURN(const Engine::Id id, engine.Submit(std::move(r), [&](Completion c) {
    done = true;
    status = c.status;
  }));
  while (!done) {
    if (stopped()) engine.Cancel(id);
    FS_RETURN_IF_ERROR(engine.Step());
  }
  FS_RETURN_IF_ERROR(status);
  return !stopped();
}

}  // namespace

double BitsPerByte(double nats, int64_t bytes) {
  return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : 0;
}

StatusOr<std::vector<TextScore>> ScoreText(const Model& model, PolicyEngines& engines, std::span<const int32_t> text,
                                           const TextSpec& spec, const Hooks& hooks) {
  TextScore empty;
  empty.buckets = MakeBuckets(spec.context);
  std::vector<TextScore> scores(engines.size(), empty);
  for (const size_t start : WindowStarts(text.size(), spec)) {
    if (scores[0].nll.n() >= spec.tokens) break;
    const auto window = text.subspan(start, std::min(text.size() - start, static_cast<size_t>(spec.context)));
    std::vector<TextScore> sums = scores;
    for (size_t v = 0; v < engines.size(); ++v) {
      FS_ASSIGN_OR_RETURN(Engine* const engine, engines.Use(v));
      FS_ASSIGN_OR_RETURN(const bool whole, ScoreWindow(model, *engine, window, spec, hooks, &sums[v]));
      if (!whole) return scores[0].nll.n() > 0 ? scores : std::vector<TextScore>();
      const auto part = static_cast<int64_t>(v + 1), of = static_cast<int64_t>(engines.size());
      const int64_t before = scores[0].nll.n();
      if (hooks.progress) hooks.progress(before + (sums[0].nll.n() - before) * part / of, spec.tokens);
    }
    scores = std::move(sums);
  }
  if (scores[0].nll.n() == 0) {
    return InvalidArgument("the text is too short to score: more than " + std::to_string(spec.prefix + 1) +
                           " tokens were expected, " + std::to_string(text.size()) + " came");
  }
  return scores;
}

StatusOr<std::vector<float>> TailLogits(Engine& engine, std::span<const int32_t> text, int64_t prefix) {
  FS_RETURN_IF_ERROR(ReadPrefix(engine, text, prefix));
  std::vector<float> out;
  Request r;
  r.prompt.assign(text.begin(), text.end());
  r.max_new_tokens = 0;
  r.decode_from = prefix;
  r.on_logits = [&](int64_t, std::span<const float> logits) { out.insert(out.end(), logits.begin(), logits.end()); };
  FS_RETURN_IF_ERROR(engine.Generate(std::move(r)).status());
  return out;
}

Comparison Compare(std::span<const float> reference, std::span<const float> other, int64_t vocab,
                   std::span<const int32_t> next) {
  const auto width = static_cast<size_t>(vocab);
  const size_t rows = std::min(reference.size(), other.size()) / width;
  std::vector<double> each;
  double sum = 0;
  int64_t same = 0;
  Mean nll, nll_reference;
  const auto top = [](std::span<const float> v) { return std::max_element(v.begin(), v.end()) - v.begin(); };
  for (size_t i = 0; i < rows; ++i) {
    const auto a = reference.subspan(i * width, width);
    const auto b = other.subspan(i * width, width);
    each.push_back(Divergence(a, b));
    sum += each.back();
    same += top(a) == top(b) ? 1 : 0;
    if (i >= next.size()) continue;
    const auto token = static_cast<size_t>(next[i]);
    nll_reference.Add(LogSum(a) - a[token]);
    nll.Add(LogSum(b) - b[token]);
  }
  if (rows == 0) return {};
  std::sort(each.begin(), each.end());
  Comparison c;
  c.tokens = static_cast<int64_t>(rows);
  c.kl_mean = sum / static_cast<double>(rows);
  c.kl_p99 = each[static_cast<size_t>(0.99 * static_cast<double>(rows - 1))];
  c.top1 = static_cast<double>(same) / static_cast<double>(rows);
  c.nll = nll.mean();
  c.nll_reference = nll_reference.mean();
  return c;
}

}  // namespace farsight::eval
