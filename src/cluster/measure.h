// What this machine can do for a run: how long one of its blocks takes here, and how much memory there is.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "proto/control.pb.h"

namespace thinpipe {

// Runs one microbatch through one block of the run's size, and one through the head, with the run's number of threads.
// Allocates what they need: check the memory first.
control::Machine measure_machine(const RunConfig& config, int64_t vocab);

}  // namespace thinpipe
