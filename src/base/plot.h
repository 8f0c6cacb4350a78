// Line plots as SVG, for what the experiments print: one self-contained file without scripts, dark in dark mode.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace thinpipe {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), finite
};

struct Plot {
  std::string title, x_label, y_label;  // labels name the unit
  std::vector<Series> series;
  bool log_x = false, log_y = false;  // then all numbers on that axis are above 0
};

// One plot, or several beside and below each other, two in a row.
std::string to_svg(const Plot& plot);
std::string to_svg(const std::vector<Plot>& plots);

// About five round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`.
std::vector<double> round_ticks(double low, double high);
// 1, 2 and 5 times powers of ten from `low` to `high`, or the powers alone if that would be more than eight. low > 0.
std::vector<double> log_ticks(double low, double high);

}  // namespace thinpipe
