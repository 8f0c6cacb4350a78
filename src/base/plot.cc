#include "base/plot.h"

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
  bool log;
  double first_pixel, last_pixel;
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void include(double value) { low = std::min(low, value), high = std::max(high, value); }
  double at(double value) const {
    if (!(high > low)) return first_pixel;
    const double share = log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return first_pixel + share * (last_pixel - first_pixel);
  }
  std::vector<double> ticks() const { return log ? log_ticks(low, high) : round_ticks(low, high); }
};

// Lines and names of the series.
std::string drawn(const std::vector<Series>& all, const Axis& x, const Axis& y) {
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& series = all[i];
    const auto* colour = kColours[i % kColours.size()];
    // With more lines than colours, the later ones are dashed.
    const auto* dashes = i < kColours.size() ? "" : " stroke-dasharray=\"5 3\"";
    std::string path;
    for (const auto& [px, py] : series.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x.at(px), y.at(py));
    }
    const double height = kTop + 10 + 18 * static_cast<double>(i);
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path, colour, dashes);
    out += fmt::format("<path d=\"M{} {}h18\" stroke=\"{}\" stroke-width=\"2\"{}/><text x=\"{}\" y=\"{}\">{}</text>\n",
                       kWidth - kRight + 10, height, colour, dashes, kWidth - kRight + 33, height + 4,
                       escaped(series.name));
  }
  return out;
}

// The plot without the outer element.
std::string content_of(const Plot& plot) {
  Axis x{plot.log_x, kLeft, kWidth - kRight}, y{plot.log_y, kHeight - kBottom, kTop};
  for (const auto& series : plot.series) {
    for (const auto& [px, py] : series.points) x.include(px), y.include(py);
  }
  if (!(x.low <= x.high)) x.low = x.high = y.low = y.high = 1;  // nothing to show
  std::string out = fmt::format("<text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>\n", kLeft, escaped(plot.title));
  for (const double tick : x.ticks()) {
    out += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:g}</text>\n",
        x.at(tick), kTop, kHeight - kBottom, kHeight - kBottom + 16, tick);
  }
  for (const double tick : y.ticks()) {
    out += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:g}</text>\n",
        kLeft, y.at(tick), kWidth - kRight, kLeft - 6, y.at(tick) + 4, tick);
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 8, escaped(plot.x_label));
  out += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kHeight - kBottom) / 2, escaped(plot.y_label));
  return out + drawn(plot.series, x, y);
}

}  // namespace

std::vector<double> round_ticks(double low, double high) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
  std::vector<double> ticks;
  for (double number = std::ceil(low / step); number * step <= high; ++number)
    ticks.push_back(number * step + 0.0);  // no -0
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> powers, all;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double tick : {power, 2 * power, 5 * power}) {
      if (tick < low || tick > high) continue;
      all.push_back(tick);
      if (tick == power) powers.push_back(tick);
    }
  }
  return all.size() > 8 ? powers : all;
}

std::string to_svg(const Plot& plot) { return to_svg(std::vector{plot}); }

std::string to_svg(const std::vector<Plot>& plots) {
  const size_t columns = std::min<size_t>(plots.size(), 2), rows = (plots.size() + 1) / 2;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.back{{fill:#fff}}text{{fill:#222}}.grid{{stroke:#ddd}}@media(prefers-color-scheme:dark){{.back{{fill:"
      "#111}}text{{fill:#ddd}}.grid{{stroke:#444}}}}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
      kWidth * static_cast<double>(columns), kHeight * static_cast<double>(rows));
  for (size_t i = 0; i < plots.size(); ++i) {
    out += fmt::format("<g transform=\"translate({} {})\">\n{}</g>\n", kWidth * static_cast<double>(i % 2),
                       kHeight * static_cast<double>(i / 2), content_of(plots[i]));
  }
  return out + "</svg>\n";
}

}  // namespace thinpipe
