// The runs of others in which this machine takes part, or has taken part.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace thinpipe {

// This machine's folders of them.
std::vector<std::filesystem::path> joined_folders();

// Prints what its owner allows there, and whether it takes part now.
void print_joined_run(const std::filesystem::path& folder);

// The same for every run in which a process of this machine takes part now. Returns them as JSON.
nlohmann::ordered_json print_joined_runs();

}  // namespace thinpipe
