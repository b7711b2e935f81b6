#include "spec/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "io/testing/temp_dir.h"

namespace farsight {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Profile Sample() {
  Profile p;
  p.of = {"nsa 35M \"q8\"", "2 cores"};
  VerifyMode mode;
  mode.order = NodeOrder::kDepthFirst;
  mode.group = 4;
  mode.shared_list = true;
  mode.refresh = {1, 0, 0, 1};
  p.draft = {{DrafterKind::kModel, 4096, 1, 7, 123.5, 150}, {DrafterKind::kSuffix, 4096, 2, 7, 3, 4}};
  p.verify = {{VerifyMode(), 4096, 1, 1, 1000, 1100, 0}, {mode, 16384, 8, 64, 1e5, 2e5, 0.75}};
  p.fixed = {{0, 1, 12.25}};
  p.acceptance = {{DrafterKind::kSuffix, 4096, 0.25, 0.5, 0.875, {{0.5, 0.125}, {}, {0.75}}}};
  p.quality = {{mode, 16384, 5000, 0.001, 0.0005, 0.25, 0.125, 0.0625}};
  return p;
}

TEST(Profile, SurvivesTheFile) {
  const testing::TempDir dir;
  const std::string path = dir.Path("p.json");
  ASSERT_TRUE(WriteProfile(path, Sample()).ok());
  const auto read = ReadProfile(path, Sample().of);
  ASSERT_EQ(read.status().message(), "");
  EXPECT_EQ(*read, Sample());
  EXPECT_EQ(*ProfileFromJson(ProfileToJson(Profile()), "it"), Profile());
}

TEST(Profile, ForeignOnesAreRefused) {
  const testing::TempDir dir;
  const std::string path = dir.Path("p.json");
  ASSERT_TRUE(WriteProfile(path, Sample()).ok());
  const auto message = [&](Fingerprint of) { return ReadProfile(path, of).status().message(); };
  EXPECT_THAT(message({"other", "2 cores"}), HasSubstr("is of the model 'nsa 35M \"q8\"', not of 'other'"));
  EXPECT_THAT(message({Sample().of.model, "4 cores"}), HasSubstr("is of the machine '2 cores', not of '4 cores'"));
  EXPECT_EQ(ReadProfile(dir.Path("none.json"), {}).status().code(), StatusCode::kNotFound);
}

TEST(Profile, BrokenOnesGetOneSentence) {
  const std::string good = ProfileToJson(Sample());
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto read = ProfileFromJson(text, "the profile");
    EXPECT_FALSE(read.ok()) << from;
    EXPECT_EQ(read.status().code(), StatusCode::kDataLoss) << from;
    EXPECT_THAT(read.status().message(), StartsWith("the profile"));
    return read.status().message();
  };
  EXPECT_THAT(message("farsight-profile", "other"), HasSubstr("is no profile"));
  EXPECT_THAT(message("\"version\": 2", "\"version\": 3"), HasSubstr("of version 3, but this program reads version 2"));
  EXPECT_THAT(message("\"version\": 2", "\"version\": \"2\""), HasSubstr("version must be a whole number"));
  EXPECT_THAT(message("\"machine\"", "\"machina\""), HasSubstr("has no field \"machine\""));
  EXPECT_THAT(message("\"model\"", "\"more\": 1, \"model\""), HasSubstr("has a field that no version 2 profile has"));
  EXPECT_THAT(message("\"nodes\": 7", "\"nodes\": -7"), HasSubstr("draft[0] nodes must be a whole number from 0 to"));
  EXPECT_THAT(message("\"nodes\": 7", "\"nodes\": 7.5"), HasSubstr("nodes must be a whole number"));
  EXPECT_THAT(message("\"nodes\": 7", "\"nodes\": 18446744073709551615"), HasSubstr("nodes must be a whole number"));
  EXPECT_THAT(message("123.5", "\"fast\""), HasSubstr("median_us must be a number"));
  EXPECT_THAT(message("123.5", "-1"), HasSubstr("median_us must be a number from 0"));
  EXPECT_THAT(message("123.5", "1e999"), HasSubstr(""));
  EXPECT_THAT(message("1000.0", "0"), HasSubstr("verify[0] median_us must be above 0"));
  EXPECT_THAT(message("\"suffix\"", "\"eagle\""), HasSubstr("unknown drafter 'eagle'"));
  EXPECT_THAT(message("\"dfs\"", "\"up\""), HasSubstr("unknown order of draft nodes 'up'"));
  EXPECT_THAT(message("1001", "0001"), HasSubstr("the first must select for itself"));
  EXPECT_THAT(message("1001", "1x01"), HasSubstr("0 and 1 only"));
  EXPECT_THAT(message("\"shared\"", "\"some\""), HasSubstr("unknown block lists"));
  EXPECT_THAT(message("0.875", "1.5"), HasSubstr("available_later must be a number from 0 to 1"));
  EXPECT_THAT(ProfileFromJson("", "the profile").status().message(), HasSubstr("the profile"));
  EXPECT_THAT(ProfileFromJson("[]", "the profile").status().message(), HasSubstr("must be an object"));
  EXPECT_THAT(ProfileFromJson("{\"format\": \"farsight-profile\"", "the profile").status().message(),
              HasSubstr("not valid JSON"));
}

