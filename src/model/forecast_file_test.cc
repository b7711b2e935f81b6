#include "model/forecast_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/safetensors.h"
#include "io/testing/gguf_writer.h"
#include "io/testing/safetensors_writer.h"
#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

ModelConfig Config() {
  ModelConfig c;
  c.architecture = "llama";
  c.layers = 3;
  c.hidden = 5;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 4;
  return c;
}

Forecast Made() {
  Forecast f;
  f.info.fingerprint = "0123456789abcdef";
  f.info.keys = SummaryKind::kSketch;
  f.info.rotated = false;
  f.info.block_size = 32;
  f.info.sketch_bits = 4;
  f.info.training = {{"steps", "7"}, {"teacher", "fine"}};
  for (int l = 0; l < 3; ++l) {
    std::vector<float> w;
    for (int i = 0; i < 40; ++i) w.push_back(0.25f * static_cast<float>(i - 20) + static_cast<float>(l));
    f.projections.push_back(w);
  }
  return f;
}

TEST(ForecastFile, PublishedNames) {
  EXPECT_EQ(ForecastTensorName(0), "model.layers.0.self_attn.q_curr_proj.weight");
  EXPECT_EQ(ForecastTensorName(1), "model.layers.0.self_attn.q_future_proj.weight");
  EXPECT_EQ(ForecastTensorName(31), "model.layers.30.self_attn.q_future_proj.weight");
}

TEST(ForecastFile, ReadsBackWhatWasSaved) {
  const TempDir dir;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string path = dir.Path("f.safetensors");
    ASSERT_TRUE(SaveForecast(path, Made(), Config(), dtype).ok());
    const auto got = LoadForecast(path, Config(), "0123456789abcdef");
    ASSERT_TRUE(got.ok()) << got.status().message();
    const Forecast want = Made();
    EXPECT_EQ(got->projections, want.projections);  // quarters survive every type
    EXPECT_EQ(got->info.fingerprint, want.info.fingerprint);
    EXPECT_EQ(got->info.keys, want.info.keys);
    EXPECT_EQ(got->info.rotated, want.info.rotated);
    EXPECT_EQ(got->info.block_size, 32);
    EXPECT_EQ(got->info.sketch_bits, 4);
    EXPECT_EQ(got->info.training, want.info.training);
  }
}

TEST(ForecastFile, AProjectionForEachQueryHead) {
  const TempDir dir;
  const std::string path = dir.Path("f.safetensors");
  ModelConfig config = Config();
  config.heads = 3 * config.kv_heads;
  Forecast wide = Made();
  for (auto& p : wide.projections) p.resize(3 * p.size(), 0.5f);
  ASSERT_TRUE(SaveForecast(path, wide, config, DType::kF32).ok());
  const auto got = LoadForecast(path, config, "0123456789abcdef");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->Heads(config), config.heads);
  EXPECT_EQ(got->projections, wide.projections);
  wide.projections[1].resize(Made().projections[1].size());
  EXPECT_FALSE(SaveForecast(path, wide, config, DType::kF32).ok());
}

