#include "run/coordinator/given_model.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr TimePoint kStart{};
const std::string kHash(64, 'a');

TEST(GivenModel, KeeperIsWaitedForWhileItTakesPieces_AndNotWhenItStandsStill) {
  GivenModel model;
  EXPECT_FALSE(model.is_expected());
  model.expect("quick", kStart);
  model.expect("slow", kStart);
  model.expect("gone", kStart);
  EXPECT_EQ(model.keepers(kStart + minutes(5)), 3U) << "nobody can take anything before the files are written";
  EXPECT_FALSE(model.describe().ready());
  auto now = kStart + minutes(5);
  model.give({{"config.toml", 100, kHash}, {"model.safetensors", 1'000'000'000, kHash}}, now);
  EXPECT_TRUE(model.describe().ready());
  EXPECT_EQ(model.describe().files_size(), 2);
  model.forget("quick");
  EXPECT_EQ(model.keepers(now), 2U);
  for (int i = 0; i < 3; ++i) {
    now += seconds(50);
    model.note_moved("slow", now);
  }
  EXPECT_EQ(model.keepers(now), 1U);
  EXPECT_EQ(model.keepers(now + seconds(61)), 0U);
  EXPECT_FALSE(model.is_expected());
  model.expect("quick", now);
  EXPECT_FALSE(model.is_expected()) << "it had all before the end of its stream was noticed";
}

TEST(GivenModel, KeeperThatTakesPiecesForEver_IsGivenTheTimeOfASlowLineOnly) {
  GivenModel model;
  model.expect("trickles", kStart);
  model.give({{"model.safetensors", 3'200'000, kHash}}, kStart);  // 100 s at 256 kbit/s, and a minute
  auto now = kStart;
  for (; now < kStart + seconds(150); now += seconds(10)) model.note_moved("trickles", now);
  EXPECT_EQ(model.keepers(now), 1U);
  now += seconds(20);
  model.note_moved("trickles", now);
  EXPECT_EQ(model.keepers(now), 0U);
  model.note_moved("trickles", now);
  EXPECT_EQ(model.keepers(now), 0U) << "a piece does not bring it back";
}

TEST(GivenModel, OnlyItsOwnFilesAreThere) {
  GivenModel model;
  model.give({{"config.toml", 100, kHash}}, kStart);
  EXPECT_TRUE(model.holds("config.toml", kHash));
  EXPECT_FALSE(model.holds("config.toml", std::string(64, 'b')));
  EXPECT_FALSE(model.holds("run.sqlite", kHash));
  EXPECT_FALSE(model.holds("identity/authority.pem", kHash));
  EXPECT_TRUE(GivenModel::is_name("../x.toml")) << "and then it is none of the files";
  EXPECT_FALSE(GivenModel::is_name("block-000"));
  EXPECT_FALSE(GivenModel::is_name(""));
}

}  // namespace
}  // namespace thinpipe
