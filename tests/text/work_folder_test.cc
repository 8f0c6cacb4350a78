#include "text/work_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/scratch.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;
using test::write_file;

TEST(WorkFolder, AppearsCompleteOrNotAtAll) {
  const ScratchFolder folder;
  {
    auto work = WorkFolder::create(folder / "target").take();
    write_file(work.path() / "inner/a", "a");
    EXPECT_FALSE(std::filesystem::exists(folder / "target"));
  }
  EXPECT_EQ(folder.file_count(), 0U);
  {
    auto work = WorkFolder::create(folder / "target").take();
    write_file(work.path() / "a", "new");
    work.publish().take();
  }
  EXPECT_EQ(read_file(folder / "target/a").take(), "new");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(WorkFolder, ReplacesAnExistingFolder) {
  const ScratchFolder folder;
  write_file(folder / "target/old", "old");
  auto work = WorkFolder::create(folder / "target").take();
  write_file(work.path() / "a", "new");
  work.publish().take();
  EXPECT_EQ(folder.file_count(), 1U);
  EXPECT_FALSE(std::filesystem::exists(folder / "target/old"));
}

TEST(WorkFolder, StartsEmptyAfterAKilledProcess) {
  const ScratchFolder folder;
  write_file(folder / ".target.unfinished/inner/a", "half");
  auto work = WorkFolder::create(folder / "target").take();
  EXPECT_TRUE(std::filesystem::is_empty(work.path()));
}

TEST(WorkFolder, RemovesAbandonedFoldersOnly) {
  const ScratchFolder folder;
  for (const char* name : {"left", "locked"}) write_file(folder / fmt::format(".{}.unfinished/a", name), "half");
  write_file(folder / ".left.lock", "");
  write_file(folder / ".alone.lock", "");
  write_file(folder / "other/a", "whole");
  write_file(folder / ".other/a", "whole");
  const auto lock = FileLock::acquire(lock_of(folder / "locked"), [] {}).take();
  remove_abandoned_work(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / ".left.unfinished"));
  for (const char* kept : {".locked.unfinished/a", ".locked.lock", "other/a", ".other/a"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / kept)) << kept;
  }
  EXPECT_EQ(folder.file_count(), 4U) << "a lock was left";
}

TEST(WorkFolder, NamesAFolderItCannotWriteTo) {
  const ScratchFolder folder;
  write_file(folder / "file", "x");
  EXPECT_FALSE(WorkFolder::create(folder / "file/target").ok());
  EXPECT_FALSE(FileLock::acquire(folder / "no/lock", [] {}).ok());
}

TEST(FileLock, IsHeldByOneAtATimeAndLeavesNoFile) {
  const ScratchFolder folder;
  std::atomic<int> inside{0};
  std::atomic<int> turns{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 200; ++turn) {
        const auto lock = FileLock::acquire(folder / "lock", [] {}).take();
        EXPECT_EQ(++inside, 1);
        ++turns;
        --inside;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(turns, 800);
  EXPECT_EQ(folder.file_count(), 0U);
}

TEST(FileLock, WaiterWaitsForTheNextHolderOfTheName) {
  // While the second waits, the first leaves and removes the file, and a third process makes a new one.
  const ScratchFolder folder;
  auto first = std::make_unique<FileLock>(FileLock::acquire(folder / "lock", [] { FAIL(); }).take());
  std::unique_ptr<FileLock> third;
  std::atomic<bool> third_left{false};
  std::thread helper;
  const auto second = FileLock::acquire(folder / "lock", [&] {
                        first.reset();
                        third = std::make_unique<FileLock>(FileLock::acquire(folder / "lock", [] { FAIL(); }).take());
                        helper = std::thread([&] {
                          for (int i = 0; i < 10'000; ++i) std::this_thread::yield();
                          third_left = true;
                          third.reset();
                        });
                      }).take();
  EXPECT_TRUE(third_left);
  helper.join();
}

TEST(FileLock, ReportsThatItHasToWait) {
  const ScratchFolder folder;
  auto first = std::make_unique<FileLock>(FileLock::acquire(folder / "lock", [] { FAIL(); }).take());
  bool waited = false;
  const auto second = FileLock::acquire(folder / "lock", [&] {
                        waited = true;
                        first.reset();
                      }).take();
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace thinpipe