// Whatever a byte is changed to, the answer is a profile or a sentence.
TEST(Profile, MutatedBytesNeverCrash) {
  const std::string good = ProfileToJson(Sample());
  std::mt19937 rng(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (auto n = 1 + rng() % 3; n > 0; --n) {
      const size_t at = rng() % text.size();
      if (rng() % 3 == 0) {
        text.erase(at, 1 + rng() % 20);
      } else {
        text[at] = "\"{}[],:0129.-eE x\x80"[rng() % 18];
      }
    }
    const auto read = ProfileFromJson(text, "the profile");
    refused += read.ok() ? 0 : 1;
    if (!read.ok()) {
      ASSERT_THAT(read.status().message(), StartsWith("the profile"));
    }
  }
  EXPECT_GT(refused, 1500);
}

TEST(Profile, TimesAreInterpolated) {
  Profile p;
  const VerifyMode mode;
  for (int64_t context : {1000, 3000}) {
    for (int rows : {1, 4, 8}) {
      const double us = 100.0 * rows + 0.1 * static_cast<double>(context);
      p.verify.push_back({mode, context, 1, rows, us, us, 0});
      p.verify.push_back({mode, context, 8, rows, 10 * us, us, 0});
    }
  }
  const auto us = [&](int64_t context, int batch, double rows) {
    return *VerifyTable(p, mode).At(context, batch, rows);
  };
  EXPECT_DOUBLE_EQ(us(1000, 1, 1), 200);
  EXPECT_DOUBLE_EQ(us(1000, 1, 2), 300);
  EXPECT_DOUBLE_EQ(us(2000, 1, 6), 800);
  EXPECT_DOUBLE_EQ(us(1000, 1, 16), 1700);  // the last slope goes on
  EXPECT_DOUBLE_EQ(us(90000, 1, 1), 400);   // the context does not
  EXPECT_DOUBLE_EQ(us(0, 1, 1), 200);
  EXPECT_DOUBLE_EQ(us(1000, 2, 1), 200);  // the nearest batch by ratio
  EXPECT_DOUBLE_EQ(us(1000, 6, 1), 2000);
  VerifyMode other;
  other.group = 2;
  EXPECT_FALSE(VerifyTable(p, other).At(1000, 1, 1).has_value());
  EXPECT_TRUE(DraftTable(p, DrafterKind::kModel).empty());
  EXPECT_TRUE(FixedTable(p).empty());
  p.fixed = {{0, 1, 5}, {0, 1, 7}, {100, 1, 9}};
  EXPECT_DOUBLE_EQ(*FixedTable(p).At(50, 1, 1), 8);  // measured again: the later counts
}

