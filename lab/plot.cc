#include "lab/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace thinpipe {
namespace {

constexpr double kWidth = 640, kHeight = 400, kLeft = 60, kRight = 150, kTop = 36, kBottom = 44;
// Told apart also by people who see few colours.
constexpr std::array<const char*, 6> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double first_pixel, last_pixel;

  void include(double value) { low = std::min(low, value), high = std::max(high, value); }
  double at(double value) const {
    return high > low ? first_pixel + (value - low) / (high - low) * (last_pixel - first_pixel) : first_pixel;
  }
};

}  // namespace

std::vector<double> round_ticks(double low, double high) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
  std::vector<double> ticks;
  for (double number = std::ceil(low / step); number * step <= high; ++number) ticks.push_back(number * step);
  return ticks;
}

std::string to_svg(const Plot& plot) {
  Axis x{.first_pixel = kLeft, .last_pixel = kWidth - kRight}, y{.first_pixel = kHeight - kBottom, .last_pixel = kTop};
  for (const auto& series : plot.series) {
    for (const auto& [px, py] : series.points) x.include(px), y.include(py);
  }
  if (!(x.low <= x.high)) x.low = x.high = y.low = y.high = 0;  // nothing to show
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>\n",
      kWidth, kHeight, kLeft, escaped(plot.title));
  for (const double tick : round_ticks(x.low, x.high)) {
    out += fmt::format(
        "<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:g}</text>\n",
        x.at(tick), kTop, kHeight - kBottom, kHeight - kBottom + 16, tick);
  }
  for (const double tick : round_ticks(y.low, y.high)) {
    out += fmt::format(
        "<path d=\"M{0} {1:.1f}H{2}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:g}</text>\n",
        kLeft, y.at(tick), kWidth - kRight, kLeft - 6, y.at(tick) + 4, tick);
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 8, escaped(plot.x_label));
  out += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kHeight - kBottom) / 2, escaped(plot.y_label));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const auto& series = plot.series[i];
    const auto* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [px, py] : series.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x.at(px), y.at(py));
    }
    const double height = kTop + 10 + 18 * static_cast<double>(i);
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour);
    out += fmt::format("<path d=\"M{} {}h18\" stroke=\"{}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
                       kWidth - kRight + 10, height, colour, kWidth - kRight + 33, height + 4, escaped(series.name));
  }
  return out + "</svg>\n";
}

}  // namespace thinpipe
