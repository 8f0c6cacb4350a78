// The caps of a machine's line: the plan in virtual time, the common link suite through a capped line, and that real
// bytes pass no faster than the cap.
#include "net/capped_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "net/destroyed_soon.h"
#include "net/grpc_links.h"
#include "net/link_conformance.h"
#include "net/transfer.h"
#include "support/draw.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;

constexpr LineCaps kQuickCaps{4'000'000'000, 4'000'000'000};

// Links that are dialled through a capped line.
class CappedLinks {
 public:
  static constexpr LinkShape kShape{};
  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make() {
    const auto way = lines_.way_to(address_of(*server_)).take();
    auto upper = dial_link(way->address(), hello_for(0), kMaxPayloadBytes, kDialTimeout).take();
    auto lower = server_->service().wait_for(0, 1, "").take();
    return {std::move(upper), std::move(lower)};
  }

 private:
  std::unique_ptr<LinkServer> server_ = start_server();
  CappedLines lines_{kQuickCaps};
};

INSTANTIATE_TYPED_TEST_SUITE_P(Capped, LinkConformance, CappedLinks);

// ---- the plan ----

// Bytes that passed, and when: a thread that asks at `now` and wakes up late.
struct Passed {
  TimePoint at;
  uint64_t bytes;
};

// The most that passed in any time of that length.
uint64_t most_in(const std::vector<Passed>& all, Duration length) {
  uint64_t most = 0, sum = 0;
  for (size_t first = 0, last = 0; last < all.size(); ++last) {
    sum += all[last].bytes;
    for (; all[last].at - all[first].at > length; ++first) sum -= all[first].bytes;
    most = std::max(most, sum);
  }
  return most;
}