TEST(Profile, QualityOpensAMode) {
  Profile p;
  VerifyMode reuse, shared;
  reuse.refresh = {1, 0};
  shared.shared_list = true;
  shared.group = 4;
  EXPECT_TRUE(QualityAllows(p, VerifyMode()));
  EXPECT_FALSE(QualityAllows(p, reuse));
  QualityRecord record;
  record.mode = reuse;
  p.quality = {record};
  EXPECT_FALSE(QualityAllows(p, reuse));  // nothing was compared
  p.quality[0].tokens = 100;
  EXPECT_TRUE(QualityAllows(p, reuse));
  reuse.group = 8;  // exact groups do not change what is computed
  EXPECT_TRUE(QualityAllows(p, reuse));
  EXPECT_FALSE(QualityAllows(p, shared));
  record.mode = shared;
  record.tokens = 100;
  p.quality.push_back(record);
  EXPECT_TRUE(QualityAllows(p, shared));
  shared.group = 8;  // but a list shared by more rows is another list
  EXPECT_FALSE(QualityAllows(p, shared));
  for (auto set : {+[](QualityRecord& r) { r.flip_rate = 0.006; }, +[](QualityRecord& r) { r.kl_mean = 0.002; },
                   +[](QualityRecord& r) { r.task_drop = 0.011; }}) {
    QualityRecord bad = p.quality[0];
    set(bad);
    EXPECT_FALSE(Passes(bad));
  }
}

TEST(Profile, TheNearestPriorIsChosen) {
  Profile p;
  EXPECT_EQ(NearestPrior(p, DrafterKind::kSuffix, 0, 0), nullptr);
  p.acceptance.resize(3);
  for (AcceptancePrior& prior : p.acceptance) prior.drafter = DrafterKind::kSuffix;
  p.acceptance[1].self_match = 0.9;
  p.acceptance[2].context = 100000;
  EXPECT_EQ(NearestPrior(p, DrafterKind::kSuffix, 0, 0.1), &p.acceptance[0]);
  EXPECT_EQ(NearestPrior(p, DrafterKind::kSuffix, 0, 0.8), &p.acceptance[1]);
  EXPECT_EQ(NearestPrior(p, DrafterKind::kSuffix, 50000, 0), &p.acceptance[2]);
  EXPECT_EQ(NearestPrior(p, DrafterKind::kNgram, 0, 0), nullptr);
}

TEST(Strategy, NamesSayEverything) {
  Strategy s{DrafterKind::kSuffix, ChainShape(7), VerifyMode()};
  EXPECT_EQ(StrategyName(s), "suffix chain:7 bfs group:1");
  s.shape = {{2, 1}, 3};
  s.mode.order = NodeOrder::kDepthFirst;
  s.mode.group = 4;
  s.mode.shared_list = true;
  s.mode.refresh = {1, 0, 1};
  EXPECT_EQ(StrategyName(s), "suffix fork:2,1:3 dfs group:4 shared reuse:101");
  EXPECT_EQ(StrategyName({}), "off");
  EXPECT_TRUE(Allows(PrecisionClass::kSharedReuse, s.mode));
  EXPECT_FALSE(Allows(PrecisionClass::kShared, s.mode));
  EXPECT_FALSE(Allows(PrecisionClass::kReuse, s.mode));
  for (const char* name : {"strict", "reuse", "shared", "shared+reuse"}) {
    EXPECT_STREQ(PrecisionClassName(*ParsePrecisionClass(name)), name);
  }
  EXPECT_FALSE(ParsePrecisionClass("loose").ok());
}

TEST(Strategy, MenusHoldWhatFits) {
  const std::vector<DrafterKind> kinds = {DrafterKind::kOff, DrafterKind::kNgram, DrafterKind::kModel};
  std::vector<VerifyMode> modes(2);
  modes[1].order = NodeOrder::kDepthFirst;
  const auto menu = BuildMenu(kinds, 7, modes);
  EXPECT_FALSE(menu[0].drafts());
  size_t forks = 0;
  for (size_t i = 1; i < menu.size(); ++i) {
    EXPECT_EQ(Validate(menu[i]).message(), "");
    EXPECT_LE(menu[i].shape.max_nodes, 7);
    forks += menu[i].shape.is_chain() ? 0 : 1;
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(menu[i] == menu[j]);
  }
  EXPECT_EQ(forks, 4u);
  EXPECT_EQ(menu.size(), 1u + 2 * 6 + 4);
  EXPECT_EQ(BuildMenu(kinds, 0, modes).size(), 1u);
}

}  // namespace
}  // namespace farsight
