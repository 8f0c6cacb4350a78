// A link between two threads of one process: pipelines without sockets, and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "net/link.h"

namespace thinpipe {

// The two ends: first belongs to the earlier stage and sends down, second to the later one and sends up. Capacities are
// in messages; 0 is a direction in which nobody may send. A close loses nothing: both ends still receive all that was
// sent before it.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_link(int64_t capacity_down, int64_t capacity_up);

}  // namespace thinpipe
