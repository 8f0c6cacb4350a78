#include "plan/machine.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace thinpipe {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The file's first word as a number; nothing when there is no such file or it says "max".
std::optional<uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (code != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// The number behind `name` in a file of lines "name number ...".
std::optional<uint64_t> field_in(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!std::string_view(line).starts_with(name)) continue;
    const size_t digit = line.find_first_of("0123456789", name.size());
    uint64_t number = 0;
    if (digit == std::string::npos) return std::nullopt;
    const auto [end, code] = std::from_chars(line.data() + digit, line.data() + line.size(), number);
    if (code != std::errc()) return std::nullopt;
    return number;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat: file pages the group could drop
};

// What is left of the limits of `group` and of the groups above it, up to `root`.
uint64_t left_in_groups(const std::filesystem::path& root, std::string_view group, const GroupFiles& files) {
  uint64_t left = kNoLimit;
  std::filesystem::path folder = std::filesystem::path(group).relative_path();
  while (true) {
    const auto here = root / folder;
    const auto limit = number_in(here / files.limit), usage = number_in(here / files.usage);
    if (limit && usage) {
      const uint64_t cache = field_in(here / "memory.stat", files.reclaimable).value_or(0);
      const uint64_t used = *usage - std::min(*usage, cache);
      left = std::min(left, *limit - std::min(*limit, used));
    }
    if (folder.empty()) return left;
    folder = folder.parent_path();
  }
}

// The lines of /proc/self/cgroup: "0::/path" for v2, "9:memory:/path" for v1.
uint64_t left_in_control_groups(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  std::ifstream groups(proc / "self" / "cgroup");
  uint64_t left = kNoLimit;
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (controllers == ",,") {
      left = std::min(left, left_in_groups(cgroup, group, {"memory.max", "memory.current", "inactive_file "}));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(cgroup / "memory", group,
                                           {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "}));
    }
  }
  return left;
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

int64_t usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

}  // namespace thinpipe
