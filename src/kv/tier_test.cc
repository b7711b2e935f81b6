#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "io/testing/fake_async_file.h"
#include "io/testing/temp_dir.h"
#include "kv/testing/count_allocations.h"
#include "kv/testing/toy_model.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

using testing::FakeAsyncFile;
using testing::FakeDisk;
using ::testing::HasSubstr;
using testing::ToyModel;
using testing::ToySequence;
using testing::ToyShape;
using testing::ToyTokens;

// --- Retention.

TEST(Retention, TurnLruKeepsWhatTheNextLayerUsedAndDropsWhatComesLast) {
  const RetentionOptions turn = {RetentionPolicy::kTurnLru, 0};
  Retention r(8, 4, turn);
  // Step 10: layers 0 and 1 had their turn, layer 2 has it now. Slots 0..3 hold a page of layers 0..3, used at the last
  // turn of each; slot 4 a page of layer 3 that was used one turn before.
  r.Offer(0, 0, r.Used(Retention::kNever, 10, 0));
  r.Offer(1, 1, r.Used(Retention::kNever, 10, 1));
  r.Offer(2, 2, r.Used(Retention::kNever, 10, 2));
  r.Offer(3, 3, r.Used(Retention::kNever, 9, 3));
  r.Offer(4, 3, r.Used(Retention::kNever, 8, 3));
  std::vector<int32_t> order;
  for (int32_t v = r.TakeVictim(10, 2); v >= 0; v = r.TakeVictim(10, 2)) order.push_back(v);
  EXPECT_EQ(order, (std::vector<int32_t>{4, 2, 1, 0, 3}));
}

TEST(Retention, LruDropsTheNextLayersPagesFirst) {
  Retention r(3, 3, {RetentionPolicy::kLru, 0});
  r.Offer(0, 0, r.Used(Retention::kNever, 5, 0));
  r.Offer(1, 1, r.Used(Retention::kNever, 4, 1));
  r.Offer(2, 2, r.Used(Retention::kNever, 4, 2));
  EXPECT_EQ(r.TakeVictim(5, 0), 1);
  EXPECT_EQ(r.TakeVictim(5, 0), 2);
}

TEST(Retention, FrequencyKeepsAPageThatComesBack) {
  Retention r(2, 1, {RetentionPolicy::kFrequency, 8});
  double often = Retention::kNever;
  for (int64_t step = 0; step < 10; ++step) often = r.Used(often, step, 0);
  r.Offer(0, 0, often);
  r.Offer(1, 0, r.Used(Retention::kNever, 11, 0));
  EXPECT_EQ(r.TakeVictim(12, 0), 1) << "used once, though later";
  EXPECT_EQ(r.TakeVictim(12, 0), 0);
  EXPECT_EQ(r.TakeVictim(12, 0), -1);
  EXPECT_NEAR(r.Used(5, 5, 0), 5 + 8, 1e-9) << "two uses at once weigh one use a half-life later";
  EXPECT_EQ(r.Used(Retention::kNever, 7, 0), 7);
}

TEST(Retention, RandomLivesEqualASortedList) {
  std::mt19937 rng(5);
  Retention r(40, 1, {RetentionPolicy::kTurnLru, 0});
  std::map<int32_t, double> model;
  for (int i = 0; i < 20000; ++i) {
    const auto slot = static_cast<int32_t>(rng() % 40);
    if (rng() % 3 == 0) {
      const auto least = std::min_element(model.begin(), model.end(), [](const auto& a, const auto& b) {
        return a.second < b.second || (a.second == b.second && a.first < b.first);
      });
      const int32_t want = model.empty() ? -1 : least->first;
      ASSERT_EQ(r.TakeVictim(0, 0), want);
      if (want >= 0) model.erase(want);
    } else if (model.count(slot) != 0) {
      ASSERT_TRUE(r.Offered(slot));
      r.Hold(slot);
      model.erase(slot);
    } else {
      const auto score = static_cast<double>(rng() % 50);
      r.Offer(slot, 0, score);
      model[slot] = score;
    }
  }
}

// --- Store.

