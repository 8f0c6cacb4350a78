// What the owner of a machine allows a run to use: threads, memory, the line, hours of the day. `join` and `train` take
// these as options and keep them in the folder of the run; an option that is given again wins. Without libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace thinpipe {

// As a person gives them; empty: not given.
struct GuestOptions {
  std::string threads = {}, nice = {}, max_memory = {}, max_upload = {}, max_download = {}, hours = {}, on_battery = {};
};

// One of them, for the command line, for guest.json and for messages.
struct GuestOption {
  const char* name;  // without the dashes
  std::string GuestOptions::*text;
  const char* shown;  // "RATE"
  const char* help;
  bool for_train;  // a run on one machine uses no line
};
std::span<const GuestOption> guest_options();

// Minutes of the local day; the hours may span midnight. The two differ.
struct DailyHours {
  int from_min = 0, to_min = 0;
};

// What they mean. 0: no limit.
struct GuestLimits {
  int threads = 0;
  int nice = 0;
  uint64_t max_memory_bytes = 0;
  uint64_t max_upload_bits_per_s = 0, max_download_bits_per_s = 0;
  std::optional<DailyHours> hours;  // none: always
  bool leave_on_battery = false;

  bool caps_the_line() const { return max_upload_bits_per_s > 0 || max_download_bits_per_s > 0; }
  bool may_leave() const { return hours || leave_on_battery; }
};

// The error names the option, the value and what would be right.
Result<GuestLimits> limits_of(const GuestOptions& options);

// "threads 2, max-upload 5mbit"; empty if nothing was given.
std::string describe(const GuestOptions& options);

// What is kept in that folder; nothing if there is no guest.json.
Result<GuestOptions> kept_guest_options(const std::filesystem::path& folder);
// Those of the folder, with the given ones in their place. Refuses invalid ones.
Result<GuestOptions> merged_guest_options(const std::filesystem::path& folder, const GuestOptions& given);
// Writes guest.json, unless there is nothing to keep.
Status keep_guest_options(const std::filesystem::path& folder, const GuestOptions& options);

// Lowers the priority of the calling thread, and of threads and processes that it starts later.
void be_nice(int nice);
// Lets the calling thread, and what it starts later, run on at most that many cores of those that it may use now; 0:
// all of them.
void use_cores(int count);

// The number of compute threads where a config wants so many (0: one per core) and the owner allows `most` (0: any).
int64_t threads_within(int64_t wanted, int most);

}  // namespace thinpipe
