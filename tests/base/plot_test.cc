// Plots: ticks are round and inside, points are where their numbers say, text cannot break the file.
#include "base/plot.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

TEST(Plot, TicksAreRoundNumbersInsideTheRange) {
  EXPECT_EQ(round_ticks(0, 300), (std::vector<double>{0, 100, 200, 300}));
  EXPECT_EQ(round_ticks(12, 58), (std::vector<double>{20, 30, 40, 50}));
  EXPECT_EQ(round_ticks(-1, 1), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(round_ticks(2, 2), (std::vector<double>{2}));
}

TEST(Plot, FirstAndLastPointLieInTheCornersOfTheAxes) {
  const auto svg = to_svg({"t", "x", "y", {{"falls", {{0, 4}, {100, 3}}}}});
  EXPECT_NE(svg.find("M60.0 36.0L490.0 356.0"), std::string::npos) << svg;
}

TEST(Plot, LogTicksAreFewAndInside) {
  EXPECT_EQ(log_ticks(1, 10), (std::vector<double>{1, 2, 5, 10}));
  EXPECT_EQ(log_ticks(3, 60), (std::vector<double>{5, 10, 20, 50}));
  EXPECT_EQ(log_ticks(1, 10000), (std::vector<double>{1, 10, 100, 1000, 10000}));
}

TEST(Plot, ALogAxisPutsTheGeometricMeanInTheMiddle) {
  const auto svg = to_svg({"t", "x", "y", {{"line", {{1, 1}, {10, 2}, {100, 3}}}}, /*log_x=*/true});
  EXPECT_NE(svg.find("M60.0 356.0L275.0 196.0L490.0 36.0"), std::string::npos) << svg;
}

TEST(Plot, SeveralPlotsStandSideBySideAndBelow) {
  const Plot plot{"t", "x", "y", {{"line", {{0, 0}, {1, 1}}}}};
  const auto svg = to_svg(std::vector{plot, plot, plot});
  EXPECT_NE(svg.find("viewBox=\"0 0 1280 800\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("translate(640 0)"), std::string::npos);
  EXPECT_NE(svg.find("translate(0 400)"), std::string::npos);
}

TEST(Plot, NamesAreEscapedAndNoPointsGiveAnEmptyPlot) {
  const auto svg = to_svg({"a < b & c", "x", "y", {{"<script>", {}}}});
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
