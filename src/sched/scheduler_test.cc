#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <memory>

namespace farsight {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  Sequence* New(uint64_t id, int prompt) {
    sequences_.push_back(std::make_unique<Sequence>(id, &pool_, 16));
    Sequence* s = sequences_.back().get();
    s->tokens.assign(static_cast<size_t>(prompt), 1);
    s->prompt_tokens = prompt;
    scheduler_.Add(s);
    return s;
  }
  // What the engine does after a step: a sequence whose tokens are all computed gets its next one.
  static void Finish(const StepPlan& plan) {
    for (const auto& r : plan.rows) {
      if (r.sequence->pending() == 0) r.sequence->tokens.push_back(2);
    }
  }
  static int RowsOf(const StepPlan& plan, const Sequence* s) {
    for (const auto& r : plan.rows) {
      if (r.sequence == s) return r.count;
    }
    return 0;
  }

  BlockPool pool_{8};  // 128 tokens
  Scheduler scheduler_{{.max_sequences = 3, .prefill_chunk = 20}};
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(SchedulerTest, ADraftIsComputedWithItsTokenOrDroppedWhereThereIsNoRoom) {
  Sequence* a = New(1, 10);
  Finish(scheduler_.Plan());
  a->draft = {7, 8, 9};
  StepPlan plan = scheduler_.Plan();
  EXPECT_EQ(RowsOf(plan, a), 4);
  EXPECT_EQ(a->cache.length(), 14);
  EXPECT_EQ(plan.rows[0].Token(0), 2);
  EXPECT_EQ(plan.rows[0].Token(3), 9);
  EXPECT_EQ(plan.rows[0].Position(3), 13);
  a->Commit(0, 1);  // all rejected
  EXPECT_EQ(a->cache.length(), 11);
  a->tokens.push_back(3);
  New(2, 90);  // takes six of the seven blocks that are left
  for (int i = 0; i < 5; ++i) {
    plan = scheduler_.Plan();
    Finish(plan);
    a->tokens.resize(static_cast<size_t>(a->cache.length()) + 1, 3);
  }
  a->tokens.resize(static_cast<size_t>(a->cache.length()) + 1, 3);
  a->draft.assign(64, 5);
  plan = scheduler_.Plan();
  EXPECT_EQ(RowsOf(plan, a), 1);
  EXPECT_TRUE(a->draft.empty());
  EXPECT_TRUE(plan.preempted.empty());
}

TEST_F(SchedulerTest, APromptIsReadInChunksBesideDecode) {
  Sequence* a = New(1, 10);
  Finish(scheduler_.Plan());
  Sequence* b = New(2, 45);
  for (const int expected : {20, 20, 5}) {
    const StepPlan plan = scheduler_.Plan();
    EXPECT_EQ(RowsOf(plan, a), 1) << "decode goes on";
    EXPECT_EQ(RowsOf(plan, b), expected);
    Finish(plan);
  }
  EXPECT_TRUE(b->decoding());
}

TEST_F(SchedulerTest, TheNewestIsPreemptedAndComesBack) {
  Sequence* a = New(1, 60);
  Sequence* b = New(2, 60);
  bool preempted = false;
  for (int i = 0; i < 60; ++i) {
    const StepPlan plan = scheduler_.Plan();
    for (const Sequence* s : plan.preempted) {
      EXPECT_EQ(s, b);
      preempted = true;
      EXPECT_EQ(s->cache.length(), 0);
    }
    ASSERT_GT(RowsOf(plan, a), 0) << "the oldest never waits";
    Finish(plan);
  }
  EXPECT_TRUE(preempted);
  scheduler_.Remove(a);
  a->cache.Truncate(0);
  for (int i = 0; i < 10; ++i) Finish(scheduler_.Plan());
  EXPECT_TRUE(b->decoding()) << "it is computed again once there is room";
}

TEST_F(SchedulerTest, NoMoreThanMaxSequencesRun) {
  for (uint64_t i = 0; i < 5; ++i) New(i, 4);
  EXPECT_EQ(scheduler_.Plan().rows.size(), 3u);
  EXPECT_EQ(scheduler_.num_running(), 3);
}

TEST_F(SchedulerTest, ASequenceLargerThanThePoolGetsNoRowsAndHarmsNobody) {
  Sequence* a = New(1, 200);
  int rows = 0;
  for (int i = 0; i < 20; ++i) rows += RowsOf(scheduler_.Plan(), a);
  EXPECT_LE(rows, 128);
  scheduler_.Remove(a);
  EXPECT_TRUE(scheduler_.empty());
}

}  // namespace
}  // namespace farsight
