// What is left on the disk when writing a file is interrupted at each of its operations; and the failing disk itself,
// which the other fault tests trust.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/file_system.h"
#include "base/files.h"
#include "support/faulty_file_system.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::Fault;
using test::FaultyFileSystem;
using test::kAllFaults;
using test::ScratchFolder;

const std::string kNew(1000, 'n');

Status write_new(const std::filesystem::path& path) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  if (auto status = file.value().append(kNew); !status) return status;
  if (auto status = file.value().write_at(0, "N"); !status) return status;
  return file.value().commit();
}

size_t position_of(const std::vector<std::string>& operations, const std::string& name) {
  const auto found = std::find(operations.begin(), operations.end(), name);
  return static_cast<size_t>(found - operations.begin()) + 1;
}

TEST(AtomicFileFaults, WritesInTheOrderThatSurvivesACrash) {
  const ScratchFolder folder;
  FaultyFileSystem disk;
  const ScopedFileSystem scope(disk);
  ASSERT_TRUE(write_new(folder / "a").ok());
  EXPECT_EQ(disk.operations(),
            (std::vector<std::string>{"create", "write", "pwrite", "fsync", "rename", "close", "sync_directory"}));
}

TEST(AtomicFileFaults, EveryFaultLeavesTheCompleteOldOrNewFile) {
  for (const Fault fault : kAllFaults) {
    for (size_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("{} at operation {}", name_of(fault), n));
      ASSERT_LT(n, 100u);
      const ScratchFolder folder;
      ASSERT_TRUE(write_file_atomically(folder / "a", "old").ok());
      std::optional<FaultyFileSystem> held(std::in_place, fault, n);
      FaultyFileSystem& disk = *held;
      Status status;
      {
        const ScopedFileSystem scope(disk);
        status = write_new(folder / "a");
        if (kills(fault)) disk.crash();  // at the latest when all is done
      }
      const bool in_place = !disk.fault_happened() || n > position_of(disk.operations(), "rename");
      const bool is_new = is_power_loss(fault) ? !disk.fault_happened() : in_place;
      EXPECT_EQ(read_file(folder / "a").value(), is_new ? "N" + kNew.substr(1) : "old");
      // A failing close is harmless, because the bytes were synced before it.
      const bool harmless =
          !disk.fault_happened() || (!kills(fault) && n == position_of(disk.operations(), "close") && in_place);
      EXPECT_EQ(status.ok(), harmless);
      EXPECT_TRUE(status.ok() || status.error().message.find(folder.path().string()) != std::string::npos);
      EXPECT_TRUE(kills(fault) || folder.file_count() == 1) << "a process that lives on cleans up";
      const bool last = !disk.fault_happened();
      held.reset();  // a killed process holds no files open
      EXPECT_TRUE(write_new(folder / "a").ok());
      EXPECT_EQ(read_file(folder / "a").value(), "N" + kNew.substr(1));
      EXPECT_EQ(folder.file_count(), 1u) << "the next writer removes what a killed one has left";
      if (last) break;
    }
  }
}

Status write_new_folder(const std::filesystem::path& path) {
  auto folder = TRY(AtomicFolder::create(path));
  TRY(write_file_atomically(folder.path() / "one", "1"));
  TRY(make_directories(folder.path() / "in"));
  TRY(write_file_atomically(folder.path() / "in/two", "2"));
  return folder.commit();
}

TEST(AtomicFolderFaults, EveryFaultLeavesNoFolderOrTheCompleteOne) {
  for (const Fault fault : kAllFaults) {
    for (size_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("{} at operation {}", name_of(fault), n));
      ASSERT_LT(n, 100u);
      const ScratchFolder folder;
      std::optional<FaultyFileSystem> held(std::in_place, fault, n);
      FaultyFileSystem& disk = *held;
      Status status;
      {
        const ScopedFileSystem scope(disk);
        status = write_new_folder(folder / "a");
        if (kills(fault)) disk.crash();
      }
      const bool there = std::filesystem::exists(folder / "a");
      EXPECT_TRUE(there || !status.ok());
      if (there) {
        EXPECT_EQ(read_file(folder / "a/one").value(), "1");
        EXPECT_EQ(read_file(folder / "a/in/two").value(), "2");
      }
      EXPECT_TRUE(status.ok() || status.error().message.find(folder.path().string()) != std::string::npos);
      EXPECT_TRUE(kills(fault) || folder.file_count() == (there ? 1u : 0u)) << "a process that lives on cleans up";
      const bool last = !disk.fault_happened();
      held.reset();
      ASSERT_TRUE(remove_tree(folder / "a").ok());
      EXPECT_TRUE(write_new_folder(folder / "a").ok());
      EXPECT_EQ(folder.file_count(), 1u) << "the next one removes what a killed one has left";
      EXPECT_EQ(read_file(folder / "a/in/two").value(), "2");
      if (last) break;
    }
  }
}

