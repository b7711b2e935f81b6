// Writing with drafts against plain decoding, in turns, over one reading of each prompt. Every answer is compared with
// the plain one, token by token, before a time of it counts.
//   bench_speculation MODEL DRAFT_MODEL|- THREADS LENGTH TOKENS ROUNDS auto|static|all PROMPT...
// A prompt is the last LENGTH tokens of a text file, or "random": tokens of chance, and an answer drawn at temperature
// 1, which no drafter can guess. `auto` times the planner; `static` lookups that always draft alike beside it, and what
// the planner lost to the best of them; `all` tries every drafter, order and group once.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "farsight/engine.h"

namespace farsight {
namespace {

constexpr int kLongest = 31;  // with the root, whole tiles of rows

struct Way {
  std::string name;
  EngineOptions options;
  std::vector<double> seconds = {};
  Completion last = {};
};

EngineOptions Drafts(Drafting drafting, int max, std::vector<int> tree = {}, int group = 64, bool breadth = false) {
  EngineOptions o;
  o.drafting = drafting;
  o.draft_max = max;
  o.draft_tree = std::move(tree);
  o.draft_group = group;
  o.draft_breadth_first = breadth;
  return o;
}

std::vector<Way> Ways(const std::string& which, const std::shared_ptr<Model>& draft) {
  std::vector<Way> ways = {{"off", Drafts(Drafting::kOff, 1)}, {"auto", Drafts(Drafting::kAuto, kLongest)}};
  const std::vector<int> fork = {3, 2, 2, 1, 1};
  if (which == "static") {
    for (const Drafting kind : {Drafting::kNgram, Drafting::kSuffix}) {
      for (const int max : {2, 4, 7, 15, kLongest}) {
        ways.push_back({DraftingName(kind) + std::string(" chain:") + std::to_string(max), Drafts(kind, max)});
      }
    }
  }
  if (which == "all") {
    for (const Drafting kind : {Drafting::kNgram, Drafting::kSuffix, Drafting::kModel}) {
      if (kind == Drafting::kModel && draft == nullptr) continue;
      const int chain = kind == Drafting::kModel ? 4 : kLongest;
      const std::string name = DraftingName(kind);
      for (const int group : {1, 2, 4, 7, 16, 64}) {
        ways.push_back({name + " chain group " + std::to_string(group), Drafts(kind, chain, {}, group)});
      }
      for (const int group : {1, 4, 64}) {
        for (const bool breadth : {false, true}) {
          ways.push_back({name + " fork " + (breadth ? "breadth" : "depth") + " first group " + std::to_string(group),
                          Drafts(kind, 15, fork, group, breadth)});
        }
      }
    }
  }
  for (Way& way : ways) {
    if (way.options.drafting == Drafting::kModel) way.options.draft_model = draft;
  }
  return ways;
}

Status Run(int argc, char** argv) {
  ModelOptions m;
  m.threads = std::atoi(argv[3]);
  FS_ASSIGN_OR_RETURN(const auto model, Model::Load(argv[1], m));
  std::shared_ptr<Model> draft;
  if (std::string(argv[2]) != "-") {
    ModelOptions d;
    d.threads = 1;
    FS_ASSIGN_OR_RETURN(draft, Model::Load(argv[2], d));
  }
  const auto length = static_cast<size_t>(std::atoll(argv[4]));
  const int tokens = std::atoi(argv[5]);
  const int rounds = std::atoi(argv[6]);
  const std::string which = argv[7];
  EngineOptions options;
  options.context_tokens = static_cast<int64_t>(length) + tokens + 1;
  options.kv_tokens = options.context_tokens + 4096;  // room for forks beside the answer before
  options.drafting = Drafting::kAuto;
  options.draft_max = kLongest;
  FS_ASSIGN_OR_RETURN(const auto engine, Engine::Create(model, options));
  int differ = 0;
  for (int i = 8; i < argc; ++i) {
    const std::string name = argv[i];
    std::vector<int32_t> prompt;
    Request request;
    if (name == "random") {
      std::mt19937 rng(1);
      for (size_t t = 0; t < length; ++t) {
        prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(model->info().vocab)));
      }
      request.sampling.temperature = 1;
    } else {
      std::ifstream in(name);
      prompt = model->Tokenize(std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>()));
      if (prompt.size() > length) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(length));
    }
    if (prompt.empty()) return InvalidArgument("'" + name + "' holds no text");
    request.max_new_tokens = tokens;
    request.ignore_eos = true;
    request.prompt = prompt;
    engine->DropCaches();
    std::vector<Way> ways = Ways(which, draft);
    for (int round = 0; round < rounds; ++round) {
      for (Way& way : ways) {
        FS_RETURN_IF_ERROR(engine->SetDrafting(way.options));
        FS_ASSIGN_OR_RETURN(way.last, engine->Generate(request));
        if (way.last.tokens != ways[0].last.tokens) {
          ++differ;
          std::printf("DIFFERS prompt:%s way:%s\n", name.c_str(), way.name.c_str());
        }
        way.seconds.push_back(way.last.decode_seconds);
      }
    }
    double best = 0, planner = 0;  // tokens a second
    for (Way& way : ways) {
      std::sort(way.seconds.begin(), way.seconds.end());
      const double median = way.seconds[way.seconds.size() / 2];
      const double plain = ways[0].seconds[ways[0].seconds.size() / 2];
      const Completion& c = way.last;
      std::printf("case:%s tokens:%zu way:%s tok/s:%.1f ratio:%.2f tokens_a_step:%.2f accepted:%lld drafted:%lld\n",
                  name.substr(name.rfind('/') + 1).c_str(), prompt.size(), way.name.c_str(), tokens / median,
                  plain / median,
                  static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(c.decode_steps, 1)),
                  static_cast<long long>(c.accepted_tokens), static_cast<long long>(c.drafted_tokens));
      if (way.name == "auto") {
        planner = tokens / median;
      } else {
        best = std::max(best, tokens / median);
      }
    }
    if (which == "static") std::printf("regret:%.3f\n", 1 - planner / best);
    std::fflush(stdout);
  }
  return differ == 0 ? OkStatus() : Internal(std::to_string(differ) + " answers differ from plain decoding");
}

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) {
  if (argc < 9) {
    std::fprintf(stderr,
                 "usage: bench_speculation MODEL DRAFT_MODEL|- THREADS LENGTH TOKENS ROUNDS auto|static|all "
                 "PROMPT...\n");
    return 2;
  }
  const farsight::Status s = farsight::Run(argc, argv);
  if (!s.ok()) std::fprintf(stderr, "bench_speculation: %s\n", s.message().c_str());
  return s.ok() ? 0 : 1;
}
