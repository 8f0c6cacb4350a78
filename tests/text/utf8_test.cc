#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "text/text_files.h"

namespace thinpipe {
namespace {

using namespace std::string_view_literals;
using test::encoded;

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool scalar = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
    const std::string text = "x" + encoded(code) + "y";
    ASSERT_EQ(valid_utf8_prefix(text), scalar ? text.size() : 1) << std::hex << code;
  }
}

TEST(Utf8, RefusesOverlongFormsStrayBytesAndCutCharacters) {
  for (const std::string_view bad : {"\xC0\x80"sv, "\xC1\xBF"sv, "\xE0\x9F\xBF"sv, "\xF0\x8F\xBF\xBF"sv, "\x80"sv,
                                     "\xFF"sv, "\xFE"sv, "\xC3"sv, "\xE2\x96"sv, "\xF0\x9F\x98"sv, "\xC3("sv}) {
    EXPECT_EQ(valid_utf8_prefix("ok " + std::string(bad)), 3U) << bad.size();
  }
}

TEST(Utf8, CutsAtTheFirstLineEndFromTheTargetOn) {
  EXPECT_EQ(cut_length("aa\nbbbb\ncc\n", 5), 8U);
  EXPECT_EQ(cut_length("aaaa\nb\n", 5), 5U);
  EXPECT_EQ(cut_length("short", 100), 5U);
}

TEST(Utf8, CutsALineThatIsTooLongBetweenCharacters) {
  EXPECT_EQ(cut_length(std::string(30, 'x'), 5), 10U);
  EXPECT_EQ(cut_length(std::string(10, 'x'), 5), 10U);
  // Ten bytes end inside the third of these four-byte characters.
  EXPECT_EQ(cut_length("\U0001F600\U0001F600\U0001F600\U0001F600", 5), 8U);
  // Even a target of one byte makes progress.
  EXPECT_EQ(cut_length("\U0001F600\U0001F600", 1), 4U);
  EXPECT_EQ(cut_length("a\U0001F600\U0001F600", 1), 1U);
  // What is not UTF-8 has no such place, and is cut at the limit.
  EXPECT_EQ(cut_length(std::string(30, '\x80'), 5), 10U);
}

}  // namespace
}  // namespace thinpipe
