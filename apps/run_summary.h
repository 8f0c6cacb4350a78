// What the files of a run say about it, for `thinpipe runs`, `thinpipe show` and `thinpipe status`: how far it is, how
// good, how large; also of a run that this machine has joined. Uses no libtorch and does not ask the run's coordinator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "run_folders.h"

namespace thinpipe {

struct RunSummary {
  std::filesystem::path folder;
  std::string name;
  std::string state;  // "running", "complete", "failed: ..."
  std::string fault;  // why the rest is not known; otherwise empty
  int64_t step = 0, steps = 0;
  std::optional<double> loss, validation_loss;  // the last ones; NaN if not finite
  std::optional<double> left_s;                 // of a running one: for its other steps, at the speed of the last
  std::string corpus;
  std::string changed;  // when it last made a step, or was made: "2026-01-31 17:05", local time
  uint64_t bytes = 0;   // of all its files
};

// Never throws: a damaged run has a fault.
RunSummary summary_of(const std::filesystem::path& run);

// "step 108/120  loss 3.8048  validation 3.9012  ETA 21s"
std::string progress_text(const RunSummary& run);
nlohmann::ordered_json json_of(const RunSummary& run);
// "21s", "1h5m"
std::string left_text(double left_s);

// "NAME (3f2a91ab)"
std::string joined_name(const JoinedFolder& run);
// What this machine knows of a joined run: a line, and one with its limits if it has any.
std::string joined_text(const JoinedFolder& run);
nlohmann::ordered_json json_of(const JoinedFolder& run);

// What the owner of this machine allows that run: "limits on this machine: threads 2\n"; "" if nothing was said.
std::string limits_line(const std::filesystem::path& folder);
nlohmann::ordered_json limits_json(const std::filesystem::path& folder);

}  // namespace thinpipe