TEST(BlockStore, PagesAndSummariesNeverOverlapAndNeighboursTouch) {
  const StoreGeometry g = {3, 2, 8192, 4096, 4};
  BlockStore store(std::make_unique<FakeAsyncFile>(), g, 4096, UINT64_MAX, false);
  std::set<uint64_t> pages;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(store.Allocate().value(), i);
  EXPECT_EQ(store.num_blocks(), 12);
  for (int32_t b = 0; b < 12; ++b) {
    for (int32_t l = 0; l < 3; ++l) {
      for (int32_t h = 0; h < 2; ++h) {
        const uint64_t at = store.PageOffset(b, l, h);
        EXPECT_TRUE(pages.insert(at).second && pages.insert(at + 4096).second);
        if (b % 4 != 3) {
          EXPECT_EQ(store.PageOffset(b + 1, l, h), at + 8192);
        }
      }
    }
    EXPECT_TRUE(pages.insert(store.SummaryOffset(b)).second);
  }
  EXPECT_EQ(*pages.begin(), 4096u);
  EXPECT_EQ(pages.size() * 4096, store.end() - 4096) << "no gap";
  EXPECT_EQ(store.file().Size().value(), store.end());
}

TEST(BlockStore, CommittedPlacesAreNeitherWrittenNorGivenOutUntilLetGo) {
  BlockStore store(std::make_unique<FakeAsyncFile>(), {1, 1, 4096, 0, 4}, 0, UINT64_MAX, false);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(store.Allocate().value(), i);
  store.SetCommitted({1, 2});
  EXPECT_TRUE(store.Writable(0));
  EXPECT_FALSE(store.Writable(1));
  store.Release(1);
  store.Release(3);
  EXPECT_EQ(store.Allocate().value(), 3);
  EXPECT_EQ(store.Allocate().value(), 4) << "1 is free for us but not on disk";
  store.SetCommitted({2});
  EXPECT_EQ(store.Allocate().value(), 1);
}

TEST(BlockStore, ALimitIsNamed) {
  BlockStore store(std::make_unique<FakeAsyncFile>(), {1, 1, 4096, 0, 4}, 0, 20000, false);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(store.Allocate().ok());
  const auto full = store.Allocate();
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.status().message(), "'fake' is limited to 20000 bytes; it has 16384 and needs 16384 more");
}

TEST(BlockStore, OffsetsPastFourGigabytesAreExact) {
  const StoreGeometry g = {64, 8, 65536, 65536, 1024};
  ASSERT_TRUE(CheckGeometry(g).ok());
  BlockStore store(std::make_unique<FakeAsyncFile>(), g, 0, UINT64_MAX, true);
  for (uint64_t i = 0; i < 40; ++i) store.AddGroup(i * GroupBytes(g));
  EXPECT_EQ(GroupBytes(g), uint64_t{65536} * 1024 * 513);
  EXPECT_EQ(store.PageOffset(39 * 1024 + 1023, 63, 7),
            39 * uint64_t{65536} * 1024 * 513 + ((63 * 8 + 7) * uint64_t{1024} + 1023) * 65536);
  EXPECT_EQ(store.SummaryOffset(40 * 1024 - 1), 40 * GroupBytes(g) - 65536);
}

TEST(BlockStore, WrongGeometriesAreRefused) {
  EXPECT_FALSE(CheckGeometry({0, 1, 4096, 0, 16}).ok());
  EXPECT_FALSE(CheckGeometry({1, 1, 4095, 0, 16}).ok());
  EXPECT_FALSE(CheckGeometry({1, 1, 4096, 1, 16}).ok());
  EXPECT_FALSE(CheckGeometry({65536, 65536, 4096, 0, 16}).ok());
  EXPECT_FALSE(CheckGeometry({1, 1, UINT64_MAX - 4095, 0, 16}).ok());
  EXPECT_TRUE(CheckGeometry({32, 2, 32768, 4096, 16}).ok());
}

// --- Tiers: whatever the budget, policy, order and delay, the answers are those of a pool that holds everything.

struct Setting {
  int64_t slots = 100000;
  bool lookahead = false;
  int max_delay = 0;
  RetentionPolicy policy = RetentionPolicy::kFrequency;
  uint32_t seed = 1;
};

std::unique_ptr<ToyModel> NewModel(const ToyShape& shape, const Setting& s, FakeAsyncFile** file = nullptr) {
  auto fake = std::make_unique<FakeAsyncFile>(std::make_shared<FakeDisk>(), s.seed);
  fake->max_delay = s.max_delay;
  if (file != nullptr) *file = fake.get();
  const int64_t all = int64_t{shape.layers} * shape.heads * shape.num_blocks;
  auto model =
      std::make_unique<ToyModel>(shape, std::min(s.slots, all), std::move(fake), RetentionOptions{s.policy, 4});
  model->lookahead = s.lookahead;
  return model;
}