TEST(FileFaults, ADirectoryThatCannotBeSyncedIsReported) {
  const ScratchFolder folder;
  FaultyFileSystem disk(Fault::kIoError, 7);
  const ScopedFileSystem scope(disk);
  EXPECT_EQ(write_new(folder / "a").error().message,
            fmt::format("cannot write folder {}: Input/output error", folder.path().string()));
}

TEST(FileFaults, MakeDirectoriesAndRemoveTreeNameWhatFailed) {
  const ScratchFolder folder;
  {
    FaultyFileSystem disk(Fault::kNoSpace, 3);
    const ScopedFileSystem scope(disk);
    EXPECT_EQ(make_directories(folder / "x/y").error().message,
              fmt::format("cannot create folder {}/x/y: No space left on device", folder.path().string()));
  }
  ASSERT_TRUE(make_directories(folder / "x/y").ok());
  ASSERT_TRUE(write_file_atomically(folder / "x/y/f", "1").ok());
  {
    FaultyFileSystem disk(Fault::kIoError, 1);
    const ScopedFileSystem scope(disk);
    EXPECT_EQ(remove_tree(folder / "x").error().message,
              fmt::format("cannot remove {}/x/y/f: Input/output error", folder.path().string()));
  }
  EXPECT_TRUE(remove_tree(folder / "x").ok());
  EXPECT_EQ(folder.file_count(), 0u);
  EXPECT_TRUE(remove_tree(folder / "x").ok());
}

TEST(FileFaults, RemoveTreeDoesNotFollowLinks) {
  const ScratchFolder folder;
  const ScratchFolder other;
  ASSERT_TRUE(write_file_atomically(other / "kept", "1").ok());
  ASSERT_TRUE(make_directories(folder / "x").ok());
  std::filesystem::create_directory_symlink(other.path(), folder / "x/link");
  EXPECT_TRUE(remove_tree(folder / "x").ok());
  EXPECT_EQ(folder.file_count(), 0u);
  EXPECT_EQ(other.file_count(), 1u);
}

// The double must lose what a real disk may lose, or the tests above prove nothing.
TEST(PowerLoss, LosesUnsyncedBytesAndNames) {
  const ScratchFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  ASSERT_TRUE(write_file_atomically(folder / "replaced", "old").ok());
  ASSERT_TRUE(write_file_atomically(folder / "removed", "kept").ok());
  FaultyFileSystem disk(Fault::kPowerLoss, 12);
  std::string synced = path("synced-XXXXXX");
  std::string unsynced = path("unsynced-XXXXXX");
  const int first = disk.create_unique(synced, 0644);               // 1
  const int second = disk.create_unique(unsynced, 0644);            // 2
  EXPECT_EQ(disk.write(first, "1234", 4), 4);                       // 3
  EXPECT_EQ(disk.write(second, "1234", 4), 4);                      // 4
  EXPECT_EQ(disk.fsync(first), 0);                                  // 5
  EXPECT_EQ(disk.close(first), 0);                                  // 6
  EXPECT_EQ(disk.close(second), 0);                                 // 7
  EXPECT_EQ(disk.sync_directory(folder.path()), 0);                 // 8
  EXPECT_EQ(disk.rename(synced, path("replaced")), 0);              // 9
  EXPECT_EQ(disk.unlink(path("removed")), 0);                       // 10
  EXPECT_EQ(disk.mkdir(path("made")), 0);                           // 11
  EXPECT_EQ(disk.rename(path("replaced"), path("elsewhere")), -1);  // 12
  EXPECT_EQ(disk.unlink(path("replaced")), -1);
  EXPECT_EQ(read_file(synced).value(), "1234");
  EXPECT_EQ(read_file(unsynced).value(), "12");
  EXPECT_EQ(read_file(path("replaced")).value(), "old");
  EXPECT_EQ(read_file(path("removed")).value(), "kept");
  EXPECT_EQ(folder.file_count(), 4u);
}

TEST(PowerLoss, LosesUnsyncedNamesInAMovedFolder) {
  const ScratchFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  FaultyFileSystem disk(Fault::kPowerLoss, 5);
  std::string file = path("partial/f-XXXXXX");
  EXPECT_EQ(disk.mkdir(path("partial")), 0);
  const int descriptor = disk.create_unique(file, 0644);
  EXPECT_EQ(disk.rename(path("partial"), path("final")), 0);
  EXPECT_EQ(disk.sync_directory(folder.path()), 0);
  EXPECT_EQ(disk.fsync(descriptor), -1);
  disk.close(descriptor);
  EXPECT_TRUE(std::filesystem::is_directory(path("final")));
  EXPECT_TRUE(std::filesystem::is_empty(path("final")));  // the file's name was in a folder nobody synced
}

}  // namespace
}  // namespace thinpipe
