// What the approximate ways to verify drafts cost in quality: lists that a layer inherits and lists that rows share,
// against exact rows on the same text. A draft has 16 rows. One JSON object a line and mode; modes are named as in a
// profile.
//   bench_precision MODEL TEXT needles LENGTH COUNT SEED   right answers to needles at spread depths
//   bench_precision MODEL TEXT text LENGTH COUNT SEED      COUNT tokens after LENGTH: bits, flips, KL, errors of lists
//   bench_precision MODEL TEXT drift LENGTH COUNT SEED     after COUNT tokens written approximately, 512 exact ones
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/draft_bench.h"
#include "engine/error_meter.h"
#include "engine/model_impl.h"
#include "eval/haystack.h"
#include "eval/prompts.h"
#include "eval/tasks.h"

namespace farsight {
namespace {

constexpr int kRows = 16;
constexpr int kChunk = 512;
constexpr int kAfterDrift = 512;  // tokens

VerifyMode Reuse(std::vector<uint8_t> refresh) {
  VerifyMode mode;
  mode.group = kMaxGroup;
  mode.refresh = std::move(refresh);
  return mode;
}

// One layer that inherits, each in turn; layers of the first two thirds, of which every second, third or none but the
// first chooses; every second of all; rows that share; both.
std::vector<VerifyMode> Modes(int layers) {
  std::vector<VerifyMode> modes;
  const auto every = [&](int period, int end) {
    std::vector<uint8_t> refresh(static_cast<size_t>(layers), 1);
    for (int l = 1; l < end; ++l) refresh[static_cast<size_t>(l)] = l % period == 0 ? 1 : 0;
    return refresh;
  };
  const int early = layers * 2 / 3 + 1;
  for (int l = 1; l < layers; ++l) {
    std::vector<uint8_t> refresh(static_cast<size_t>(layers), 1);
    refresh[static_cast<size_t>(l)] = 0;
    modes.push_back(Reuse(std::move(refresh)));
  }
  for (const int period : {2, 3, layers}) modes.push_back(Reuse(every(period, early)));
  modes.push_back(Reuse(every(2, layers)));
  for (const int group : {2, 4, 8}) {
    for (const bool reuse : {false, true}) {
      VerifyMode mode;
      if (reuse) mode = Reuse(every(2, early));
      mode.group = group;
      mode.shared_list = true;
      modes.push_back(std::move(mode));
    }
  }
  return modes;
}

int Best(std::span<const float> row) {
  return static_cast<int>(std::max_element(row.begin(), row.end()) - row.begin());
}

// -log p of every token, in nats.
double Surprise(std::span<const float> row, int32_t token) {
  const float top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x - top));
  return std::log(sum) - static_cast<double>(row[static_cast<size_t>(token)] - top);
}

double Divergence(std::span<const float> p, std::span<const float> q) {
  const double np = Surprise(p, 0) + static_cast<double>(p[0]);
  const double nq = Surprise(q, 0) + static_cast<double>(q[0]);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double lp = static_cast<double>(p[i]) - np;
    kl += std::exp(lp) * (lp - static_cast<double>(q[i]) + nq);
  }
  return kl;
}

class Precision {
 public:
  Precision(std::shared_ptr<Model> model, std::string text) : model_(std::move(model)), text_(std::move(text)) {}

  Status Run(const std::string& what, int64_t length, int count, uint64_t seed) {
    const ModelConfig& config = model_->impl().config;
    RunnerOptions r;
    FS_ASSIGN_OR_RETURN(r.plan, MakeAttentionPlan({}, config.attention, config.layers));
    const int block = r.plan.options.block_size;
    r.context_tokens = length + 64 + (what == "needles" ? 0 : count + kAfterDrift);
    r.max_rows = kChunk;
    r.max_seqs = 1;
    r.max_logit_rows = kRows;
    r.scores = true;
    r.num_blocks = static_cast<int32_t>((r.context_tokens + block - 1) / block);
    plan_ = r.plan;
    FS_ASSIGN_OR_RETURN(const auto runner, model_->impl().loaded->NewRunner(r));
    BlockPool pool(r.num_blocks);
    DraftBench bench(runner.get(), &pool, plan_);
    bench_ = &bench;
    name_ = what + " length:" + std::to_string(length);
    if (what == "needles") return Needles(length, count, seed);
    const auto tokens = model_->Tokenize(text_);
    const auto whole = static_cast<size_t>(length + count + kAfterDrift + 1);
    if (tokens.size() < whole) return InvalidArgument("the text has only " + std::to_string(tokens.size()) + " tokens");
    const auto at = std::span(tokens).subspan(static_cast<size_t>(seed) * 997 % (tokens.size() - whole + 1), whole);
    FS_RETURN_IF_ERROR(Read(at.first(static_cast<size_t>(length))));
    const auto after = at.subspan(static_cast<size_t>(length));
    return what == "text" ? Text(after.first(static_cast<size_t>(count) + 1)) : Drift(after, count);
  }

