// One training run in this process, as the experiments need it: its losses and its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "text/prepare.h"

namespace thinpipe {

struct Curve {
  int64_t parameters = 0;
  double bytes_per_token = 0;  // per cut, both directions; 0 without a cut
  int64_t every = 1;           // steps between evaluations
  std::vector<double> losses;  // validation losses after every `every` steps; the last is that of the end

  double final_loss() const { return losses.back(); }
  // The first evaluation at which the loss is at most `target`, in steps.
  std::optional<int64_t> steps_to(double target) const;
  // (step, loss) of every evaluation from this one on, for a plot.
  std::vector<std::pair<double, double>> points(size_t first = 0) const;
};
nlohmann::ordered_json to_json(const Curve& curve);
Curve curve_from(const nlohmann::ordered_json& json);

// Trains the config to its end, which must be a multiple of train.eval_every. `progress` is called after each
// evaluation with the step and its loss.
Curve train_curve(const RunConfig& config, const PreparedCorpus& corpus,
                  const std::function<void(int64_t step, double loss)>& progress = {});

// The JSON value that make() returned for this key in an earlier call, of this process or another, or make()'s. Values
// are kept as files in the data folder, under lab/GROUP; `key` must name everything that the value depends on.
nlohmann::ordered_json kept_or_made(const std::string& group, const std::string& key,
                                    const std::function<nlohmann::ordered_json()>& make);

// Finished runs are kept (kept_or_made).
Curve kept_curve(const std::string& group, const RunConfig& config, const PreparedCorpus& corpus,
                 const std::function<void(int64_t step, double loss)>& progress = {});

}  // namespace thinpipe
