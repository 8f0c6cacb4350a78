// What does not change during a run: its config, and a few facts that are not in the config. The coordinator's parts
// (roster, paths, steps, saving) decide by these rules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/placement.h"
#include "run/core/protocol.h"

namespace thinpipe {

struct RunRules {
  std::string run;            // its id
  RunConfig config;           // validated. The machines' decision on the cuts turns pipeline.auto_cuts off
  std::string config_sha256;  // config_identity() of config
  // Strangers take part: a worker that fails permanently loses its place instead of ending the run.
  bool open = false;
  int64_t vocab = 0;
  int64_t validation_windows = 0;  // in the whole validation split
  double hop_s = 0;                // delay and transfer of one message on the slowest emulated line
  uint64_t packet_bytes = 0;       // of the largest message, to compute its transfer time on a measured line

  int64_t steps() const { return config.train.steps; }
  // How many validation windows the evaluation after `committed` steps reads.
  int64_t windows_after(int64_t committed) const {
    return committed == steps() ? validation_windows : std::min(config.train.eval_sequences, validation_windows);
  }
  // Every seat of the run, in order. Today one machine holds a stage.
  std::vector<Seat> seats() const {
    std::vector<Seat> all;
    for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) all.push_back({.stage = stage});
    return all;
  }
};

}  // namespace thinpipe
