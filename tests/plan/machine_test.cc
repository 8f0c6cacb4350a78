// Reads memory and disk from made-up /proc and cgroup folders and from the real ones.
#include "plan/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/scratch.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;

class Machine : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void write_meminfo(uint64_t mib) {
    write("proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: " + std::to_string(mib * 1024) + " kB\n");
  }
  uint64_t available() { return available_memory_bytes(root_ / "proc", root_ / "cgroup"); }

  const test::ScratchFolder root_;
};

TEST_F(Machine, WithoutAControlGroup_ReportsTheSystemsMemory) {
  write_meminfo(1000);
  EXPECT_EQ(available(), 1000 * kMiB);
}

TEST_F(Machine, InAControlGroup_UsesTheLowestLimitOfItAndItsParents) {
  write_meminfo(1000);
  write("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
  write("cgroup/a/b/memory.max", "max\n");
  write("cgroup/a/b/memory.current", "5\n");
  write("cgroup/a/memory.max", std::to_string(500 * kMiB));
  write("cgroup/a/memory.current", std::to_string(300 * kMiB));
  EXPECT_EQ(available(), 200 * kMiB);
  // File pages that the kernel can drop do not count as used.
  write("cgroup/a/memory.stat", "anon 7\ninactive_file " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(available(), 300 * kMiB);
  write_meminfo(50);
  EXPECT_EQ(available(), 50 * kMiB);
}

TEST_F(Machine, InAGroupOverItsLimit_ReportsOneByteBecauseZeroMeansUnknown) {
  write_meminfo(1000);
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "100");
  write("cgroup/memory.current", "200");
  EXPECT_EQ(available(), 1u);
}

TEST_F(Machine, WithoutFilesOrWithNonsense_ReportsUnknown) {
  EXPECT_EQ(available(), 0u);
  write("proc/meminfo", "MemAvailable: many kB\n");
  write("proc/self/cgroup", "nonsense\n0:\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(Machine, OnTheRealSystem_ReportsMemoryAndDisk) {
  EXPECT_GT(available_memory_bytes(), 0u);
  EXPECT_GT(free_disk_bytes("."), 0u);
  EXPECT_GT(free_disk_bytes(fs::temp_directory_path() / "not" / "there" / "yet"), 0u);
}

}  // namespace
}  // namespace thinpipe