 private:
  Status Read(std::span<const int32_t> tokens) {
    bench_->Truncate(0);
    while (!tokens.empty()) {
      const auto part = tokens.first(std::min<size_t>(kChunk, tokens.size()));
      FS_RETURN_IF_ERROR(bench_->Run(part, nullptr));
      tokens = tokens.subspan(part.size());
    }
    return OkStatus();
  }
  std::span<const float> Row(size_t i) const {
    const auto vocab = static_cast<size_t>(model_->impl().config.vocab);
    return bench_->logits().subspan(i * vocab, vocab);
  }

  Status Needles(int64_t length, int count, uint64_t seed) {
    FS_ASSIGN_OR_RETURN(const eval::Haystack hay, eval::Haystack::Make(*model_, std::span(&text_, 1)));
    const eval::PromptWriter writer(*model_, hay, eval::Form::kCompletion);
    const auto modes = Modes(model_->impl().config.layers);
    std::vector<std::array<int, 2>> right(modes.size() + 1);
    for (int n = 0; n < count; ++n) {
      eval::TaskSpec spec;
      spec.length = length;
      spec.axis = 5 + 10 * (n % 10);
      spec.seed = seed;
      spec.sample = n / 10;
      FS_ASSIGN_OR_RETURN(const eval::Sample sample, eval::MakeSample(writer, spec));
      const auto& prompt = sample[0].prompt;
      const auto answer = model_->Tokenize(sample[0].expected);
      std::vector<int32_t> rows(prompt.end() - (kRows - static_cast<std::ptrdiff_t>(answer.size())), prompt.end());
      rows.insert(rows.end(), answer.begin(), answer.end());
      const auto before = static_cast<int64_t>(prompt.size() + answer.size()) - kRows;
      FS_RETURN_IF_ERROR(Read(std::span(prompt).first(static_cast<size_t>(before))));
      for (size_t m = 0; m <= modes.size(); ++m) {
        VerifyMode exact;
        exact.group = kMaxGroup;
        FS_RETURN_IF_ERROR(bench_->Run(rows, m == 0 ? &exact : &modes[m - 1]));
        bool all = true;
        for (size_t i = kRows - answer.size(); i < kRows; ++i) all = all && Best(Row(i - 1)) == rows[i];
        right[m][0] += all ? 1 : 0;
        ++right[m][1];
        bench_->Truncate(before);
      }
    }
    for (size_t m = 0; m <= modes.size(); ++m) {
      std::printf("{\"case\": \"%s\", \"mode\": \"%s\", \"right\": %d, \"asked\": %d}\n", name_.c_str(),
                  m == 0 ? "exact" : VerifyModeName(modes[m - 1]).c_str(), right[m][0], right[m][1]);
    }
    return OkStatus();
  }

