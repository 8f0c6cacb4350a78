#include "plan/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace thinpipe {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The number after `name` in the first line that begins with it, if there is one.
std::optional<uint64_t> field_in(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    const size_t digit = std::min(line.size(), line.find_first_not_of(' ', name.size()));
    uint64_t number = 0;
    const auto [end, code] = std::from_chars(line.data() + digit, line.data() + line.size(), number);
    return code == std::errc() ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

// The memory left under the limits of this process's control group (v2) and the groups above it.
uint64_t left_in_control_groups(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  std::ifstream groups(proc / "self" / "cgroup");
  std::string line;
  while (std::getline(groups, line) && !line.starts_with("0::/")) {
  }
  if (!line.starts_with("0::/")) return kNoLimit;
  uint64_t left = kNoLimit;
  for (auto folder = std::filesystem::path(line.substr(4));; folder = folder.parent_path()) {
    const auto here = cgroup / folder;
    const auto limit = field_in(here / "memory.max", ""), usage = field_in(here / "memory.current", "");
    if (limit && usage) {
      // The kernel drops inactive file pages before it refuses memory.
      const uint64_t cache = field_in(here / "memory.stat", "inactive_file ").value_or(0);
      const uint64_t used = *usage - std::min(*usage, cache);
      left = std::min(left, *limit - std::min(*limit, used));
    }
    if (folder.empty()) return left;
  }
}

}  // namespace

uint64_t available_memory_bytes() { return available_memory_bytes("/proc", "/sys/fs/cgroup"); }

uint64_t available_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  const auto kilobytes = field_in(proc / "meminfo", "MemAvailable:");
  const uint64_t system = kilobytes && *kilobytes < kNoLimit / 1024 ? *kilobytes * 1024 : kNoLimit;
  const uint64_t least = std::min(system, left_in_control_groups(proc, cgroup));
  return least == kNoLimit ? 0 : std::max<uint64_t>(1, least);
}

uint64_t free_disk_bytes(const std::filesystem::path& path) {
  std::error_code code;
  auto existing = std::filesystem::absolute(path, code);
  while (!code && !std::filesystem::exists(existing, code) && existing.has_relative_path()) {
    existing = existing.parent_path();
    code.clear();
  }
  const auto space = std::filesystem::space(existing, code);
  return code || space.available == std::numeric_limits<uintmax_t>::max() ? 0 : space.available;
}

}  // namespace thinpipe
