// farsight bench: speed of reading and writing, like llama-bench, for several attention policies in one run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/buffer.h"
#include "base/read_memory.h"
#include "base/thread_pool.h"
#include "cli/commands.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string attention;
  int n_prompt = 0, n_gen = 0, n_depth = 0, n_threads = 0, n_parallel = 1;
  std::vector<double> speeds;  // tokens/s of each repetition
  double bytes = 0;            // read for one token: weights and attended KV (generation only)
  double bandwidth = 0;        // of the machine, bytes/s
  int64_t kv_memory = 0;       // bytes for keys and values; 0: all in memory
  bool lookahead = true;
  double select_seconds = 0;  // of all repetitions
  KvTierStats file = {};      // what the repetitions moved (generation only)

  double Mean() const {
    return std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(speeds.size());
  }
  double Median() const {
    std::vector<double> s = speeds;
    std::sort(s.begin(), s.end());
    return s.size() % 2 == 1 ? s[s.size() / 2] : (s[s.size() / 2 - 1] + s[s.size() / 2]) / 2;
  }
  double Deviation() const {
    if (speeds.size() < 2) return 0;
    const double m = Mean();
    double sum = 0;
    for (const double s : speeds) sum += (s - m) * (s - m);
    return std::sqrt(sum / static_cast<double>(speeds.size() - 1));
  }
  double PerToken(double total) const {
    const int tokens = n_gen > 0 ? n_gen * n_parallel : n_prompt;
    return total / (static_cast<double>(speeds.size()) * tokens);
  }
  // Of the time that the file was busy for us, the share in which we computed.
  double HiddenShare() const {
    const double all = file.waited_seconds + file.hidden_seconds;
    return all > 0 ? file.hidden_seconds / all : 0;
  }
  std::string Name() const {
    std::string name = n_gen > 0 ? fmt::format("tg{}", n_gen) : fmt::format("pp{}", n_prompt);
    if (n_depth > 0) name += fmt::format(" @ d{}", n_depth);
    if (n_parallel > 1) name += fmt::format(" x{}", n_parallel);
    return name;
  }
};

// Bytes per second that `threads` threads read together from memory far larger than the caches; the best of a few.
double ReadBandwidth(int threads) {
  constexpr size_t kBytes = size_t{256} << 20;
  auto buffer = AllocateHost(kBytes);
  if (!buffer.ok()) return 0;
  std::memset(buffer->data(), 1, kBytes);
  ThreadPool pool(threads);
  double best = 0;
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  for (int i = 0; i < 5; ++i) {
    const double start = Now();
    pool.RunOnAll([&](int t) {
      const size_t words = kBytes / 8 / static_cast<size_t>(threads);
      const auto at = static_cast<size_t>(t);
      sums[8 * at] = SumWords(buffer->as<const uint64_t>() + at * words, words);
    });
    best = std::max(best, static_cast<double>(kBytes) / (Now() - start));
  }
  return best;
}

std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (auto& t : out) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    t = static_cast<int32_t>(x % static_cast<uint64_t>(vocab));
  }
  return out;
}

// What the layers moved between two moments, together.
KvTierStats Moved(const EngineStats& before, const EngineStats& after) {
  KvTierStats sum;
  for (size_t l = 0; l < after.kv_tiers.size(); ++l) {
    const KvTierStats &a = before.kv_tiers[l], &b = after.kv_tiers[l];
    sum.selected += b.selected - a.selected;
    sum.hit += b.hit - a.hit;
    sum.missed += b.missed - a.missed;
    sum.bytes_read += b.bytes_read - a.bytes_read;
    sum.bytes_written += b.bytes_written - a.bytes_written;
    sum.waited_seconds += b.waited_seconds - a.waited_seconds;
    sum.hidden_seconds += b.hidden_seconds - a.hidden_seconds;
  }
  return sum;
}

class Bencher {
 public:
  // `text`: tokens to read; none: random ones.
  Bencher(Engine& engine, const Model& model, const std::vector<int32_t>& text)
      : engine_(engine), vocab_(model.info().vocab), text_(text) {}

  struct Timed {
    double seconds = 0;
    double select_seconds = 0;
    double kv_bytes = 0;  // read for one token (generation only)
    KvTierStats moved;    // between memory and file (generation only)
  };