  Status Text(std::span<const int32_t> tokens) {
    const int64_t length = bench_->length();
    for (const VerifyMode& mode : Modes(model_->impl().config.layers)) {
      ErrorMeter meter;
      std::array<double, 2> nats = {};
      int64_t n = 0;
      for (size_t at = 0; at + kRows < tokens.size(); at += kRows) {
        const auto rows = tokens.subspan(at, kRows);
        VerifyMode exact;
        exact.group = kMaxGroup;
        FS_RETURN_IF_ERROR(bench_->Run(rows, &exact, true));
        meter.Exact(bench_->batch(), bench_->result(), plan_);
        for (size_t i = 0; i < kRows; ++i) nats[0] += Surprise(Row(i), tokens[at + i + 1]);
        bench_->Truncate(bench_->length() - kRows);
        FS_RETURN_IF_ERROR(bench_->Run(rows, &mode));
        meter.Approximate(bench_->result());
        for (size_t i = 0; i < kRows; ++i) nats[1] += Surprise(Row(i), tokens[at + i + 1]);
        // The text goes on from exact keys and values.
        bench_->Truncate(bench_->length() - kRows);
        FS_RETURN_IF_ERROR(bench_->Run(rows, &exact));
        n += kRows;
      }
      bench_->Truncate(length);
      const ApproximationError e = meter.error();
      const double bits = static_cast<double>(n) * std::log(2.0);
      std::printf(
          "{\"case\": \"%s\", \"mode\": \"%s\", \"tokens\": %lld, \"bits\": %.5f, \"bits_exact\": %.5f, \"flips\": "
          "%.5f, \"kl\": %.6f, \"kl_p99\": %.5f, \"list_error\": %.4f, \"list_error_p99\": %.4f}\n",
          name_.c_str(), VerifyModeName(mode).c_str(), static_cast<long long>(n), nats[1] / bits, nats[0] / bits,
          e.flip_rate, e.kl_mean, meter.kl_p99(), e.substitution_mean, e.substitution_p99);
      std::fflush(stdout);
    }
    return OkStatus();
  }

  // The logits of exact rows after `count` tokens that ran in `mode`.
  StatusOr<std::vector<float>> After(std::span<const int32_t> tokens, int count, const VerifyMode& mode) {
    const int64_t length = bench_->length();
    VerifyMode exact;
    exact.group = kMaxGroup;
    std::vector<float> logits;
    for (size_t at = 0; at < static_cast<size_t>(count) + kAfterDrift; at += kRows) {
      const bool drifts = at < static_cast<size_t>(count);
      FS_RETURN_IF_ERROR(bench_->Run(tokens.subspan(at, kRows), drifts ? &mode : &exact));
      if (!drifts) logits.insert(logits.end(), bench_->logits().begin(), bench_->logits().end());
    }
    bench_->Truncate(length);
    return logits;
  }
  Status Drift(std::span<const int32_t> tokens, int count) {
    VerifyMode exact;
    exact.group = kMaxGroup;
    FS_ASSIGN_OR_RETURN(const auto want, After(tokens, count, exact));
    const auto vocab = static_cast<size_t>(model_->impl().config.vocab);
    for (const VerifyMode& mode : Modes(model_->impl().config.layers)) {
      FS_ASSIGN_OR_RETURN(const auto got, After(tokens, count, mode));
      double kl = 0;
      int flips = 0;
      for (size_t i = 0; i < want.size(); i += vocab) {
        const auto p = std::span(want).subspan(i, vocab);
        const auto q = std::span(got).subspan(i, vocab);
        kl += Divergence(p, q);
        flips += Best(p) != Best(q) ? 1 : 0;
      }
      std::printf("{\"case\": \"%s after:%d\", \"mode\": \"%s\", \"tokens\": %d, \"flips\": %.5f, \"kl\": %.6f}\n",
                  name_.c_str(), count, VerifyModeName(mode).c_str(), kAfterDrift,
                  static_cast<double>(flips) / kAfterDrift, kl / kAfterDrift);
      std::fflush(stdout);
    }
    return OkStatus();
  }

  std::shared_ptr<Model> model_;
  std::string text_;
  std::string name_;
  AttentionPlan plan_;
  DraftBench* bench_ = nullptr;
};

int Main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: bench_precision MODEL TEXT needles|text|drift LENGTH COUNT SEED\n");
    return 2;
  }
  std::ifstream in(argv[2]);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ModelOptions options;
  options.threads = 1;
  auto model = Model::Load(argv[1], options);
  const Status s = model.ok() ? Precision(*model, std::move(text))
                                    .Run(argv[3], std::atoll(argv[4]), std::atoi(argv[5]),
                                         static_cast<uint64_t>(std::atoll(argv[6])))
                              : model.status();
  if (!s.ok()) std::fprintf(stderr, "bench_precision: %s\n", s.message().c_str());
  return s.ok() ? 0 : 1;
}

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) { return farsight::Main(argc, argv); }
