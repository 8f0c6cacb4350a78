#include "pipeline/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace thinpipe {
namespace {

// A FILE that writes into memory.
class Capture {
 public:
  Capture() : file_(open_memstream(&data_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(data_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

TEST(Progress, ShowsStepLossRateAndTimeLeft) {
  ManualClock clock;
  Capture out;
  Progress progress({.total_steps = 10}, out.file(), /*live=*/false, clock);
  clock.advance(std::chrono::seconds(2));
  progress.step({1, 5.4321, 1000});
  EXPECT_EQ(out.text(), "step 1/10  loss 5.4321  500 tokens/s  ETA 18s\n");
}

TEST(Progress, ShowsWhatCrossesACutAgainstFp32) {
  ManualClock clock;
  Capture out;
  // 3 cuts, 66 bytes per token and cut for both directions; fp32 would be 2 * 4 * 256.
  Progress progress({.total_steps = 10, .cuts = 3, .d = 256}, out.file(), /*live=*/false, clock);
  clock.advance(std::chrono::seconds(1));
  progress.step({1, 5.0, 100, 3 * 66 * 100});
  EXPECT_EQ(out.text(), "step 1/10  loss 5.0000  100 tokens/s  66.0 bytes/token (31.0x below fp32)  ETA 9s\n");
}

TEST(Progress, PrintsSparinglyIntoAFileButAlwaysTheLastStep) {
  ManualClock clock;
  Capture out;
  Progress progress({.total_steps = 100}, out.file(), /*live=*/false, clock);
  for (int step = 1; step <= 100; ++step) {
    clock.advance(std::chrono::milliseconds(100));
    progress.step({step, 1.0, 10});
  }
  const auto text = out.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);  // the first, one after five seconds, the last
  EXPECT_NE(text.find("step 100/100"), std::string::npos);
}

TEST(Progress, APauseAndASlowStart_SoonCountNoLonger) {
  ManualClock clock;
  Capture out;
  Progress progress({.total_steps = 1000}, out.file(), /*live=*/false, clock);
  clock.advance(std::chrono::minutes(5));  // until everybody is there
  progress.step({1, 1.0, 100});
  for (int step = 2; step <= 30; ++step) {
    clock.advance(step == 20 ? std::chrono::seconds(3600) : std::chrono::seconds(1));
    progress.step({step, 1.0, 100});
  }
  const auto text = out.text();
  EXPECT_TRUE(text.ends_with("100 tokens/s  ETA 16m10s\n")) << text;
}

TEST(Progress, OnATerminal_LeavesOutDetailsThatDoNotFit) {
  ManualClock clock;
  Capture out;  // says no width, so it has 80 columns
  Progress progress({.total_steps = 300, .cuts = 3, .d = 512, .rate_bits_per_s = 80'000'000}, out.file(), /*live=*/true,
                    clock);
  clock.advance(std::chrono::seconds(1));
  progress.step({1, 5.0, 20000, 3 * 22 * 20000});
  const auto text = out.text();
  EXPECT_LT(text.size(), 80U) << text;
  EXPECT_NE(text.find("22.0 bytes/token"), std::string::npos) << text;
  EXPECT_NE(text.find("ETA"), std::string::npos) << text;
}

TEST(Progress, ShowsHowFarAValidationPassIsEveryFewSeconds) {
  ManualClock clock;
  Capture out;
  Progress progress({.total_steps = 10}, out.file(), /*live=*/false, clock);
  for (int done = 1; done <= 12; ++done) {
    progress.evaluation(10, done, 12);
    clock.advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(out.text(),
            "step 10: validating, 1 of 12 sequences\nstep 10: validating, 6 of 12 sequences\n"
            "step 10: validating, 11 of 12 sequences\n");
}

TEST(Progress, RewritesOneLineOnATerminal) {
  ManualClock clock;
  Capture out;
  {
    Progress progress({.total_steps = 3}, out.file(), /*live=*/true, clock);
    for (int step = 1; step <= 3; ++step) {
      clock.advance(std::chrono::seconds(1));
      progress.step({step, 1.0, 10});
    }
  }
  const auto text = out.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_NE(text.find("\r\033[K"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