// Several connections at once, each with the next piece when the one before has passed, some of them idle for a while.
std::vector<Passed> busy_line(uint64_t bits_per_s, Duration time, uint64_t seed) {
  const CounterRng rng(seed, "line");
  CapPlan plan(bits_per_s);
  std::vector<TimePoint> wakes(5);
  std::vector<Passed> passed;
  for (uint64_t draw = 0;; draw += 4) {
    const auto next = std::min_element(wakes.begin(), wakes.end());
    const auto now = *next;
    if (now.time_since_epoch() > time) return passed;
    const uint64_t bytes = 1 + test::below(rng, plan.piece(now), draw);
    auto at = std::max(now, plan.pass(now, bytes));
    at += std::chrono::microseconds(test::below(rng, 100'000, draw + 1));  // the machine is busy
    passed.push_back({at, bytes});
    const bool idle = test::below(rng, 100, draw + 2) == 0;
    *next = at + (idle ? milliseconds(test::below(rng, 5000, draw + 3)) : milliseconds(0));
  }
}

TEST(CapPlan, InAnyMinute_PassesNoMoreThanTheCapAndThreePercent) {
  for (const uint64_t rate : {256'000U, 2'000'000U, 50'000'000U}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      auto passed = busy_line(rate, std::chrono::minutes(5), seed);
      std::sort(passed.begin(), passed.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
      const double cap = static_cast<double>(rate) / 8 * 60;
      const auto most = static_cast<double>(most_in(passed, std::chrono::minutes(1)));
      EXPECT_LE(most, 1.03 * cap) << rate << " " << seed;
      EXPECT_GE(most, 0.97 * cap) << rate << " " << seed << ": a line that is always wanted is used";
    }
  }
}

TEST(CapPlan, AfterAPause_BeginsWithoutABurst) {
  CapPlan plan(8'000'000);
  const TimePoint start{std::chrono::hours(1)};
  EXPECT_EQ(plan.pass(start, 1000), start + milliseconds(1));
  EXPECT_EQ(plan.pass(start, 1000), start + milliseconds(2));
  const auto later = start + std::chrono::seconds(10);
  EXPECT_EQ(plan.pass(later, 4000), later + milliseconds(4));
}

TEST(CapPlan, AfterALateThread_CatchesUp) {
  CapPlan plan(8'000'000);
  const TimePoint start{std::chrono::hours(1)};
  EXPECT_EQ(plan.pass(start, 1000), start + milliseconds(1));
  EXPECT_EQ(plan.pass(start + milliseconds(50), 1000), start + milliseconds(2)) << "at once";
}

TEST(CapPlan, WithoutCap_PassesAtOnce) {
  CapPlan plan(0);
  const TimePoint now{std::chrono::hours(1)};
  EXPECT_EQ(plan.pass(now, uint64_t{1} << 40), now);
}

TEST(CapPlan, CountsHeaders) {
  EXPECT_EQ(bytes_on_line(1), 53U);
  EXPECT_EQ(bytes_on_line(1448), 1500U);
  EXPECT_EQ(bytes_on_line(1449), 1449U + 104U);
  EXPECT_EQ(acknowledgement_bytes(2896), 52U);
  EXPECT_EQ(acknowledgement_bytes(2897), 104U);
}

// ---- sockets ----

struct Connection {
  LocalSocket near, far;
};

Connection connect_through(CappedLines& lines) {
  auto listener = LocalSocket::listen().take();
  const auto way = lines.way_to(listener.address()).take();
  auto near = LocalSocket::connect(way->address(), kDialTimeout).take();
  auto far = listener.accept().take();
  return {std::move(near), std::move(far)};
}

std::vector<std::byte> received(LocalSocket& socket, size_t count) {
  std::vector<std::byte> all(count);
  for (size_t at = 0; at < count;) {
    const auto got = socket.receive(std::span(all).subspan(at));
    if (!got || got.value() == 0) return {};
    at += got.value();
  }
  return all;
}

bool at_its_end(LocalSocket& socket) {
  std::byte one;
  const auto got = socket.receive({&one, 1});
  return !got || got.value() == 0;
}

TEST(CappedLines, BytesArriveUnchangedBothWays) {
  CappedLines lines(kQuickCaps);
  auto [near, far] = connect_through(lines);
  const auto up = test_message(1, 0, 3'000'000), down = test_message(1, 1, 3'000'000);
  auto sent_up = std::async(std::launch::async, [&] { return near.send(up).ok(); });
  auto sent_down = std::async(std::launch::async, [&] { return far.send(down).ok(); });
  auto got_up = std::async(std::launch::async, [&] { return received(far, up.size()); });
  EXPECT_TRUE(std::ranges::equal(received(near, down.size()), down));
  EXPECT_TRUE(std::ranges::equal(got_up.get(), up));
  EXPECT_TRUE(sent_up.get() && sent_down.get());
  near.end_sending();
  EXPECT_TRUE(at_its_end(far));
}

// Seconds until as many bytes have arrived over each of two connections at once.
double time_of_two(const LineCaps& caps, size_t bytes, bool up) {
  CappedLines lines(caps);
  std::vector<Connection> both;
  for (int i = 0; i < 2; ++i) both.push_back(connect_through(lines));
  const std::vector<std::byte> data(bytes);
  const SystemClock clock;
  const auto start = clock.now();
  std::vector<std::thread> threads;
  for (auto& one : both) {
    threads.emplace_back([&] { EXPECT_TRUE((up ? one.near : one.far).send(data).ok()); });
    threads.emplace_back([&] { EXPECT_EQ(received(up ? one.far : one.near, bytes).size(), bytes); });
  }
  for (auto& thread : threads) thread.join();
  return seconds(clock.now() - start);
}

// How much a slow machine takes longer proves nothing; that it takes this long does.
TEST(CappedLines, TwoConnectionsTogether_AreNoFasterThanTheCap) {
  constexpr size_t kBytes = 250'000;
  constexpr uint64_t kRate = 8'000'000;
  const double least = 8.0 * 2 * bytes_on_line(kBytes) / kRate - seconds(CapPlan::kLate);
  EXPECT_GE(time_of_two({.up = kRate}, kBytes, true), least);
  EXPECT_GE(time_of_two({.down = kRate}, kBytes, false), least);
}

TEST(CappedLines, WayThatIsGone_LetsNobodyInButKeepsConnections) {
  CappedLines lines(kQuickCaps);
  auto listener = LocalSocket::listen().take();
  auto way = lines.way_to(listener.address()).take();
  const auto address = way->address();
  auto near = LocalSocket::connect(address, kDialTimeout).take();
  auto far = listener.accept().take();
  way.reset();
  EXPECT_FALSE(LocalSocket::connect(address, kDialTimeout).ok());
  const std::vector<std::byte> data(1000);
  EXPECT_TRUE(near.send(data).ok());
  EXPECT_EQ(received(far, data.size()).size(), data.size());
}

TEST(CappedLines, NobodyAtTheOtherEnd_EndsTheConnection) {
  CappedLines lines(kQuickCaps);
  std::string closed;
  {
    const auto listener = LocalSocket::listen().take();
    closed = listener.address();
  }
  const auto way = lines.way_to(closed).take();
  auto near = LocalSocket::connect(way->address(), kDialTimeout).take();
  EXPECT_TRUE(at_its_end(near));
  EXPECT_FALSE(lines.way_to("no port").ok());
}

TEST(CappedLines, Destroyed_BreaksEverythingOff) {
  auto lines = std::make_unique<CappedLines>(LineCaps{256'000, 256'000});
  auto [near, far] = connect_through(*lines);
  const std::vector<std::byte> data(200'000);
  std::thread sender([&] { (void)near.send(data); });  // would take seven seconds
  EXPECT_FALSE(received(far, 1000).empty());
  lines.reset();
  sender.join();
  while (!at_its_end(far)) {
  }
  EXPECT_TRUE(at_its_end(near));
}

}  // namespace
}  // namespace thinpipe
