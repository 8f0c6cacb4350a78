// The minimum time of a step: the critical path of a schedule. `bench wan` compares it with measured steps,
// `lab speedrun` computes with it.
#pragma once

#include <vector>

#include "pipeline/schedule.h"

namespace thinpipe {

struct LinkTimes {
  double transfer_s;  // a direction of a link carries one message at a time
  double delay_s;     // from the end of the transfer to the arrival
};

struct ScheduleTimes {
  std::vector<double> forward_s;    // (p)
  std::vector<double> backward_s;   // (p)
  std::vector<LinkTimes> forward;   // (p-1)  from stage i to i+1
  std::vector<LinkTimes> backward;  // (p-1)  from stage i+1 to i
};

// Seconds from the start of the step to the end of its last pass, if all stages start together, have a core each and
// wait only for messages. `stages`: the passes of each stage, from passes().
double schedule_bound_s(const std::vector<std::vector<Pass>>& stages, const ScheduleTimes& times);

}  // namespace thinpipe
