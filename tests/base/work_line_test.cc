#include "base/work_line.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a line about 40 tensors writes while `use` moves it and its clock.
template <class Use>
std::string shown(bool live, const Use& use) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&data, &size);
  ManualClock clock;
  {
    WorkLine line("exporting", "tensors", 40, file, live, clock);
    use(line, clock);
  }
  std::fclose(file);
  std::string text(data, size);
  std::free(data);
  return text;
}

TEST(WorkLine, OnATerminal_CountsAndSaysHowLongTheRestTakes) {
  const auto text = shown(true, [](WorkLine& line, ManualClock& clock) {
    clock.advance(seconds(20));
    line.add(10);
    clock.advance(seconds(30));
    line.add();
    clock.advance(seconds(5));
    line.add(29);
  });
  EXPECT_EQ(text,
            "exporting: 0 of 40 tensors"
            "\r\033[Kexporting: 10 of 40 tensors, about 1m00s left"
            "\r\033[Kexporting: 11 of 40 tensors, about 2m12s left"
            "\r\033[Kexporting: 40 of 40 tensors"
            "\r\033[K");
}

TEST(WorkLine, AfterTooLittleTime_GuessesNothing) {
  const auto text = shown(true, [](WorkLine& line, ManualClock& clock) {
    clock.advance(milliseconds(499));
    line.add(10);
  });
  EXPECT_EQ(text, "exporting: 0 of 40 tensors\r\033[Kexporting: 10 of 40 tensors\r\033[K");
}

TEST(WorkLine, ReportedOften_IsRewrittenNowAndThenAndAtTheEnd) {
  const auto text = shown(true, [](WorkLine& line, ManualClock& clock) {
    for (int i = 0; i < 39; ++i) line.add();
    clock.advance(milliseconds(99));
    line.add();
  });
  EXPECT_EQ(text, "exporting: 0 of 40 tensors\r\033[Kexporting: 40 of 40 tensors\r\033[K");
}

TEST(WorkLine, ToldOfMoreThanThereIs_StopsAtTheTotal) {
  const auto text = shown(true, [](WorkLine& line, ManualClock&) { line.add(50); });
  EXPECT_EQ(text, "exporting: 0 of 40 tensors\r\033[Kexporting: 40 of 40 tensors\r\033[K");
}

TEST(WorkLine, NotOnATerminal_PrintsNothing) {
  const auto text = shown(false, [](WorkLine& line, ManualClock& clock) {
    clock.advance(seconds(20));
    line.add(40);
  });
  EXPECT_EQ(text, "");
}

TEST(WorkLine, OnANarrowTerminal_KeepsTheNumbersAndTheTime) {
  const winsize size{.ws_row = 24, .ws_col = 30};
  int outer = -1, inner = -1;
  if (::openpty(&outer, &inner, nullptr, nullptr, &size) != 0) GTEST_SKIP() << "no pseudo-terminals here";
  std::FILE* file = ::fdopen(inner, "w");
  ManualClock clock;
  std::string text;
  {
    WorkLine line("exporting", "tensors", 40, file, true, clock);
    clock.advance(seconds(20));
    line.add(10);
    char buffer[200];
    const auto count = ::read(outer, buffer, sizeof buffer);
    if (count > 0) text.assign(buffer, static_cast<size_t>(count));
  }
  std::fclose(file);
  ::close(outer);
  EXPECT_EQ(text, "exporting: 0 of 40 tensors\r\033[K10/40, about 1m00s left");
}

}  // namespace
}  // namespace thinpipe
