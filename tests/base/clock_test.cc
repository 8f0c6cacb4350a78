#include "base/clock.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

using namespace std::chrono_literals;

TEST(ManualClock, StandsStillUntilAdvanced) {
  ManualClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(25ms);
  EXPECT_EQ(clock.now() - start, 25ms);
  clock.advance(1ns);
  EXPECT_EQ(clock.now() - start, 25ms + 1ns);
}

TEST(SystemClock, NeverGoesBack) {
  const SystemClock clock;
  TimePoint last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = clock.now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Seconds, CountsFractions) { EXPECT_EQ(seconds(1500ms), 1.5); }

}  // namespace
}  // namespace thinpipe
