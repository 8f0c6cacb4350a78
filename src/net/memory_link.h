// A link between two threads of one process, for pipelines without sockets and for tests.
#pragma once

#include <memory>
#include <utility>

#include "net/link.h"

namespace thinpipe {

// Returns the two ends. They move frames and never copy them.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_link();

}  // namespace thinpipe
