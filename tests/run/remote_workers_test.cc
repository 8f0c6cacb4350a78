// Workers that hold on to their standard input, and how often one on another machine is started again. tests/apps
// tests the rest with a real sshd.
#include "run/remote_workers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <future>

#include "run/input_watch.h"

namespace thinpipe {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    TP_CHECK(::pipe(ends.data()) == 0, "no pipe");
    out = Fd(ends[0]);
    in = Fd(ends[1]);
  }
  Fd out, in;
};

TEST(InputWatch, InputThatEnds_IsReportedAfterAllThatCame) {
  Pipe pipe;
  std::promise<std::string> said;
  const InputWatch watch(pipe.out.get(), std::chrono::hours(1), [&](const std::string& why) { said.set_value(why); });
  ASSERT_EQ(::write(pipe.in.get(), "\n\n", 2), 2);
  pipe.in = Fd();
  EXPECT_EQ(said.get_future().get(), "standard input has ended");
}

TEST(InputWatch, SilentInput_IsReportedOnce) {
  const Pipe pipe;
  std::promise<std::string> said;
  const InputWatch watch(pipe.out.get(), std::chrono::milliseconds(5),
                         [&](const std::string& why) { said.set_value(why); });
  EXPECT_TRUE(said.get_future().get().starts_with("nothing came on standard input for "));
}

TEST(InputWatch, WatchThatIsDestroyed_ReportsNothing) {
  const Pipe pipe;
  bool said = false;
  {
    const InputWatch watch(pipe.out.get(), std::chrono::hours(1), [&](const std::string&) { said = true; });
  }
  EXPECT_FALSE(said);
}

TEST(RestartOfRemoteWorkers, WaitsLongerEachTimeAndGivesUp) {
  using std::chrono::seconds;
  EXPECT_EQ(wait_before_restart(1, true), seconds(1));
  EXPECT_EQ(wait_before_restart(4, true), seconds(8));
  EXPECT_EQ(wait_before_restart(7, true), seconds(60));
  EXPECT_EQ(wait_before_restart(20, true), seconds(60));
  EXPECT_EQ(wait_before_restart(21, true), std::nullopt);
  EXPECT_EQ(wait_before_restart(4, false), seconds(8)) << "the program has failed by itself";
  EXPECT_EQ(wait_before_restart(5, false), std::nullopt);
}

}  // namespace
}  // namespace thinpipe