  // n tokens read after `depth` tokens that are already in the cache.
  StatusOr<Timed> Prompt(int n, int depth, uint64_t seed) {
    engine_.DropCaches();
    const auto tokens = Tokens(depth + n, seed, 0);
    FS_RETURN_IF_ERROR(Warm(tokens, depth));
    Request r;
    r.prompt = tokens;
    r.max_new_tokens = 0;
    const double select = engine_.stats().select_seconds;
    FS_ASSIGN_OR_RETURN(const Completion c, Read(std::move(r)));
    Timed t;
    t.seconds = c.prefill_seconds;
    t.select_seconds = engine_.stats().select_seconds - select;
    return t;
  }

  // n more tokens of each of `parallel` sequences that hold `depth` tokens, the same in every repetition, so that only
  // the first one has to read them.
  StatusOr<Timed> Generate(int n, int depth, int parallel) {
    std::vector<std::vector<int32_t>> prompts;
    for (int s = 0; s < parallel; ++s) {
      prompts.push_back(Tokens(depth + 1, 1000 + static_cast<uint64_t>(s), static_cast<double>(s) / parallel));
      FS_RETURN_IF_ERROR(Warm(prompts.back(), depth));
    }
    int done = 0;
    Timed g;
    int64_t bytes_read = 0;
    int64_t rows = 0;
    for (auto& prompt : prompts) {
      Request r;
      r.prompt = std::move(prompt);
      r.max_new_tokens = n + 1;
      r.ignore_eos = true;
      if (!text_.empty()) r.sampling.temperature = 1;  // the likeliest token soon only repeats
      auto id = engine_.Submit(std::move(r), [&](const Completion& c) {
        ++done;
        bytes_read += c.kv_bytes_read;
        rows += c.decode_steps;
      });
      FS_RETURN_IF_ERROR(id.ok() ? OkStatus() : id.status());
    }
    FS_RETURN_IF_ERROR(engine_.Step());  // the last prompt token
    const EngineStats before = engine_.stats();
    const double start = Now();
    while (done < parallel) {
      if (Interrupted()) return Cancelled("interrupted");
      FS_RETURN_IF_ERROR(engine_.Step());
    }
    g.seconds = Now() - start;
    g.moved = Moved(before, engine_.stats());
    g.select_seconds = engine_.stats().select_seconds - before.select_seconds;
    g.kv_bytes = rows > 0 ? static_cast<double>(bytes_read) / static_cast<double>(rows) : 0;
    return g;
  }

 private:
  StatusOr<Completion> Read(Request request) {
    FS_ASSIGN_OR_RETURN(Completion c, Drive(engine_, std::move(request)));
    if (Interrupted()) return Cancelled("interrupted");
    return c;
  }

  // Of a text from `start` (a share of it) on, and again from its beginning.
  std::vector<int32_t> Tokens(int64_t n, uint64_t seed, double start) const {
    if (text_.empty()) return RandomTokens(n, vocab_, seed);
    std::vector<int32_t> out(static_cast<size_t>(n));
    auto at = static_cast<size_t>(start * static_cast<double>(text_.size()));
    for (int32_t& t : out) t = text_[at++ % text_.size()];
    return out;
  }

  Status Warm(const std::vector<int32_t>& tokens, int depth) {
    if (depth == 0) return OkStatus();
    Request r;
    r.prompt.assign(tokens.begin(), tokens.begin() + depth);
    r.max_new_tokens = 0;
    return Read(std::move(r)).status();
  }

  Engine& engine_;
  int64_t vocab_;
  const std::vector<int32_t>& text_;
};