// Two sequences: chunks, single rows, then one alone.
std::vector<uint64_t> RunTwo(const ToyShape& shape, const Setting& s, TierCounters* total = nullptr) {
  auto model = NewModel(shape, s);
  ToySequence a = model->NewSequence(), b = model->NewSequence();
  std::vector<uint64_t> answers;
  const auto step = [&](size_t na, size_t nb, uint64_t salt) {
    const Status status = model->Step({{&a, ToyTokens(na, salt)}, {&b, ToyTokens(nb, salt + 500)}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    answers.push_back(a.answer);
    answers.push_back(b.answer);
  };
  for (uint64_t i = 0; i < 6; ++i) step(7, 3, i);
  for (uint64_t i = 0; i < 30; ++i) step(1, 1, 100 + i);
  for (uint64_t i = 0; i < 30; ++i) step(1, 0, 200 + i);
  if (total != nullptr) *total = model->tiers->Total();
  return answers;
}

TEST(KvTiers, OffloadedEqualsResidentForEveryBudgetPolicyAndDelay) {
  const ToyShape shape;
  const auto resident = RunTwo(shape, {});
  const int64_t least = MinimumPages(shape.needs(10, true));
  for (const RetentionPolicy policy : {RetentionPolicy::kLru, RetentionPolicy::kTurnLru, RetentionPolicy::kFrequency}) {
    for (const int64_t slots : {least, least + 1, least + 17, least * 2}) {
      for (const bool lookahead : {false, true}) {
        for (const int delay : {0, 40}) {
          TierCounters total;
          EXPECT_EQ(RunTwo(shape, {slots, lookahead, delay, policy, static_cast<uint32_t>(slots + delay)}, &total),
                    resident)
              << slots << " slots";
          EXPECT_EQ(total.hit + total.missed, total.selected);
          EXPECT_EQ(total.bytes_read, total.missed * shape.page_bytes);
          EXPECT_EQ(total.failed, 0u);
        }
      }
    }
  }
}

TEST(KvTiers, ASmallPoolReadsBackAndABigOneDoesNot) {
  const ToyShape shape;
  TierCounters small, big;
  RunTwo(shape, {MinimumPages(shape.needs(10, false)), false}, &small);
  RunTwo(shape, {}, &big);
  EXPECT_GT(small.missed, 50u);
  EXPECT_GT(small.evicted, 50u);
  EXPECT_GT(small.hit, 50u);
  EXPECT_EQ(big.missed, 0u);
  EXPECT_EQ(big.evicted, 0u);
  EXPECT_EQ(big.selected, small.selected);
  EXPECT_GT(big.bytes_written, 0u) << "written behind all the same, so that room can be made at once";
}

// Random lives: sequences start, grow by chunks and rows, fork, are cut anywhere and end, over one small pool with a
// slow, reordering disk. A twin with all memory must give the same answers.
TEST(KvTiers, RandomLivesOfManySequencesEqualResidentOnes) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    ToyShape shape;
    shape.num_blocks = 48;
    shape.picks = 1;
    const int64_t least = MinimumPages(shape.needs(6, true)) + 3 * shape.heads * shape.layers;  // four unfilled blocks
    auto small = NewModel(shape, {least, seed % 2 == 0, 20, RetentionPolicy::kFrequency, seed});
    auto big = NewModel(shape, {});
    std::vector<std::pair<ToySequence, ToySequence>> live;
    std::mt19937 rng(seed);
    for (int i = 0; i < 400; ++i) {
      const size_t pick = live.empty() ? 0 : rng() % live.size();
      switch (live.empty() ? 0 : rng() % 12) {
        case 0:
          if (live.size() < 4) live.emplace_back(small->NewSequence(), big->NewSequence());
          break;
        case 1:
          if (live.size() < 4) {
            auto& [s, b] = live[pick];
            const int64_t at = static_cast<int64_t>(rng() % static_cast<uint32_t>(s.cache.length() + 1));
            ToySequence fs{s.cache.Fork(at), s.answer}, fb{b.cache.Fork(at), b.answer};
            live.emplace_back(std::move(fs), std::move(fb));
          }
          break;
        case 2: {
          auto& [s, b] = live[pick];
          const int64_t at = static_cast<int64_t>(rng() % static_cast<uint32_t>(s.cache.length() + 1));
          s.cache.Truncate(at);
          b.cache.Truncate(at);
          break;
        }
        case 3:
          if (rng() % 3 == 0) live.erase(live.begin() + static_cast<int64_t>(pick));
          break;
        default: {
          auto& [s, b] = live[pick];
          const auto tokens = ToyTokens(rng() % 3 == 0 ? rng() % 7 : 1, rng());
          if (s.cache.BlocksNeeded(static_cast<int64_t>(tokens.size())) > small->pool.num_free()) {
            live.erase(live.begin() + static_cast<int64_t>(pick));
            break;
          }
          const Status status = small->Step({{&s, tokens}});
          ASSERT_TRUE(status.ok()) << seed << " " << i << ": " << status.ToString();
          ASSERT_TRUE(big->Step({{&b, tokens}}).ok());
          ASSERT_EQ(s.answer, b.answer) << "seed " << seed << ", operation " << i;
        }
      }
    }
    EXPECT_GT(small->tiers->Total().missed, 0u);
    live.clear();
    ASSERT_TRUE(small->tiers->Follow(small->pool).ok());
    EXPECT_EQ(small->tiers->store(0).num_used(), 0) << "every place in the file is free again";
  }
}

