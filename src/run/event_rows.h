// The events of a run that nobody serves, from its store. Needs no libtorch, unlike RunStore.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "proto/control.pb.h"

namespace thinpipe {

// Events with a higher number than `after`, at most `most` of them, the newest if there are more, in order. Empty if
// the store cannot be read: while a coordinator has it open, only the coordinator can tell.
std::vector<control::EventLine> stored_events(const std::filesystem::path& run_folder, int64_t after, int64_t most);

}  // namespace thinpipe
