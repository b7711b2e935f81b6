// Which pages to keep: replays a trace of block lists through every retention policy, through no retention at all (a
// page stays only while it is selected, as the published runtimes do), and through the best possible choice, which
// knows the future. Counts, no times.
//
//   bench_tiers                       a generated trace: lists with a slowly moving core, ones that come back, and
//   noise bench_tiers TRACE.json            a real one: farsight run ... --trace TRACE.json
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/env.h"
#include "kv/tier_retention.h"

namespace farsight {
namespace {

constexpr int kWarmUp = 16;  // steps that are replayed and not counted

struct Trace {
  int layers = 0;
  int heads = 0;
  int blocks = 0;
  std::vector<std::vector<std::vector<int32_t>>> steps;  // [step, layer] pages: head * blocks + block, each once
};

[[noreturn]] void Die(const std::string& text) {
  std::fprintf(stderr, "bench_tiers: %s\n", text.c_str());
  std::exit(1);
}

Trace ReadTrace(const std::string& path) {
  const auto text = ReadFileToString(path, size_t{1} << 30);
  if (!text.ok()) Die(text.status().message());
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (json.is_discarded() || !json.contains("steps")) Die("'" + path + "' is not a trace");
  Trace t;
  std::vector<std::vector<std::pair<int, std::vector<std::vector<int32_t>>>>> raw;
  for (const auto& step : json["steps"]) {
    raw.emplace_back();
    for (const auto& layer : step["layers"]) {
      if (layer["heads"].is_null()) continue;  // dense
      raw.back().emplace_back(layer["layer"].get<int>(), layer["heads"].get<std::vector<std::vector<int32_t>>>());
      t.heads = std::max(t.heads, static_cast<int>(raw.back().back().second.size()));
      for (const auto& ids : raw.back().back().second) {
        for (const int32_t b : ids) t.blocks = std::max(t.blocks, b + 1);
      }
    }
    t.layers = std::max(t.layers, static_cast<int>(raw.back().size()));
  }
  for (const auto& step : raw) {
    if (static_cast<int>(step.size()) != t.layers) continue;
    t.steps.emplace_back();
    for (const auto& [layer, heads] : step) {
      auto& pages = t.steps.back().emplace_back();
      for (size_t h = 0; h < heads.size(); ++h) {
        for (const int32_t b : heads[h]) pages.push_back(static_cast<int32_t>(h) * t.blocks + b);
      }
    }
  }
  return t;
}

Trace GenerateTrace() {
  Trace t;
  t.layers = 16;
  t.heads = 2;
  t.blocks = 512;
  constexpr int kPicks = 32, kSteps = 300;
  std::mt19937 rng(1);
  std::vector<std::set<int32_t>> core(static_cast<size_t>(t.layers * t.heads));
  const auto any = [&] { return static_cast<int32_t>(rng() % static_cast<uint32_t>(t.blocks)); };
  for (int s = 0; s < kSteps; ++s) {
    auto& step = t.steps.emplace_back();
    for (int l = 0; l < t.layers; ++l) {
      auto& pages = step.emplace_back();
      for (int h = 0; h < t.heads; ++h) {
        auto& c = core[static_cast<size_t>(l * t.heads + h)];
        while (c.size() < 60) c.insert(any());
        if (rng() % 4 == 0) c.erase(std::next(c.begin(), static_cast<int64_t>(rng() % c.size())));
        while (c.size() < 60) c.insert(any());
        const std::vector<int32_t> list(c.begin(), c.end());
        std::set<int32_t> chosen = {0, t.blocks - 1};
        while (static_cast<int>(chosen.size()) < kPicks - 2) {
          // Some of the core far more often than others.
          const uint64_t r = rng() % 60, q = rng() % 60;
          chosen.insert(list[std::min(r, q) * 7 % 60]);
        }
        while (static_cast<int>(chosen.size()) < kPicks) chosen.insert(any());
        for (const int32_t b : chosen) pages.push_back(h * t.blocks + b);
      }
    }
  }
  return t;
}

struct Count {
  int64_t selected = 0, missed = 0;
};

int64_t PageId(const Trace& t, size_t layer, int32_t page) {
  return static_cast<int64_t>(layer) * t.heads * t.blocks + page;
}

Count Replay(const Trace& t, int64_t capacity, const RetentionOptions& options) {
  Retention retention(static_cast<int32_t>(capacity), t.layers, options);
  const auto all = static_cast<size_t>(t.layers * t.heads * t.blocks);
  std::vector<int32_t> slot_of(all, -1);
  std::vector<int64_t> page_of(static_cast<size_t>(capacity), -1);
  std::vector<double> scores(all, Retention::kNever);
  std::vector<int32_t> free;
  for (int64_t s = capacity; s > 0; --s) free.push_back(static_cast<int32_t>(s - 1));
  Count count;
  for (size_t step = 0; step < t.steps.size(); ++step) {
    for (size_t l = 0; l < t.steps[step].size(); ++l) {
      const auto layer = static_cast<int32_t>(l);
      std::vector<int64_t> misses;
      for (const int32_t page : t.steps[step][l]) {
        const int64_t id = PageId(t, l, page);
        const auto i = static_cast<size_t>(id);
        scores[i] = retention.Used(scores[i], static_cast<int64_t>(step), layer);
        if (slot_of[i] >= 0) {
          retention.Hold(slot_of[i]);
        } else {
          misses.push_back(id);
        }
      }
      for (const int64_t id : misses) {
        int32_t slot;
        if (free.empty()) {
          slot = retention.TakeVictim(static_cast<int64_t>(step), layer);
          if (slot < 0) Die("the memory is smaller than one list");
          slot_of[static_cast<size_t>(page_of[static_cast<size_t>(slot)])] = -1;
        } else {
          slot = free.back();
          free.pop_back();
        }
        page_of[static_cast<size_t>(slot)] = id;
        slot_of[static_cast<size_t>(id)] = slot;
      }
      for (const int32_t page : t.steps[step][l]) {
        const auto i = static_cast<size_t>(PageId(t, l, page));
        retention.Offer(slot_of[i], layer, scores[i]);
      }
      if (step < kWarmUp) continue;
      count.selected += static_cast<int64_t>(t.steps[step][l].size());
      count.missed += static_cast<int64_t>(misses.size());
    }
  }
  return count;
}

// A page stays only from one list of its layer to the next.
Count ReplaySelection(const Trace& t) {
  Count count;
  for (size_t step = kWarmUp; step < t.steps.size(); ++step) {
    for (size_t l = 0; l < t.steps[step].size(); ++l) {
      const std::set<int32_t> before(t.steps[step - 1][l].begin(), t.steps[step - 1][l].end());
      for (const int32_t page : t.steps[step][l]) count.missed += before.count(page) == 0 ? 1 : 0;
      count.selected += static_cast<int64_t>(t.steps[step][l].size());
    }
  }
  return count;
}

// Drops the page whose next use is farthest away.
Count ReplayBest(const Trace& t, int64_t capacity) {
  std::map<int64_t, std::vector<int64_t>> uses;  // page: times, latest first
  const auto time_of = [&](size_t step, size_t l) { return static_cast<int64_t>(step * t.steps[0].size() + l); };
  for (size_t step = t.steps.size(); step-- > 0;) {
    for (size_t l = t.steps[step].size(); l-- > 0;) {
      for (const int32_t page : t.steps[step][l]) uses[PageId(t, l, page)].push_back(time_of(step, l));
    }
  }
  std::set<std::pair<int64_t, int64_t>> resident;  // next use, page
  Count count;
  for (size_t step = 0; step < t.steps.size(); ++step) {
    for (size_t l = 0; l < t.steps[step].size(); ++l) {
      int64_t missed = 0;
      std::vector<std::pair<int64_t, int64_t>> now;
      for (const int32_t page : t.steps[step][l]) {
        const int64_t id = PageId(t, l, page);
        auto& times = uses[id];
        missed += resident.erase({times.back(), id}) == 0 ? 1 : 0;
        times.pop_back();
        now.emplace_back(times.empty() ? INT64_MAX : times.back(), id);
      }
      while (static_cast<int64_t>(resident.size() + now.size()) > capacity) resident.erase(std::prev(resident.end()));
      resident.insert(now.begin(), now.end());
      if (step < kWarmUp) continue;
      count.selected += static_cast<int64_t>(t.steps[step][l].size());
      count.missed += missed;
    }
  }
  return count;
}

void Run(const Trace& t) {
  if (t.steps.size() <= kWarmUp) Die("the trace needs more than " + std::to_string(kWarmUp) + " sparse steps");
  int64_t working = 0;
  for (const auto& step : t.steps) {
    int64_t n = 0;
    for (const auto& layer : step) n += static_cast<int64_t>(layer.size());
    working = std::max(working, n);
  }
  const int64_t all = int64_t{t.layers} * t.heads * t.blocks;
  std::printf("layers:%d heads:%d blocks:%d steps:%zu pages:%lld pages_of_a_step:%lld\n", t.layers, t.heads, t.blocks,
              t.steps.size(), static_cast<long long>(all), static_cast<long long>(working));
  const double lists = static_cast<double>(t.steps.size() - kWarmUp) * t.layers * t.heads;
  const auto print = [&](const char* name, int64_t pages, const Count& c) {
    std::printf("policy:%-16s memory_pages:%-7lld of_all:%.3f misses_per_list:%.3f hit:%.4f\n", name,
                static_cast<long long>(pages), static_cast<double>(pages) / static_cast<double>(all),
                static_cast<double>(c.missed) / lists,
                1.0 - static_cast<double>(c.missed) / static_cast<double>(c.selected));
  };
  print("selection_only", working, ReplaySelection(t));
  for (const double share : {0.5, 1.0, 1.25, 1.5, 2.0, 3.0}) {
    const auto pages = std::min(all, static_cast<int64_t>(static_cast<double>(working) * share));
    const Count best = ReplayBest(t, pages);
    const std::pair<const char*, RetentionOptions> policies[] = {
        {"lru", {RetentionPolicy::kLru, 0}},
        {"turn_lru", {RetentionPolicy::kTurnLru, 0}},
        {"frequency_2", {RetentionPolicy::kFrequency, 2}},
        {"frequency_8", {RetentionPolicy::kFrequency, 8}},
        {"frequency_32", {RetentionPolicy::kFrequency, 32}},
        {"frequency_128", {RetentionPolicy::kFrequency, 128}},
    };
    for (const auto& [name, options] : policies) {
      const Count c = Replay(t, pages, options);
      if (c.missed < best.missed || c.selected != best.selected) Die("a policy beat the best possible choice");
      print(name, pages, c);
    }
    print("best_possible", pages, best);
  }
}

}  // namespace
}  // namespace farsight

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "usage: bench_tiers [TRACE.json]\n");
    return 2;
  }
  farsight::Run(argc == 2 ? farsight::ReadTrace(argv[1]) : farsight::GenerateTrace());
  return 0;
}
