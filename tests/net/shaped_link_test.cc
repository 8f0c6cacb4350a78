// The slowed-down link: the common suite over two transports, and its arithmetic with made-up times.
#include "net/shaped_link.h"

#include <gtest/gtest.h>

#include "net/grpc_links.h"
#include "net/link_conformance.h"
#include "net/memory_link.h"

namespace thinpipe {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Every part of the shape at work, and none that the suite has to wait for.
constexpr LinkShape kQuick{2'000'000'000, microseconds(20), microseconds(20)};
// For a close: a thread that is not given a core for half a second must not lose what was sent.
constexpr auto kPatience = std::chrono::seconds(5);

template <class Inner>
struct Shaped {
  auto make(int64_t capacity_down, int64_t capacity_up) {
    auto [upper, lower] = inner.make(capacity_down, capacity_up);
    return std::pair(shape_link(std::move(upper), kQuick, capacity_down, 1, kPatience),
                     shape_link(std::move(lower), kQuick, capacity_up, 2, kPatience));
  }
  Inner inner;
};

struct MemoryLinks {
  auto make(int64_t capacity_down, int64_t capacity_up) { return make_memory_link(capacity_down, capacity_up); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ShapedMemory, LinkConformance, Shaped<MemoryLinks>);
INSTANTIATE_TYPED_TEST_SUITE_P(ShapedGrpc, LinkConformance, Shaped<GrpcLinks>);

TimePoint at(Duration since_start) { return TimePoint(hours(1) + since_start); }

TEST(ShapePlan, AMessageTakesItsBitsOverTheRate) {
  ShapePlan plan({.rate_bits_per_s = 80'000'000}, 1);
  EXPECT_EQ(plan.arrival(at(milliseconds(0)), 10'000), at(milliseconds(1)));
}

TEST(ShapePlan, AMessageWaitsForTheLineAndOnlyForTheLine) {
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
    const auto now = at(number * milliseconds(100));  // so far apart that none waits for another
    const auto late = plan.arrival(now, 1) - now - shape.delay;
    ASSERT_EQ(same.arrival(now, 1) - now - shape.delay, late);
    differs |= other.arrival(now, 1) - now - shape.delay != late;
    ASSERT_GE(late, Duration(0));
    ASSERT_LE(late, shape.jitter);
    sum += seconds(late) / seconds(shape.jitter);
    ++quarters[std::min<int64_t>(3, 4 * late / shape.jitter)];
  }
  EXPECT_TRUE(differs);
  // Five standard deviations: of a mean of so many uniform numbers 0.0046, of a quarter's count 27.
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

TEST(ShapedLink, HoldsAMessageUntilItsTime) {
  auto [upper, lower] = make_memory_link(4, 4);
  constexpr auto kDelay = milliseconds(30);
  upper = shape_link(std::move(upper), {.rate_bits_per_s = 8'000'000, .delay = kDelay}, 4, 1);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(upper->send(MessageBytes(10'000)).ok());  // 10 ms on the line
  ASSERT_TRUE(upper->send(MessageBytes(10'000)).ok());
  ASSERT_TRUE(lower->receive().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay + milliseconds(10));
  ASSERT_TRUE(lower->receive().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay + milliseconds(20));
}

TEST(ShapedLink, AClosePassesOnAtOnceWhatIsHeld) {
  auto [upper, lower] = make_memory_link(4, 4);
  upper = shape_link(std::move(upper), {.delay = hours(1)}, 4, 1, kPatience);
  EXPECT_EQ(send_many(*upper, 1, 4), 4u);
  upper->close("enough for today");
  EXPECT_EQ(receive_many(*lower, 1, 4), 4u);
  EXPECT_TRUE(fails_with(lower->receive(), "enough for today"));
}

TEST(ShapedLink, HoldsNoMoreThanItsCapacity) {
  auto [upper, lower] = make_memory_link(3, 1);
  upper = shape_link(std::move(upper), {.delay = hours(1)}, 3, 1);
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&, &from = *upper] { send_many(from, 1, 1000, &sent); });
  while (sent < 3) std::this_thread::yield();
  // Every chance for a sender that does not wait.
  for (int turn = 0; turn < 100; ++turn) std::this_thread::yield();
  upper->close("done");
  sender.join();
  EXPECT_EQ(sent.load(), 3u);
}

TEST(ShapedLink, ACloseDoesNotWaitForAnInnerLinkWithoutRoomForever) {
  auto [upper, lower] = make_memory_link(1, 1);
  upper = shape_link(std::move(upper), {}, 2, 1);
  EXPECT_EQ(send_many(*upper, 1, 4), 4u);  // one in the memory link, one on its way in, two held
  std::thread receiver([&from = *upper] { EXPECT_TRUE(fails_with(from.receive(), "enough for today")); });
  upper->close("enough for today");
  receiver.join();
  EXPECT_EQ(receive_many(*lower, 1, 1), 1u);
  EXPECT_TRUE(fails_with(lower->receive(), "enough for today"));
}

}  // namespace
}  // namespace thinpipe
