#include "spec/suffix_automaton.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace farsight {
namespace {

using Text = std::vector<int32_t>;

Text RandomText(std::mt19937& rng, int n, int32_t vocab) {
  Text text;
  for (int i = 0; i < n; ++i) text.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
  return text;
}

// Ends of every substring, by search.
std::map<Text, std::vector<int32_t>> Substrings(const Text& text) {
  std::map<Text, std::vector<int32_t>> ends;
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t j = i; j < text.size(); ++j) {
      ends[Text(text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(j + 1))]
          .push_back(static_cast<int32_t>(j));
    }
  }
  return ends;
}

int32_t Walk(const SuffixAutomaton& a, const Text& s) {
  int32_t state = 0;
  for (int32_t token : s) {
    state = a.Next(state, token);
    if (state < 0) break;
  }
  return state;
}

// Everything that a later call could notice, in a form independent of how it came about.
std::vector<int32_t> Dump(const SuffixAutomaton& a) {
  std::vector<int32_t> out = {a.size(), a.last(), a.num_states(), a.num_edges()};
  for (int32_t s = 0; s < a.num_states(); ++s) {
    out.insert(out.end(), {a.length(s), a.link(s), a.count(s), a.latest_end(s)});
    a.ForEachNext(s, [&](int32_t token, int32_t next) { out.insert(out.end(), {token, next}); });
    out.push_back(-2);
  }
  return out;
}

TEST(SuffixAutomaton, KnowsEverySubstringItsCountAndLatestEnd) {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const Text text = RandomText(rng, 1 + round % 40, 1 + round % 5);
    SuffixAutomaton a(8);
    for (int32_t token : text) a.Append(token);
    const auto substrings = Substrings(text);
    for (const auto& [s, ends] : substrings) {
      const int32_t state = Walk(a, s);
      ASSERT_GE(state, 0);
      ASSERT_EQ(a.count(state), static_cast<int32_t>(ends.size()));
      ASSERT_EQ(a.latest_end(state), ends.back());
      ASSERT_LE(static_cast<int32_t>(s.size()), a.length(state));
      ASSERT_GT(static_cast<int32_t>(s.size()), a.length(a.link(state)));
    }
    for (int i = 0; i < 50; ++i) {
      const Text s = RandomText(rng, 1 + i % 6, 6);
      ASSERT_EQ(Walk(a, s) >= 0, substrings.count(s) > 0);
    }
    ASSERT_LE(a.num_states(), 2 * a.size());
    ASSERT_LE(a.num_edges(), 3 * a.size());
  }
}

TEST(SuffixAutomaton, LinkOfTheLastStateIsTheLongestRepeatedSuffix) {
  std::mt19937 rng(2);
  for (int round = 0; round < 100; ++round) {
    const Text text = RandomText(rng, 60, 2 + round % 4);
    SuffixAutomaton a(0);
    for (size_t n = 1; n <= text.size(); ++n) {
      a.Append(text[n - 1]);
      int longest = 0;
      for (size_t end = 1; end < n; ++end) {
        int m = 0;
        while (m < static_cast<int>(end) &&
               text[end - 1 - static_cast<size_t>(m)] == text[n - 1 - static_cast<size_t>(m)]) {
          ++m;
        }
        longest = std::max(longest, m);
      }
      ASSERT_EQ(a.length(a.link(a.last())), longest);
      std::set<int32_t> followed;
      a.ForEachNext(a.link(a.last()), [&](int32_t token, int32_t) { followed.insert(token); });
      const Text suffix(text.begin() + static_cast<std::ptrdiff_t>(n) - longest,
                        text.begin() + static_cast<std::ptrdiff_t>(n));
      std::set<int32_t> expected;
      for (size_t i = 0; i + suffix.size() < n; ++i) {
        if (std::equal(suffix.begin(), suffix.end(), text.begin() + static_cast<std::ptrdiff_t>(i))) {
          expected.insert(text[i + suffix.size()]);
        }
      }
      ASSERT_EQ(followed, expected);
    }
  }
}

TEST(SuffixAutomaton, UndoRestoresEverything) {
  std::mt19937 rng(3);
  for (int32_t vocab : {1, 2, 3, 20, 1000}) {
    SuffixAutomaton a(1 << 20);
    std::vector<std::vector<int32_t>> before;
    Text text;
    for (int step = 0; step < 600; ++step) {
      if (rng() % 5 == 0) {
        for (auto n = rng() % 20; n > 0 && a.CanUndo(); --n) {
          a.Undo();
          text.pop_back();
          ASSERT_EQ(Dump(a), before.back());
          before.pop_back();
        }
      } else {
        before.push_back(Dump(a));
        text.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
        a.Append(text.back());
      }
    }
    SuffixAutomaton fresh(0);
    for (int32_t token : text) fresh.Append(token);
    ASSERT_EQ(Dump(a), Dump(fresh));
    while (a.CanUndo()) a.Undo();
    EXPECT_EQ(a.size(), 0);
    EXPECT_EQ(a.num_states(), 1);
    EXPECT_EQ(a.num_edges(), 0);
  }
}

TEST(SuffixAutomaton, TheJournalIsBounded) {
  SuffixAutomaton a(5);
  for (int32_t i = 0; i < 100; ++i) a.Append(i % 7);
  int undone = 0;
  for (; a.CanUndo(); ++undone) a.Undo();
  EXPECT_EQ(undone, 5);
  EXPECT_EQ(a.size(), 95);
  SuffixAutomaton none(0);
  none.Append(1);
  EXPECT_FALSE(none.CanUndo());
}

TEST(SuffixAutomaton, MemoryStaysWithinItsBound) {
  std::mt19937 rng(4);
  for (int32_t vocab : {1, 2, 4, 50, 40000}) {
    SuffixAutomaton a(256);
    const Text text = RandomText(rng, 70000, vocab);
    for (int32_t token : text) a.Append(token);
    EXPECT_LE(a.bytes(), size_t{224} * text.size()) << vocab;
  }
}

TEST(SuffixAutomaton, LongContextsOfAPeriodAreCountedExactly) {
  SuffixAutomaton a(0);
  for (int i = 0; i < 1000; ++i) a.Append(7);
  int32_t state = a.last();
  for (int n = 1; n <= SuffixAutomaton::kCountedContexts; ++n, state = a.link(state)) EXPECT_EQ(a.count(state), n);
}

}  // namespace
}  // namespace farsight
