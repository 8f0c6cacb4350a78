// Slower lines: their arithmetic with made-up times, and a link that obeys it.
#include "net/shape_plan.h"

#include <gtest/gtest.h>

#include "net/packet_links.h"

namespace thinpipe {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TimePoint at(Duration since_start) { return TimePoint(hours(1) + since_start); }

TEST(ShapePlan, Message_TakesItsBitsDividedByTheRate) {
  ShapePlan plan({.rate_bits_per_s = 80'000'000}, 1);
  EXPECT_EQ(plan.arrival(at(milliseconds(0)), 10'000), at(milliseconds(1)));
}

TEST(ShapePlan, Message_WaitsForTheLineButNotForEarlierDelays) {
  ShapePlan plan({.rate_bits_per_s = 80'000'000, .delay = milliseconds(25)}, 1);
  EXPECT_EQ(plan.arrival(at(milliseconds(0)), 10'000), at(milliseconds(26)));
  // Queued behind the first, whose delay does not hold up the line.
  EXPECT_EQ(plan.arrival(at(milliseconds(0)), 10'000), at(milliseconds(27)));
  EXPECT_EQ(plan.arrival(at(microseconds(2500)), 10'000), at(microseconds(28'500)));  // the line was free since 2 ms
}

TEST(ShapePlan, WithoutARateOnlyTheDelayCounts) {
  ShapePlan plan({.delay = milliseconds(25)}, 1);
  EXPECT_EQ(plan.arrival(at(milliseconds(0)), size_t{1} << 40), at(milliseconds(25)));
  EXPECT_EQ(plan.arrival(at(milliseconds(1)), 0), at(milliseconds(26)));
}

TEST(ShapePlan, JitterIsUniformAndNeverEarlyAndTheSameForASeed) {
  const LinkShape shape{.delay = milliseconds(5), .jitter = milliseconds(8)};
  ShapePlan plan(shape, 1);
  ShapePlan same(shape, 1);
  ShapePlan other(shape, 2);
  constexpr int kMessages = 4000;
  double sum = 0;
  int quarters[4] = {};
  bool differs = false;
  for (int number = 0; number < kMessages; ++number) {
    const auto now = at(number * milliseconds(100));  // far enough apart that none waits
    const auto late = plan.arrival(now, 1) - now - shape.delay;
    ASSERT_EQ(same.arrival(now, 1) - now - shape.delay, late);
    differs |= other.arrival(now, 1) - now - shape.delay != late;
    ASSERT_GE(late, Duration(0));
    ASSERT_LE(late, shape.jitter);
    sum += seconds(late) / seconds(shape.jitter);
    ++quarters[std::min<int64_t>(3, 4 * late / shape.jitter)];
  }
  EXPECT_TRUE(differs);
  // Five standard deviations; one is 0.0046 for the mean and 27 for a quarter's count.
  EXPECT_NEAR(sum / kMessages, 0.5, 0.023);
  for (const int count : quarters) EXPECT_NEAR(count, kMessages / 4, 137);
}

TEST(ShapePlan, JitterNeverLetsAMessageOvertakeTheOneBefore) {
  ShapePlan plan({.rate_bits_per_s = 1'000'000'000, .delay = milliseconds(5), .jitter = milliseconds(50)}, 1);
  TimePoint last{};
  for (int number = 0; number < 1000; ++number) {
    const auto arrival = plan.arrival(at(number * microseconds(10)), 100);
    ASSERT_GE(arrival, last);
    last = arrival;
  }
}

TEST(ShapePlan, ManyMessagesKeepTheRate) {
  ShapePlan plan({.rate_bits_per_s = 3'000'000}, 1);
  TimePoint last{};
  for (int number = 0; number < 100'000; ++number) last = plan.arrival(at(Duration(0)), 1);  // 2666.67 ns each
  // Each is rounded to a nanosecond.
  EXPECT_NEAR(static_cast<double>((last - at(Duration(0))).count()), 8e5 / 3e6 * 1e9, 100'000 * 0.5);
}

struct ShapedPair {
  explicit ShapedPair(const LinkShape& shape) {
    auto [near, far] = make_memory_link();
    upper = std::make_unique<PacketLink>(std::move(near), numbered_rules(), kEpoch, shape, 1);
    lower = std::make_unique<PacketLink>(std::move(far), numbered_rules(), kEpoch);
    for (auto* end : {upper.get(), lower.get()}) end->enter(kEpoch, kStep);
  }
  std::unique_ptr<PacketLink> upper, lower;
};

TEST(ShapedLink, HoldsAPacketUntilItsTime) {
  constexpr auto kDelay = milliseconds(30);
  ShapedPair pair({.rate_bits_per_s = 8'000'000, .delay = kDelay});
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(pair.upper->send(numbered(0), MessageBytes(10'000), 0).ok());  // 10 ms on the line
  ASSERT_TRUE(pair.upper->send(numbered(1), MessageBytes(10'000), 0).ok());
  ASSERT_TRUE(pair.lower->receive(numbered(0), 0).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay + milliseconds(10));
  ASSERT_TRUE(pair.lower->receive(numbered(1), 0).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay + milliseconds(20));
}

TEST(ShapedLink, Close_SendsHeldPacketsAtOnce) {
  ShapedPair pair({.delay = hours(1)});
  EXPECT_EQ(send_many(*pair.upper, 1, 5), 5u);
  pair.upper->close("enough for today");
  EXPECT_EQ(receive_many(*pair.lower, 1, 5), 5u);
  EXPECT_TRUE(fails_with(pair.lower->receive(numbered(5), 0), "enough for today"));
}

TEST(ShapedLink, HoldsNoMoreThanAStepSends) {
  ShapedPair pair({.delay = hours(1)});
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&] { send_many(*pair.upper, 1, 1000, &sent); });
  while (sent < 5) std::this_thread::yield();
  // Time for a sender that fails to wait.
  for (int turn = 0; turn < 100; ++turn) std::this_thread::yield();
  pair.upper->close("done");
  sender.join();
  EXPECT_EQ(sent.load(), 5u);
}

}  // namespace
}  // namespace thinpipe