void PrintMarkdown(const std::vector<Row>& rows) {
  const bool tiers = std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.kv_memory > 0; });
  Say("| attention | threads | test | tok/s | median | MB/token | share of memory limit | choosing ms/token |{}\n",
      tiers ? " KV memory | lookahead | pages missed | file MB/token | waited ms/token | hidden |" : "");
  Say("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |{}\n",
      tiers ? " ---: | --- | ---: | ---: | ---: | ---: |" : "");
  for (const Row& r : rows) {
    std::string bytes;
    std::string share;
    if (r.bytes > 0) {
      bytes = fmt::format("{:.1f}", r.bytes / 1e6);
      if (r.bandwidth > 0) share = fmt::format("{:.0f} %", 100 * r.bytes * r.Median() / r.bandwidth);
    }
    Say("| {} | {} | {} | {:.2f} ± {:.2f} | {:.2f} | {} | {} | {:.3f} |", r.attention, r.n_threads, r.Name(), r.Mean(),
        r.Deviation(), r.Median(), bytes, share, 1e3 * r.PerToken(r.select_seconds));
    if (tiers && r.kv_memory == 0) Say(" all | | | | | |");
    if (r.kv_memory > 0) {
      Say(" {} | {} |", HumanBytes(r.kv_memory), r.lookahead ? "on" : "off");
      if (r.n_gen == 0) {
        Say(" | | | |");
      } else {
        const auto selected = static_cast<double>(r.file.selected);
        Say(" {:.1f} % | {:.2f} | {:.2f} | {:.0f} % |",
            100 * static_cast<double>(r.file.missed) / std::max(selected, 1.0),
            r.PerToken(static_cast<double>(r.file.bytes_read)) / 1e6, 1e3 * r.PerToken(r.file.waited_seconds),
            100 * r.HiddenShare());
      }
    }
    Say("\n");
  }
}

void PrintCsv(const std::vector<Row>& rows) {
  Say("attention,n_prompt,n_gen,n_depth,n_threads,n_parallel,avg_ts,stddev_ts,median_ts,bytes_token,kv_memory,"
      "lookahead,"
      "pages_selected,pages_missed,file_bytes_read,waited_seconds,hidden_seconds,select_seconds\n");
  for (const Row& r : rows) {
    Say("{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.0f},{},{},{},{},{},{:.6f},{:.6f},{:.6f}\n", r.attention, r.n_prompt,
        r.n_gen, r.n_depth, r.n_threads, r.n_parallel, r.Mean(), r.Deviation(), r.Median(), r.bytes, r.kv_memory,
        r.lookahead ? "on" : "off", r.file.selected, r.file.missed, r.file.bytes_read, r.file.waited_seconds,
        r.file.hidden_seconds, r.select_seconds);
  }
}

void PrintJson(const std::vector<Row>& rows, const Model& model) {
  Json out = Json::array();
  for (const Row& r : rows) {
    out.push_back({{"model", model.info().path},
                   {"backend", model.info().backend},
                   {"attention", r.attention},
                   {"n_prompt", r.n_prompt},
                   {"n_gen", r.n_gen},
                   {"n_depth", r.n_depth},
                   {"n_threads", r.n_threads},
                   {"n_parallel", r.n_parallel},
                   {"avg_ts", r.Mean()},
                   {"stddev_ts", r.Deviation()},
                   {"median_ts", r.Median()},
                   {"bytes_token", r.bytes},
                   {"read_bandwidth", r.bandwidth},
                   {"kv_memory", r.kv_memory},
                   {"lookahead", r.lookahead},
                   {"pages_selected", r.file.selected},
                   {"pages_missed", r.file.missed},
                   {"file_bytes_read", r.file.bytes_read},
                   {"waited_seconds", r.file.waited_seconds},
                   {"hidden_seconds", r.file.hidden_seconds},
                   {"select_seconds", r.select_seconds},
                   {"samples_ts", r.speeds}});
  }
  std::cout << out.dump(2) << "\n";
}

// What the flags alone decide.
StatusOr<EngineOptions> OptionsOf(const BenchArgs& args, const std::string& policy, const std::string& memory) {
  AttentionArgs attention = args.attention;
  attention.policy = policy;
  EngineOptions o;
  FS_ASSIGN_OR_RETURN(o.attention, ToOptions(attention));
  FS_ASSIGN_OR_RETURN(o.kv_type, ParseKvType(args.kv_type));
  if (memory != "all") {
    FS_ASSIGN_OR_RETURN(o.kv_memory, ParseSize(memory, "--kv-memory"));
  }
  return o;
}

