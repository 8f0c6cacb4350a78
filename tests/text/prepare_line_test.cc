#include "text/prepare_line.h"

#include <gtest/gtest.h>

#include "support/scratch.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a PrepareLine writes while `report` uses it.
template <class Report>
std::string written(bool live, ManualClock& clock, const Report& report) {
  const test::ScratchFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  {
    PrepareLine line(file, live, clock);
    report(line);
  }
  std::fclose(file);
  return read_file(folder / "out").take();
}

TEST(PrepareLine, ElsewhereThanOnATerminalSaysEachPhaseAndThenItsStateEveryFewSeconds) {
  ManualClock clock;
  const auto out = written(false, clock, [&](PrepareLine& line) {
    line("reading the corpus", 1'000'000, 0);
    for (int i = 1; i <= 11; ++i) {
      clock.advance(seconds(1));
      line("reading the corpus", 1'000'000 * (1 + static_cast<uint64_t>(i)), 0);
    }
    line("tokenizing", 2'000'000, 100'000'000);
    clock.advance(seconds(8));
    line("tokenizing", 18'000'000, 100'000'000);
  });
  EXPECT_EQ(out,
            "data: reading the corpus\n"
            "data: reading the corpus 6.0 MB, 1.0 MB/s\n"
            "data: reading the corpus 11.0 MB, 1.0 MB/s\n"
            "data: tokenizing\n"
            "data: tokenizing 18.0 of 100.0 MB, 2.0 MB/s, 42s left\n");
}

TEST(PrepareLine, OnATerminalIsOneLineRewrittenAndThenGone) {
  ManualClock clock;
  const auto out = written(true, clock, [&](PrepareLine& line) {
    line("tokenizing", 0, 10'000'000);
    clock.advance(milliseconds(99));
    line("tokenizing", 1'000'000, 10'000'000);  // too soon
    clock.advance(milliseconds(901));
    line("tokenizing", 5'000'000, 10'000'000);
  });
  EXPECT_EQ(out,
            "\r\033[Kdata: tokenizing 0.0 of 10.0 MB"
            "\r\033[Kdata: tokenizing 5.0 of 10.0 MB, 5.0 MB/s, 2s left"
            "\r\033[K");
}

TEST(PrepareLine, SaysNothingOfItsOwnAccord) {
  ManualClock clock;
  EXPECT_EQ(written(true, clock, [](PrepareLine&) {}), "");
  EXPECT_EQ(written(false, clock, [](PrepareLine& line) { line("waiting", 0, 0); }), "data: waiting\n");
}

}  // namespace
}  // namespace thinpipe
