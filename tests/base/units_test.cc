#include "base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/say.h"

namespace thinpipe {
namespace {

using namespace std::chrono_literals;

TEST(Rate, ReadsBitsPerSecond) {
  EXPECT_EQ(parse_rate("80mbit").value(), 80'000'000u);
  EXPECT_EQ(parse_rate("80Mbit").value(), 80'000'000u);
  EXPECT_EQ(parse_rate("1.5 gbit").value(), 1'500'000'000u);
  EXPECT_EQ(parse_rate("9600bit").value(), 9600u);
  EXPECT_EQ(parse_rate("56kbit").value(), 56'000u);
  EXPECT_EQ(parse_rate("unlimited").value(), 0u);
}

TEST(Duration, ReadsEveryUnit) {
  EXPECT_EQ(parse_duration("7ns").value(), 7ns);
  EXPECT_EQ(parse_duration("2.5us").value(), 2500ns);
  EXPECT_EQ(parse_duration("25ms").value(), 25ms);
  EXPECT_EQ(parse_duration("25 MS").value(), 25ms);
  EXPECT_EQ(parse_duration("1.5s").value(), 1500ms);
  EXPECT_EQ(parse_duration("2min").value(), 120s);
  EXPECT_EQ(parse_duration("1h").value(), 3600s);
  EXPECT_EQ(parse_duration("7d").value(), 7 * 24h);
  EXPECT_EQ(parse_duration("0").value(), 0ns);
}

TEST(Size, ReadsBytesInBothKindsOfUnits) {
  EXPECT_EQ(parse_size("4KiB").value(), 4096u);
  EXPECT_EQ(parse_size("4kb").value(), 4000u);
  EXPECT_EQ(parse_size("1.5MiB").value(), 1'572'864u);
  EXPECT_EQ(parse_size("2GB").value(), 2'000'000'000u);
  EXPECT_EQ(parse_size("1GiB").value(), 1'073'741'824u);
  EXPECT_EQ(parse_size("17").value(), 17u);
  EXPECT_EQ(parse_size("17 B").value(), 17u);
}

TEST(Units, RefusalShowsACorrectExample) {
  for (const char* text :
       {"", "mbit", "80", "80mb", "-1mbit", "80mbit/s", "1e3mbit", "nan mbit", "inf", "0x10mbit", "80 m bit"}) {
    const auto rate = parse_rate(text);
    ASSERT_FALSE(rate.ok()) << text;
    EXPECT_EQ(rate.error().message,
              fmt::format("'{}' is not a rate: write a number and a unit, as in \"80mbit\"", text));
  }
  for (const char* text : {"0", "0mbit", "0.1bit"}) {
    EXPECT_EQ(parse_rate(text).error().message,
              fmt::format("'{}' is not a rate; write \"unlimited\" for no limit", text));
  }
  for (const char* text : {"", "25", "ms", "25 m", "-1s", "25ms ago", "infms"}) {
    const auto duration = parse_duration(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_EQ(duration.error().message,
              fmt::format("'{}' is not a duration: write a number and a unit, as in \"25ms\"", text));
  }
  for (const char* text : {"", "KiB", "4Kib.", "-4", "4 TiB", "nan"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.error().message, fmt::format("'{}' is not a size: write a number and a unit, as in \"4KiB\"", text));
  }
}

TEST(Units, RefuseValuesThatAreTooLarge) {
  EXPECT_EQ(parse_duration("9999999999h").error().message, "'9999999999h' is too large for a duration");
  EXPECT_EQ(parse_size("99999999999GiB").error().message, "'99999999999GiB' is too large for a size");
  EXPECT_FALSE(parse_size(std::string(400, '9')).ok());
}

TEST(Units, AreWrittenInTheLargestFittingUnit) {
  EXPECT_EQ(format_rate(0), "unlimited");
  EXPECT_EQ(format_rate(999), "999bit");
  EXPECT_EQ(format_rate(80'000'000), "80mbit");
  EXPECT_EQ(format_rate(1'500'000'000), "1.5gbit");
  EXPECT_EQ(format_rate(56'000), "56kbit");
  EXPECT_EQ(format_duration(0ns), "0s");
  EXPECT_EQ(format_duration(999ns), "999ns");
  EXPECT_EQ(format_duration(2500ns), "2.5us");
  EXPECT_EQ(format_duration(25ms), "25ms");
  EXPECT_EQ(format_duration(1500ms), "1.5s");
  EXPECT_EQ(format_duration(61s), "1m01s");
  EXPECT_EQ(format_duration(3660s), "1h01m");
  EXPECT_EQ(format_size(0), "0B");
  EXPECT_EQ(format_size(1023), "1023B");
  EXPECT_EQ(format_size(1536), "1.5KiB");
  EXPECT_EQ(format_size(1'572'864), "1.5MiB");
  EXPECT_EQ(format_size(uint64_t{3} << 30), "3GiB");
}

TEST(RateText, MeasuredRate_HasAFewDigitsAndNoPowersOfTen) {
  EXPECT_EQ(rate_text(1.33e9), "1.3 Gbit/s");
  EXPECT_EQ(rate_text(1.333e8), "133 Mbit/s");
  EXPECT_EQ(rate_text(63'986'000), "64 Mbit/s");
  EXPECT_EQ(rate_text(2'200'000), "2.2 Mbit/s");
  EXPECT_EQ(rate_text(300'400), "300 kbit/s");
  EXPECT_EQ(rate_text(12), "12 bit/s");
  for (const double odd : {0.0, -1.0, 1e300, std::nan("")}) EXPECT_EQ(rate_text(odd), "an unknown rate");
}

TEST(Counted, OneAndMany) {
  EXPECT_EQ(counted(1, "stage"), "1 stage");
  EXPECT_EQ(counted(4, "stage"), "4 stages");
  EXPECT_EQ(counted(2, "process"), "2 processes");
}

TEST(Units, ReadBackWhatTheyWrite) {
  for (const uint64_t value : {uint64_t{1}, uint64_t{500}, uint64_t{2'000}, uint64_t{1'250'000}, uint64_t{80'000'000},
                               uint64_t{1'500'000'000}}) {
    EXPECT_EQ(parse_rate(format_rate(value)).value(), value);
    EXPECT_EQ(parse_duration(format_duration(Duration(value))).value(), Duration(value));
  }
  for (const uint64_t value : {uint64_t{0}, uint64_t{1023}, uint64_t{1536}, uint64_t{5} << 20, uint64_t{7} << 30}) {
    EXPECT_EQ(parse_size(format_size(value)).value(), value);
  }
}

}  // namespace
}  // namespace thinpipe