TEST(KvTiers, ARealFileGivesTheSameThroughEveryEngine) {
  const ToyShape shape;
  const auto resident = RunTwo(shape, {});
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kThreads}) {
    testing::TempDir dir;
    AsyncFileOptions o;
    o.engine = engine;
    auto scratch = BlockStore::CreateScratch(dir.Path("kv"), shape.geometry(), o, UINT64_MAX);
    ASSERT_TRUE(scratch.ok()) << scratch.status().ToString();
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the scratch file has no name";
    auto file = OpenAsyncFile(NewFile::Create(dir.Path("kv"))->TakeNameless(), dir.Path("kv"), o);
    ToyModel model(shape, MinimumPages(shape.needs(10, true)), std::move(file).value());
    ToySequence a = model.NewSequence(), b = model.NewSequence();
    std::vector<uint64_t> answers;
    const auto step = [&](size_t na, size_t nb, uint64_t salt) {
      ASSERT_TRUE(model.Step({{&a, ToyTokens(na, salt)}, {&b, ToyTokens(nb, salt + 500)}}).ok());
      answers.push_back(a.answer);
      answers.push_back(b.answer);
    };
    for (uint64_t i = 0; i < 6; ++i) step(7, 3, i);
    for (uint64_t i = 0; i < 30; ++i) step(1, 1, 100 + i);
    for (uint64_t i = 0; i < 30; ++i) step(1, 0, 200 + i);
    EXPECT_EQ(answers, resident);
    EXPECT_GT(model.tiers->Total().missed, 0u);
  }
}

// --- Budgets.

TEST(KvTiers, ASequenceThatCannotHaveItsMinimumIsToldTheNumber) {
  const ToyShape shape;
  auto model = NewModel(shape, {100});
  EXPECT_TRUE(model->tiers->Reserve(60).ok());
  const Status refused = model->tiers->Reserve(41);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(
      refused.message(),
      "a sequence needs at least 167936 bytes of KV memory; 163840 of 409600 are not promised to others: a memory "
      "of 413696 would do");
  EXPECT_TRUE(model->tiers->Reserve(40).ok()) << "the refusal took nothing";
  model->tiers->Unreserve(60);
  EXPECT_TRUE(model->tiers->Reserve(60).ok());
}

TEST(KvTiers, ARequestBeyondMemoryIsToldTheNumberAndChangesNothing) {
  const ToyShape shape;
  auto model = NewModel(shape, {24});
  ToySequence a = model->NewSequence();
  for (uint64_t i = 0; i < 41; ++i) ASSERT_TRUE(model->Step({{&a, ToyTokens(1, i)}}).ok()) << i;
  KvTiers& tiers = *model->tiers;
  std::vector<int32_t> pages;
  for (const int32_t b : a.cache.blocks()) pages.insert(pages.end(), {b * 2, b * 2 + 1});
  // 24 slots, 6 of them with the unfilled block of three layers and two heads.
  const auto fits = tiers.Request(0, std::span(pages).first(18));
  ASSERT_TRUE(fits.ok());
  const TierCounters before = tiers.counters(1);
  const auto refused = tiers.Request(1, std::span(pages).first(3));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(), "all 98304 bytes of KV memory are in use; 110592 bytes would do for this step");
  EXPECT_EQ(tiers.counters(1).selected, before.selected);
  ASSERT_TRUE(tiers.Wait(*fits).ok());
  for (size_t b = 0; b < 9; ++b) EXPECT_TRUE(model->Holds(0, a.cache, b, 0) && model->Holds(0, a.cache, b, 1));
  tiers.Finish(*fits);
  EXPECT_TRUE(model->Step({{&a, ToyTokens(1, 99)}}).ok());
}

