// What all experiments of `thinpipe lab` have in common: a question, parts that are kept when they are done, progress
// with the time left, a table, plots, and an answer in one sentence.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "lab/lab.h"
#include "base/plot.h"
#include "lab/training.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {

class Experiment {
 public:
  // Prints the question. parts: the number of part() and train() calls to come.
  Experiment(std::string name, const std::string& question, const ExperimentOptions& options, int64_t parts);

  bool quick() const { return options_.quick; }

  // One part of the work: its result, from an earlier run if it was finished there (kept_or_made). Prints progress.
  nlohmann::ordered_json part(const std::string& what, const std::string& key,
                              const std::function<nlohmann::ordered_json()>& make);
  // Whether to save tensors; then no part is recalled. dump() writes NAME.safetensors.
  bool dumps() const { return !options_.dump.empty(); }
  void dump(const NamedTensors& tensors) const;
  // The part that trains this config.
  Curve train(const std::string& what, const RunConfig& config, const PreparedCorpus& corpus);

  // Fields of the JSON object, in order.
  nlohmann::ordered_json& result() { return result_; }
  // Prints the answer, writes the plots if a file was named, and prints the JSON object if asked to.
  void finish(const std::string& answer, const std::vector<Plot>& plots);

 private:
  void show_progress(const std::string& what);

  const std::string name_;
  const ExperimentOptions& options_;
  const int64_t parts_;
  const SystemClock clock_;
  const TimePoint start_;
  int64_t done_ = 0, made_ = 0;  // parts; those of them that were not kept from before
  nlohmann::ordered_json result_;
};

}  // namespace thinpipe
