#include "attention/attention_plan.h"

#include <gtest/gtest.h>

namespace farsight {
namespace {

TEST(AttentionPlan, ADenseTrainedModelRunsDenseUnlessAskedByName) {
  AttentionOptions trained;
  trained.policy = AttentionPolicy::kDense;
  auto plan = MakeAttentionPlan({}, trained, 4);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->options.policy, AttentionPolicy::kDense);
  EXPECT_FALSE(plan->Selects());
  EXPECT_FALSE(plan->RowSelects(100000, true));
}

TEST(AttentionPlan, AModelTrainedSparseRunsAsItWasTrained) {
  AttentionOptions trained;
  trained.policy = AttentionPolicy::kInfLlm2;
  trained.phase = SparsePhase::kAll;
  trained.top_k_blocks = 8;
  trained.dense_layers = 0;
  auto plan = MakeAttentionPlan({}, trained, 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->top_k, 8);
  EXPECT_EQ(plan->sources[0], ListSource::kOwnQuery);
  EXPECT_TRUE(plan->RowSelects(0, false));
}

TEST(AttentionPlan, PhaseThresholdAndDenseLayersDecideWhoSelects) {
  AttentionOptions asked;
  asked.policy = AttentionPolicy::kSketch;
  asked.dense_below = 1000;
  asked.dense_layers = 2;
  asked.local_window = 130;
  auto plan = MakeAttentionPlan(asked, {}, 4);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->local_blocks, 2);
  EXPECT_EQ(plan->sources[1], ListSource::kAll);
  EXPECT_EQ(plan->sources[2], ListSource::kOwnQuery);
  EXPECT_FALSE(plan->RowSelects(5000, false)) << "prefill rows are dense in the decode phase";
  EXPECT_FALSE(plan->RowSelects(998, true)) << "999 tokens are below the threshold";
  EXPECT_TRUE(plan->RowSelects(999, true));
}

TEST(AttentionPlan, InfinigenLooksAheadWhereThereIsALayerBefore) {
  AttentionOptions asked;
  asked.policy = AttentionPolicy::kInfinigen;
  asked.dense_layers = 0;
  auto plan = MakeAttentionPlan(asked, {}, 3);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->summary.kind, SummaryKind::kSketch);
  EXPECT_EQ(plan->sources[0], ListSource::kOwnQuery);
  EXPECT_EQ(plan->sources[2], ListSource::kInputBefore);
}

TEST(AttentionPlan, AStaleListIsThatOfTheLayerBefore) {
  AttentionOptions asked;
  asked.policy = AttentionPolicy::kStale;
  asked.dense_layers = 1;
  auto plan = MakeAttentionPlan(asked, {}, 4);
  ASSERT_TRUE(plan.ok());
  const std::vector<ListSource> want = {ListSource::kAll, ListSource::kOwnQuery, ListSource::kListBefore,
                                        ListSource::kListBefore};
  EXPECT_EQ(plan->sources, want);
}

TEST(AttentionPlan, BadConstantsAreRefusedWithTheirValue) {
  AttentionOptions asked;
  asked.policy = AttentionPolicy::kInfLlm2;
  asked.kernel_stride = 24;
  const auto plan = MakeAttentionPlan(asked, {}, 4);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("24"), std::string::npos);
}

}  // namespace
}  // namespace farsight
