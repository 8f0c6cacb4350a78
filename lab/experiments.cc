#include "lab/experiments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"

namespace thinpipe {
namespace {

using Run = void (*)(const ExperimentOptions&);
// In the order of kExperiments.
constexpr std::array<Run, kExperiments.size()> kRuns{lab_collapse, lab_depth,     lab_drift,    lab_rank,
                                                     lab_codecs,   lab_grassmann, lab_overhead, lab_bandwidth};

// "plots.svg" of experiment "rank" is "plots-rank.svg".
std::string svg_of(const std::string& svg, const std::string& name) {
  if (svg.empty()) return svg;
  const auto dot = svg.ends_with(".svg") ? svg.size() - 4 : svg.size();
  return svg.substr(0, dot) + "-" + name + ".svg";
}

}  // namespace

void lab_experiment(const std::string& name, const ExperimentOptions& options) {
  for (size_t i = 0; i < kExperiments.size(); ++i) {
    if (name == kExperiments[i].name) return kRuns[i](options);
  }
  TP_CHECK(name == "all", "no experiment {}", name);
  for (size_t i = 0; i < kExperiments.size(); ++i) {
    auto own = options;
    own.svg = svg_of(options.svg, kExperiments[i].name);
    fmt::print("{}== {} ==\n", i == 0 ? "" : "\n", kExperiments[i].name);
    kRuns[i](own);
  }
}

}  // namespace thinpipe