Status BenchPolicy(const BenchArgs& args, const std::string& policy, const std::string& memory, bool lookahead,
                   int threads, double bandwidth, const std::shared_ptr<Model>& model, const std::vector<int32_t>& text,
                   std::vector<Row>* rows) {
  FS_ASSIGN_OR_RETURN(EngineOptions o, OptionsOf(args, policy, memory));
  AttentionArgs attention = args.attention;
  attention.policy = policy;
  o.forecast = FindForecast(attention, *model);
  o.kv_file = args.kv_file;
  o.lookahead = lookahead;
  const int deepest = *std::max_element(args.depth.begin(), args.depth.end());
  const int longest = std::max(*std::max_element(args.prompt.begin(), args.prompt.end()),
                               *std::max_element(args.generate.begin(), args.generate.end()) + 2);
  o.context_tokens = deepest + longest + 2;
  o.prefill_chunk = args.prefill_chunk;
  o.max_sequences = *std::max_element(args.parallel.begin(), args.parallel.end());
  FS_ASSIGN_OR_RETURN(auto engine, Engine::Create(model, o));
  Bencher bencher(*engine, *model, text);
  Row empty;
  empty.attention = policy;
  empty.n_threads = threads;
  empty.bandwidth = bandwidth;
  empty.kv_memory = engine->stats().kv_memory;
  empty.lookahead = lookahead;
  for (const int depth : args.depth) {
    for (const int n : args.prompt) {
      if (n == 0) continue;
      Row row = empty;
      row.n_prompt = n;
      row.n_depth = depth;
      for (int i = -1; i < args.repeat; ++i) {  // one warm-up
        FS_ASSIGN_OR_RETURN(const auto t, bencher.Prompt(n, depth, static_cast<uint64_t>(i + 2)));
        if (i < 0) continue;
        row.speeds.push_back(n / t.seconds);
        row.select_seconds += t.select_seconds;
      }
      rows->push_back(std::move(row));
    }
    for (const int n : args.generate) {
      if (n == 0) continue;
      for (const int parallel : args.parallel) {
        Row row = empty;
        row.n_gen = n;
        row.n_depth = depth;
        row.n_parallel = parallel;
        for (int i = -1; i < args.repeat; ++i) {
          FS_ASSIGN_OR_RETURN(const auto g, bencher.Generate(n, depth, parallel));
          if (i < 0) continue;
          row.speeds.push_back(static_cast<double>(n) * parallel / g.seconds);
          row.bytes = static_cast<double>(model->info().weight_bytes_token) / parallel + g.kv_bytes;
          row.select_seconds += g.select_seconds;
          row.file.selected += g.moved.selected;
          row.file.missed += g.moved.missed;
          row.file.bytes_read += g.moved.bytes_read;
          row.file.waited_seconds += g.moved.waited_seconds;
          row.file.hidden_seconds += g.moved.hidden_seconds;
        }
        rows->push_back(std::move(row));
      }
    }
  }
  return OkStatus();
}

}  // namespace

int Bench(const BenchArgs& args) {
  CatchInterrupt();
  if (args.output != "md" && args.output != "csv" && args.output != "json") {
    return FailUsage(InvalidArgument("unknown output '" + args.output + "': expected md, csv or json"));
  }
  for (const auto& policy : args.policies) {
    for (const auto& memory : args.kv_memory) {
      if (const auto options = OptionsOf(args, policy, memory); !options.ok()) return FailUsage(options.status());
    }
  }
  std::string text;
  if (!args.file.empty()) {
    auto read = ReadText(args.file);
    if (!read.ok()) return Fail(read.status());
    if (read->empty()) return Fail(InvalidArgument("'" + args.file + "' is empty"));
    text = std::move(*read);
  }
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  std::vector<int> threads = args.threads;
  if (threads.empty()) threads.push_back((*model)->threads());
  const std::vector<int32_t> tokens = text.empty() ? std::vector<int32_t>() : (*model)->Tokenize(text);
  std::vector<Row> rows;
  for (const int t : threads) {
    (*model)->SetThreads(t);
    const double bandwidth = ReadBandwidth(t);
    for (const auto& policy : args.policies) {
      for (const auto& memory : args.kv_memory) {
        for (const auto& lookahead : args.lookahead) {
          if (memory == "all" && lookahead != args.lookahead.front()) continue;  // nothing is read
          const Status s = BenchPolicy(args, policy, memory, lookahead == "on", t, bandwidth, *model, tokens, &rows);
          if (!s.ok()) return Fail(s);
        }
      }
    }
    if (args.output == "md") {
      Tell("{} threads read {:.1f} GB/s from memory\n", t, bandwidth / 1e9);
    }
  }
  if (args.output == "md") {
    PrintMarkdown(rows);
  } else if (args.output == "csv") {
    PrintCsv(rows);
  } else {
    PrintJson(rows, **model);
  }
  return kExitOk;
}

}  // namespace farsight::cli
