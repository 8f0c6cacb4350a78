// What this machine has to give: memory, disk, cores, as the system says it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace thinpipe {

// Bytes a process here could still take without swapping: what the system has available, or what the control group it
// runs in (v1 or v2, and those above it) has left, whichever is less. 0 when neither says, so nothing left is 1.
uint64_t available_memory_bytes();
// The same from other places than /proc and /sys/fs/cgroup, for tests.
uint64_t available_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup);

// Bytes an ordinary user may still write where `path` is or would be made; 0 when the system does not say.
uint64_t free_disk_bytes(const std::filesystem::path& path);

// Cores this process may run on, at least 1.
int64_t usable_cores();

}  // namespace thinpipe
