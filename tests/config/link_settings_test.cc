// [link]: one value for all cuts or one per cut, for both directions or each by itself.
#include "config/link_settings.h"

#include <gtest/gtest.h>

#include "base/result.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;

RunConfig with(const LinkConfig& link, int64_t stages = 3) {
  RunConfig config;
  config.pipeline.stages = stages;
  config.link = link;
  return config;
}

TEST(LinkSettings, OneValueHoldsForEveryCutAndDirection) {
  const auto cuts = link_settings(with({"80mbit", "25ms", "2ms"}, 4));
  ASSERT_EQ(cuts.size(), 3u);
  const DirectionSettings expected{80'000'000, milliseconds(25), milliseconds(2)};
  for (const auto& cut : cuts) {
    EXPECT_EQ(cut.forward, expected);
    EXPECT_EQ(cut.backward, expected);
  }
}

TEST(LinkSettings, EveryCutAndDirectionMayHaveItsOwn) {
  const auto cuts = link_settings(with({"80mbit/10mbit, unlimited", "0ms", "1ms/2ms"}));
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].forward, (DirectionSettings{80'000'000, milliseconds(0), milliseconds(1)}));
  EXPECT_EQ(cuts[0].backward, (DirectionSettings{10'000'000, milliseconds(0), milliseconds(2)}));
  EXPECT_EQ(cuts[1].forward.rate_bits_per_s, 0u);
  EXPECT_FALSE(link_settings(with({"unlimited", "0ms", "0ms"}))[0].forward.shapes());
}

TEST(LinkSettings, ARunInOneStageHasNone) { EXPECT_TRUE(link_settings(with({}, 1)).empty()); }

TEST(LinkSettings, RefusesWithKeyValueAndWhatIsRight) {
  const auto said = [](const LinkConfig& link, int64_t stages = 3) {
    try {
      link_settings(with(link, stages));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(said({"80mbit, 1mbit, 2mbit", "0ms", "0ms"}),
            "link.rate = \"80mbit, 1mbit, 2mbit\": has 3 values, needs one for all cuts or one for each of the 2");
  EXPECT_EQ(said({"1mbit/2mbit/3mbit", "0ms", "0ms"}),
            "link.rate = \"1mbit/2mbit/3mbit\": needs one value, or forward/backward");
  EXPECT_EQ(said({"fast", "0ms", "0ms"}).substr(0, 20), "link.rate = \"fast\": ");
  EXPECT_EQ(said({"80mbit", "25", "0ms"}).substr(0, 19), "link.delay = \"25\": ");
  EXPECT_EQ(said({"80mbit", "0ms", ","}, 2).substr(0, 20), "link.jitter = \",\": h");
  EXPECT_EQ(said({"nonsense", "0ms", "0ms"}, 1).substr(0, 12), "link.rate = ");
}

}  // namespace
}  // namespace thinpipe