TEST(KvTiers, APoolTooSmallForAnythingIsRefused) {
  const ToyShape shape;
  alignas(4096) static std::byte memory[6 * 4096];
  auto store = std::make_unique<BlockStore>(std::make_unique<FakeAsyncFile>(), shape.geometry(), 0, UINT64_MAX, false);
  const auto tiers = KvTiers::Create({3, 2, 64, 4096, {}}, memory, std::move(store));
  EXPECT_EQ(tiers.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(tiers.status().message(), HasSubstr("at least 7 pages, 28672 bytes, are needed"));
}

// --- Requests.

TEST(KvTiers, TwoRequestsShareAPageOnItsWay) {
  const ToyShape shape;
  FakeAsyncFile* file = nullptr;
  auto model = NewModel(shape, {24, false, 1000}, &file);
  ToySequence a = model->NewSequence();
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(model->Step({{&a, ToyTokens(1, i)}}).ok());
  KvTiers& tiers = *model->tiers;
  int32_t away = -1;
  for (const int32_t b : a.cache.blocks()) {
    if (tiers.PageData(2, b * 2) == nullptr) away = b * 2;
  }
  ASSERT_GE(away, 0);
  const TierCounters before = tiers.counters(2);
  const auto first = tiers.Request(2, {&away, 1});
  const auto second = tiers.Request(2, {&away, 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(tiers.PageData(2, away), nullptr) << "not visible before it is there";
  EXPECT_EQ(tiers.counters(2).missed, before.missed + 1);
  EXPECT_EQ(tiers.counters(2).hit, before.hit + 1);
  ASSERT_TRUE(tiers.Wait(*second).ok()) << "the one that did not start the read";
  EXPECT_NE(tiers.PageData(2, away), nullptr);
  tiers.Finish(*second);
  ASSERT_TRUE(tiers.Wait(*first).ok());
  tiers.Finish(*first);
}

TEST(KvTiers, NeighboursOfAListAreOneRead) {
  ToyShape shape;
  shape.layers = 1;
  testing::TempDir dir;
  AsyncFileOptions o;
  o.engine = IoEngine::kThreads;
  auto file = OpenAsyncFile(NewFile::Create(dir.Path("kv"))->TakeNameless(), "kv", o).value();
  AsyncFile* raw = file.get();
  ToyModel model(shape, 24, std::move(file));
  ToySequence a = model.NewSequence();
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(model.Step({{&a, ToyTokens(4, i)}}).ok());
  ASSERT_TRUE(model.tiers->Flush(a.cache.blocks()).ok()) << "so that every page may leave";
  std::vector<int32_t> filler, list;
  for (const int32_t b : a.cache.blocks().subspan(8)) filler.insert(filler.end(), {b * 2, b * 2 + 1});
  ASSERT_EQ(filler.size(), 24u) << "all of memory";
  auto ticket = model.tiers->Request(0, filler);
  ASSERT_TRUE(ticket.ok() && model.tiers->Wait(*ticket).ok());
  model.tiers->Finish(*ticket);
  for (const int32_t b : {3, 1, 0, 2}) list.push_back(a.cache.blocks()[static_cast<size_t>(b)] * 2);
  for (const int32_t page : list) ASSERT_EQ(model.tiers->PageData(0, page), nullptr);
  const uint64_t before = raw->counters().read_operations;
  ticket = model.tiers->Request(0, list);
  ASSERT_TRUE(ticket.ok() && model.tiers->Wait(*ticket).ok());
  EXPECT_EQ(raw->counters().read_operations, before + 1) << "four pages of one group and head";
  for (size_t b = 0; b < 4; ++b) EXPECT_TRUE(model.Holds(0, a.cache, b, 0));
  model.tiers->Finish(*ticket);
}

TEST(KvTiers, AskingForWhatWasNeverWrittenOrDoesNotExistIsAnError) {
  const ToyShape shape;
  auto model = NewModel(shape, {});
  for (const int32_t page : {-1, 128, 7}) {
    const auto ticket = model->tiers->Request(0, {&page, 1});
    EXPECT_EQ(ticket.status().code(), StatusCode::kInternal) << page;
  }
  const int32_t block = 3;
  EXPECT_EQ(model->tiers->BeginAppend(0, {&block, 1}).code(), StatusCode::kInternal) << "not begun";
}

// --- Faults of the file.

TEST(KvTiers, AFlippedBitFailsOnlyTheRequestsThatNeedThePage) {
  const ToyShape shape;
  FakeAsyncFile* file = nullptr;
  auto model = NewModel(shape, {24}, &file);
  ToySequence a = model->NewSequence();
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(model->Step({{&a, ToyTokens(1, i)}}).ok());
  KvTiers& tiers = *model->tiers;
  std::vector<int32_t> away;
  for (const int32_t b : a.cache.blocks()) {
    if (tiers.PageData(1, b * 2) == nullptr) away.push_back(b * 2);
  }
  ASSERT_GE(away.size(), 3u);
  const BlockPlace place = tiers.place(away[1] / 2);
  file->disk().bytes[tiers.store(0).PageOffset(place.file_block, 1, 0) + 100] ^= std::byte{4};
  const auto bad = tiers.Request(1, std::span(away).first(3));
  ASSERT_TRUE(bad.ok());
  const Status status = tiers.Wait(*bad);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("the KV page of block " + std::to_string(away[1] / 2) + ", layer 1, at "));
  EXPECT_THAT(status.message(), HasSubstr(" of 'fake' does not match its checksum"));
  EXPECT_NE(tiers.PageData(1, away[0]), nullptr) << "its neighbours came";
  EXPECT_EQ(tiers.PageData(1, away[1]), nullptr);
  const auto good = tiers.Request(1, std::vector<int32_t>{away[0], away[2]});
  ASSERT_TRUE(good.ok() && tiers.Wait(*good).ok());
  tiers.Finish(*good);
  EXPECT_EQ(tiers.counters(1).failed, 1u);
  file->disk().bytes[tiers.store(0).PageOffset(place.file_block, 1, 0) + 100] ^= std::byte{4};
  const auto again = tiers.Request(1, std::span(away).subspan(1, 1));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(tiers.Wait(*again).ok()) << "a later request reads it again";
  tiers.Finish(*again);
}

TEST(KvTiers, AReadErrorOfOnePageLeavesTheOthersAlone) {
  const ToyShape shape;
  FakeAsyncFile* file = nullptr;
  auto model = NewModel(shape, {24}, &file);
  ToySequence a = model->NewSequence();
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(model->Step({{&a, ToyTokens(1, i)}}).ok());
  KvTiers& tiers = *model->tiers;
  std::vector<int32_t> away;
  for (const int32_t b : a.cache.blocks()) {
    if (tiers.PageData(1, b * 2) == nullptr) away.push_back(b * 2);
  }
  ASSERT_GE(away.size(), 3u);
  const uint64_t bad = tiers.store(0).PageOffset(tiers.place(away[1] / 2).file_block, 1, 0);
  file->fault = [bad](IoKind kind, const IoPiece& p) {
    return kind == IoKind::kRead && p.offset == bad ? DataLoss("cannot read 'fake': Input/output error") : OkStatus();
  };
  const auto one = tiers.Request(1, std::span(away).first(3));
  const auto two = tiers.Request(1, std::vector<int32_t>{away[0], away[2]});
  const auto three = tiers.Request(1, std::vector<int32_t>{away[1]});
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  EXPECT_EQ(tiers.Wait(*one).message(), "cannot read 'fake': Input/output error");
  EXPECT_TRUE(tiers.Wait(*two).ok()) << "it joined the reads of the first, but not the broken one";
  EXPECT_EQ(tiers.Wait(*three).code(), StatusCode::kDataLoss) << "it joined the broken one";
  tiers.Finish(*two);
  file->fault = nullptr;
  EXPECT_TRUE(model->Step({{&a, ToyTokens(2, 70)}}).ok());
}

TEST(KvTiers, ADiskThatFillsUpStopsOnlyWhatNeedsIt) {
  const ToyShape shape;
  FakeAsyncFile* file = nullptr;
  auto model = NewModel(shape, {60}, &file);
  auto twin = NewModel(shape, {});
  ToySequence a = model->NewSequence(), b = twin->NewSequence();
  for (uint64_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(model->Step({{&a, ToyTokens(1, i)}}).ok());
    ASSERT_TRUE(twin->Step({{&b, ToyTokens(1, i)}}).ok());
  }
  file->fault = [](IoKind kind, const IoPiece&) {
    return kind == IoKind::kWrite ? ResourceExhausted("cannot write 'fake': No space left on device") : OkStatus();
  };
  uint64_t steps = 16;
  Status status;
  for (; steps < 200 && status.ok(); ++steps) {
    const int64_t length = a.cache.length();
    const uint64_t answer = a.answer;
    status = model->Step({{&a, ToyTokens(1, steps)}});
    if (status.ok()) {
      ASSERT_TRUE(twin->Step({{&b, ToyTokens(1, steps)}}).ok());
    } else {
      EXPECT_EQ(a.answer, answer);
      a.cache.Truncate(length);
    }
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_EQ(status.message(), "cannot write 'fake': No space left on device");
  EXPECT_GT(steps, 24u) << "memory held out for a while";
  file->fault = nullptr;
  for (uint64_t i = 300; i < 330; ++i) {
    const Status again = model->Step({{&a, ToyTokens(1, i)}});
    ASSERT_TRUE(again.ok()) << again.ToString();
    ASSERT_TRUE(twin->Step({{&b, ToyTokens(1, i)}}).ok());
    EXPECT_EQ(a.answer, b.answer) << "nothing was lost";
  }
}

// --- Steady state.

// The fake disk allocates; this one serves at once from memory that is there.
class PlainFile final : public AsyncFile {
 public:
  explicit PlainFile(size_t bytes) : bytes_(bytes) {}
  IoTicket Start(IoKind kind, std::span<const IoPiece> pieces) override {
    for (const IoPiece& p : pieces) {
      if (kind == IoKind::kRead) {
        std::memcpy(p.data, bytes_.data() + p.offset, p.bytes);
      } else {
        std::memcpy(bytes_.data() + p.offset, p.data, p.bytes);
      }
    }
    return 1;
  }
  bool Done(IoTicket) override { return true; }
  Status Wait(IoTicket) override { return OkStatus(); }
  Status Sync() override { return OkStatus(); }
  StatusOr<uint64_t> Size() const override { return uint64_t{bytes_.size()}; }
  Status Resize(uint64_t) override { return OkStatus(); }
  const IoCounters& counters() const override { return counters_; }
  std::string engine() const override { return "plain"; }
  const std::string& path() const override { return path_; }

 private:
  std::vector<std::byte> bytes_;
  IoCounters counters_;
  std::string path_ = "plain";
};

TEST(KvTiers, AStepAllocatesNothingOnceWarm) {
  const ToyShape shape;
  ToyModel model(shape, 30, std::make_unique<PlainFile>(4 << 20));
  ToySequence a = model.NewSequence();
  for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(model.Step({{&a, ToyTokens(1, i)}}).ok());
  KvTiers& tiers = *model.tiers;
  std::mt19937 rng(1);
  std::vector<int32_t> pages(8);
  const auto blocks = a.cache.blocks();
  int64_t counted = 0;
  for (int step = 0; step < 400; ++step) {
    const int64_t before = testing::CountAllocations();
    tiers.BeginStep();
    FetchTicket ahead;
    for (int32_t l = 0; l < shape.layers; ++l) {
      for (auto& page : pages) page = blocks[rng() % blocks.size()] * 2 + static_cast<int32_t>(rng() % 2);
      const auto ticket = tiers.Request(l, pages);
      ASSERT_TRUE(ticket.ok());
      if (l > 0) {
        ASSERT_TRUE(tiers.Wait(ahead).ok());
        tiers.Finish(ahead);
      }
      ahead = *ticket;
    }
    ASSERT_TRUE(tiers.Wait(ahead).ok());
    tiers.Finish(ahead);
    if (step >= 200) counted += testing::CountAllocations() - before;
  }
  EXPECT_EQ(counted, 0);
  EXPECT_GT(tiers.Total().missed, 1000u) << "it did fetch";
}

}  // namespace
}  // namespace farsight
