// How much memory and disk space this machine can offer, as the system reports it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace thinpipe {

// Bytes that a process can still allocate without swapping: the system's available memory, or what its control group
// (v2) and the groups above it have left, whichever is less. Returns 0 if unknown, otherwise at least 1.
uint64_t available_memory_bytes();
// Reads other folders than /proc and /sys/fs/cgroup, for tests.
uint64_t available_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup);

// Bytes that an ordinary user may still write at `path`, which need not exist yet; 0 if unknown.
uint64_t free_disk_bytes(const std::filesystem::path& path);

}  // namespace thinpipe