TEST(ForecastFile, WhatDoesNotFitIsRefused) {
  const TempDir dir;
  const std::string path = dir.Path("f.safetensors");
  ASSERT_TRUE(SaveForecast(path, Made(), Config(), DType::kBF16).ok());
  EXPECT_THAT(LoadForecast(path, Config(), "ffffffffffffffff").status().message(), HasSubstr("another model"));
  ModelConfig wider = Config();
  wider.hidden = 6;
  EXPECT_THAT(LoadForecast(path, wider, "0123456789abcdef").status().message(),
              HasSubstr("has the shape [8, 5], but the model asks for [8, 6]"));
  ModelConfig deeper = Config();
  deeper.layers = 4;
  EXPECT_THAT(LoadForecast(path, deeper, "0123456789abcdef").status().message(), HasSubstr("layers.2.self_attn"));
  EXPECT_EQ(LoadForecast(dir.Path("none"), Config(), "").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(LoadForecast(dir.Write("text", "hello"), Config(), "").ok());

  Forecast broken = Made();
  broken.projections[1][3] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(SaveForecast(path, broken, Config(), DType::kF32).ok());
  EXPECT_THAT(LoadForecast(path, Config(), "0123456789abcdef").status().message(), HasSubstr("not finite"));
  broken.projections.pop_back();
  EXPECT_FALSE(SaveForecast(path, broken, Config(), DType::kF32).ok());
}

testing::SafetensorsWriter Published(const std::string& metadata) {
  testing::SafetensorsWriter w;
  if (!metadata.empty()) w.Metadata(metadata);
  for (const char* name : {"0.self_attn.q_curr_proj", "0.self_attn.q_future_proj", "1.self_attn.q_future_proj",
                           "2.self_attn.q_future_proj"}) {
    w.AddTensor(std::string("model.layers.") + name + ".weight", "BF16", {8, 5}, std::string(80, '\0'));
  }
  return w;
}

TEST(ForecastFile, PublishedFilesHaveNoMetadata) {
  const TempDir dir;
  const auto got = LoadForecast(dir.Write("a.safetensors", Published("").Build()), Config(), "0123456789abcdef");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->projections.size(), 3u);
  EXPECT_EQ(got->info.fingerprint, "");
  EXPECT_EQ(got->info.keys, SummaryKind::kPooledKeys);
  EXPECT_TRUE(got->info.rotated);
}

TEST(ForecastFile, BrokenMetadataIsNamed) {
  const TempDir dir;
  const auto error = [&](const std::string& metadata) {
    return LoadForecast(dir.Write("a.safetensors", Published(metadata).Build()), Config(), "").status().message();
  };
  EXPECT_THAT(error(R"({"format":"farsight-forecast-9"})"), HasSubstr("farsight-forecast-9"));
  EXPECT_THAT(error(R"({"keys":"tea leaves"})"), HasSubstr("tea leaves"));
  EXPECT_THAT(error(R"({"rotated":"perhaps"})"), HasSubstr("perhaps"));
  EXPECT_THAT(error(R"({"block_size":"-4"})"), HasSubstr("block_size"));
  EXPECT_THAT(error(R"({"kernel_size":"12x"})"), HasSubstr("kernel_size"));
}

TEST(ForecastFile, ReadsGguf) {
  const TempDir dir;
  testing::GgufWriter w;
  w.String("general.architecture", "forecast").String("keys", "sketch").U32("sketch_bits", 1);
  for (int l = 0; l < 3; ++l) w.AddTensor(ForecastTensorName(l), DType::kF32, {8, 5}, std::string(160, '\0'));
  const auto got = LoadForecast(dir.Write("f.gguf", w.Build()), Config(), "0123456789abcdef");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->info.keys, SummaryKind::kSketch);
  EXPECT_EQ(got->info.sketch_bits, 1);
}

std::string FingerprintOf(const testing::SafetensorsWriter& w) {
  const std::string bytes = w.Build();
  const auto file = ParseSafetensors(std::as_bytes(std::span(bytes)), "test");
  EXPECT_TRUE(file.ok());
  return ModelFingerprint(**file);
}

TEST(ModelFingerprint, ChangesWithNamesShapesAndBytesOnly) {
  const auto make = [](const char* name, std::vector<int64_t> shape, char fill, const char* metadata) {
    testing::SafetensorsWriter w;
    std::string data(40000, 'a');
    data[39999] = fill;
    w.Metadata(metadata).AddTensor(name, "F32", shape, data).AddTensor("other", "BF16", {1}, "xy");
    return FingerprintOf(w);
  };
  const std::string base = make("w", {100, 100}, 'a', R"({"a":"b"})");
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(make("w", {100, 100}, 'a', R"({"a":"c"})"), base);
  EXPECT_NE(make("v", {100, 100}, 'a', R"({"a":"b"})"), base);
  EXPECT_NE(make("w", {10000}, 'a', R"({"a":"b"})"), base);
  EXPECT_NE(make("w", {100, 100}, 'z', R"({"a":"b"})"), base);
}

}  // namespace
}  // namespace farsight
