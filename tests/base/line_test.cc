#include "base/line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "base/say.h"

namespace thinpipe {
namespace {

const std::vector<std::string> kWords{"model", "data", "train", "optim", "pipeline"};

TEST(Nearest, FindsTheWordOneTypoAway) {
  EXPECT_EQ(nearest("modle", kWords), "model");   // swapped
  EXPECT_EQ(nearest("modl", kWords), "model");    // left out
  EXPECT_EQ(nearest("modell", kWords), "model");  // doubled
  EXPECT_EQ(nearest("nodel", kWords), "model");   // replaced
  EXPECT_EQ(nearest("pipelines", kWords), "pipeline");
  EXPECT_EQ(nearest("train", kWords), "train");
}

TEST(Nearest, CountsASwapOfNeighboursAsOneTypo) {
  // As two replacements "ab" -> "ba" would be no nearer than "cd".
  EXPECT_EQ(nearest("trian", std::vector<std::string>{"tries", "train"}), "train");
}

TEST(Nearest, PrefersTheFirstOfEquallyCloseWords) {
  EXPECT_EQ(nearest("cat", std::vector<std::string>{"bat", "hat"}), "bat");
}

TEST(Nearest, IsEmptyIfNoWordIsClose) {
  EXPECT_EQ(nearest("xyzzyplugh", kWords), "");
  EXPECT_EQ(nearest("anything", {}), "");
  EXPECT_EQ(nearest("", kWords), "");
}

TEST(OneLine, IsValidUtf8EvenWhereItIsCut) {
  EXPECT_EQ(one_line("a\nb\x7f\u00e9"), "a b \u00e9");
  EXPECT_EQ(one_line("a\xff\xc3"), "a??");
  for (size_t before = kMaxLineBytes - 4; before <= kMaxLineBytes; ++before) {
    const auto line = one_line(std::string(before, 'x') + "\u20ac\u20ac");  // three bytes each
    EXPECT_EQ(valid_utf8_prefix(line), line.size()) << before;
    EXPECT_LE(line.size(), kMaxLineBytes);
  }
}

TEST(Escaped, KeepsTextOnOneLineAndCutsIt) {
  EXPECT_EQ(escaped("a\nb\x7f\u00e9\"\\"), "a\\u000ab\\u007f\u00e9\"\\");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(escaped("abc", 3), "abc");
  EXPECT_EQ(escaped("abcd", 3), "abc...");
}

TEST(InQuotes, IsAValidJsonString) {
  EXPECT_EQ(in_quotes("say \"a\\b\"\n"), "\"say \\\"a\\\\b\\\"\\u000a\"");
  EXPECT_EQ(in_quotes("", 3), "\"\"");
  EXPECT_EQ(in_quotes("ab\"d", 3), "\"ab\\\"\"...");
}

// What `use` prints with a LiveLine on a clock that it may move.
template <class Use>
std::string printed(bool live, const Use& use) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&data, &size);
  ManualClock clock;
  LiveLine line(file, live, clock);
  use(line, clock);
  std::fclose(file);
  std::string text(data, size);
  std::free(data);
  return text;
}

TEST(Folded, LongLine_EndsAtASpaceAndTheRestIsIndented) {
  EXPECT_EQ(folded("one two three four", 9), "one two\n  three\n  four");
  EXPECT_EQ(folded("  one two three", 9), "  one two\n    three");
  EXPECT_EQ(folded("one two", 7), "one two");
  EXPECT_EQ(folded("one two three\nfour\n", 9), "one two\n  three\nfour\n");
  EXPECT_EQ(folded("one two three", std::string::npos), "one two three");
}

TEST(Folded, WordThatIsTooLong_StaysWhole) {
  EXPECT_EQ(folded("see /a/very/long/path now", 9), "see\n  /a/very/long/path\n  now");
  EXPECT_EQ(folded("/a/very/long/path", 9), "/a/very/long/path");
}

TEST(Folded, CharactersOfSeveralBytes_CountOnce) { EXPECT_EQ(folded("äöü äöü", 7), "äöü äöü"); }

TEST(Folded, TextBehindAPrefix_IsIndentedBelowIt) {
  EXPECT_EQ("ok   " + folded("one two three", 12, 5), "ok   one two\n       three");
}

TEST(LiveLine, IsRewrittenOnATerminalAndPrintedElsewhere) {
  const auto use = [](LiveLine& line, ManualClock&) {
    line.show("one");
    line.show("two");
    line.note("news");
    line.show("three");
    line.end();
    line.show("four");
    line.clear();
    line.clear();
  };
  EXPECT_EQ(printed(true, use), "one\r\033[Ktwo\r\033[Knews\nthree\nfour\r\033[K");
  EXPECT_EQ(printed(false, use), "one\ntwo\nnews\nthree\nfour\n");
}

TEST(LiveLine, OnATerminal_IsCutToItsWidth) {
  const auto use = [](LiveLine& line, ManualClock&) {
    EXPECT_EQ(line.room(), 79U);  // it does not say: 80
    line.show(std::string(78, 'x') + "\u00e9zz");
    line.clear();
  };
  EXPECT_EQ(printed(true, use), std::string(78, 'x') + "\u00e9\r\033[K");
  EXPECT_EQ(first_columns("\u20ac\u20ac", 1), "\u20ac");
  EXPECT_EQ(first_columns("abc", 9), "abc");
}

TEST(LiveLine, LinesOfOtherThreads_StandAboveIt) {
  const auto use = [](LiveLine& line, ManualClock&) {
    line.show("step 1");
    above_live_line([] {});
    line.end();
    above_live_line([] {});  // nothing to move
  };
  EXPECT_EQ(printed(true, use), "step 1\r\033[Kstep 1\n");
}

TEST(LiveLine, IsDueAtFirstAndThenNotTooOften) {
  for (const bool live : {true, false}) {
    printed(live, [&](LiveLine& line, ManualClock& clock) {
      EXPECT_TRUE(line.is_due());
      line.show("one");
      EXPECT_FALSE(line.is_due());
      clock.advance(std::chrono::milliseconds(100));
      EXPECT_EQ(line.is_due(), live);
      clock.advance(std::chrono::milliseconds(4900));
      EXPECT_TRUE(line.is_due());
    });
  }
}

}  // namespace
}  // namespace thinpipe
