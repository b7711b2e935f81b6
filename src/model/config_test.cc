#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

namespace farsight {
namespace {

std::string Config(const std::string& extra) {
  return R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"intermediate_size":128,"num_attention_heads":4,
    "num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":512)" +
         extra + "}";
}

TEST(ConfigFromJson, ReadsALlama) {
  const auto c = ConfigFromJson(Config(R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0)"), "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->head_dim, 16);
  EXPECT_EQ(c->rope.theta, 500000.0);
  EXPECT_EQ(c->attention.policy, AttentionPolicy::kDense);
}

TEST(ConfigFromJson, MiniCpmTopKIncludesTheWindowAndScalesFollowTheDepth) {
  const auto c =
      ConfigFromJson(R"({"model_type":"minicpm","num_hidden_layers":32,"hidden_size":4096,"intermediate_size":16384,
    "num_attention_heads":32,"num_key_value_heads":2,"vocab_size":73448,"max_position_embeddings":65536,"scale_emb":12,
    "scale_depth":1.4,"dim_model_base":256,"rms_norm_eps":1e-6,
    "sparse_config":{"kernel_size":32,"kernel_stride":16,"init_blocks":1,"block_size":64,"window_size":2048,"topk":64,"dense_len":8192}})",
                     "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->embedding_scale, 12);
  EXPECT_NEAR(c->residual_scale, 0.24748737, 1e-8);
  EXPECT_NEAR(c->logit_scale, 1.0 / 16, 1e-12);
  EXPECT_EQ(c->attention.policy, AttentionPolicy::kInfLlm2);
  EXPECT_EQ(c->attention.top_k_blocks, 96);
  EXPECT_EQ(c->attention.dense_below, 8192);
}

TEST(ConfigFromJson, WhatWeCannotRunIsRefusedByName) {
  const auto message = [](const std::string& json) { return ConfigFromJson(json, "config.json").status().message(); };
  EXPECT_NE(message(R"({"model_type":"mamba"})").find("'mamba'"), std::string::npos);
  EXPECT_NE(message(Config(R"(,"hidden_act":"gelu")")).find("'gelu'"), std::string::npos);
  EXPECT_NE(message(Config(R"(,"rope_scaling":{"rope_type":"dynamic","factor":2.0})")).find("'dynamic'"),
            std::string::npos);
  EXPECT_NE(message(Config(R"(,"layer_types":["full_attention","sliding_attention"])")).find("sliding_attention"),
            std::string::npos);
  EXPECT_NE(message(Config(R"(,"layer_types":1)")).find("layer_types"), std::string::npos);
  EXPECT_EQ(message(Config(R"(,"layer_types":["full_attention","full_attention"])")), "");
  EXPECT_NE(message("[1]").find("object"), std::string::npos);
  EXPECT_NE(message(R"({"model_type":"llama"})").find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(message(Config(R"(,"head_dim":2.5)")).find("head_dim"), std::string::npos);
}

TEST(ResolveRope, Llama3BlendsBetweenItsBounds) {
  RopeConfig r;
  r.theta = 500000;
  r.dims = 64;
  r.scaling = RopeScaling::kLlama3;
  r.factor = 32;
  r.low_freq_factor = 1;
  r.high_freq_factor = 4;
  r.original_context = 8192;
  const auto t = ResolveRope(r, 131072, 131072);
  ASSERT_TRUE(t.ok());
  EXPECT_DOUBLE_EQ(t->inv_freq[0], 1.0) << "short wavelengths stay";
  EXPECT_NEAR(t->inv_freq[31], std::pow(500000.0, -62.0 / 64) / 32, 1e-15) << "long ones are divided";
  for (size_t i = 1; i < 32; ++i) EXPECT_LT(t->inv_freq[i], t->inv_freq[i - 1]);
}

TEST(ResolveRope, LongRopeFixesItsListByTheEnginesContext) {
  RopeConfig r;
  r.dims = 4;
  r.scaling = RopeScaling::kLongRope;
  r.original_context = 1000;
  r.short_factors = {1, 2};
  r.long_factors = {4, 8};
  EXPECT_DOUBLE_EQ(ResolveRope(r, 1000, 1000)->inv_freq[1], 0.01 / 2);
  EXPECT_DOUBLE_EQ(ResolveRope(r, 1000, 1001)->inv_freq[1], 0.01 / 8);
  EXPECT_DOUBLE_EQ(ResolveRope(r, 1000, 1000)->magnitude, 1.0);
  EXPECT_NEAR(ResolveRope(r, 4000, 1000)->magnitude, std::sqrt(1 + std::log(4.0) / std::log(1000.0)), 1e-12);
}

TEST(ResolveRope, YarnMagnitude) {
  RopeConfig r;
  r.dims = 128;
  r.scaling = RopeScaling::kYarn;
  r.factor = 4;
  r.original_context = 32768;
  EXPECT_NEAR(ResolveRope(r, 131072, 131072)->magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
  r.mscale = 1;
  r.mscale_all_dim = 1;
  EXPECT_DOUBLE_EQ(ResolveRope(r, 131072, 131072)->magnitude, 1.0);
  r.attention_factor = 1.5;
  EXPECT_DOUBLE_EQ(ResolveRope(r, 131072, 131072)->magnitude, 1.5);
}

}  // namespace
}  // namespace farsight
