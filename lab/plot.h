// Line plots as SVG, for what the experiments print: one self-contained file, no scripts, readable on white and black.
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
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

std::string to_svg(const Plot& plot);

// About five round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`.
std::vector<double> round_ticks(double low, double high);

}  // namespace thinpipe
