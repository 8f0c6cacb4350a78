// Interrupts the writing and removal of checkpoints at every disk operation by every kind of fault: the previous
// checkpoint stays intact and is found, and the next attempt succeeds.
#include <gtest/gtest.h>

#include <functional>

#include "store/checkpoint_files.h"
#include "support/faulty_file_system.h"

namespace thinpipe {
namespace {

using test::Fault;
using test::FaultyFileSystem;
using test::is_power_loss;
using test::kAllFaults;
using test::kills;
using test::newest_is;
using test::ok;
using test::ScratchFolder;
using test::small_checkpoint;
using test::SmallCheckpoint;
using test::write_checkpoint;

// For every fault and n = 1, 2, ... until the fault no longer happens: runs `attempt` on a store that `prepare` has
// filled, with the fault at operation n, then calls `check` without it. After a killed process, a new store is used.
struct Interruption {
  std::function<void(CheckpointStore&)> prepare;
  std::function<Status(CheckpointStore&)> attempt;
  std::function<void(CheckpointStore&, const Status&, const FaultyFileSystem&, Fault, size_t n)> check;

  void run_all() const {
    for (const Fault fault : kAllFaults) {
      size_t n = 1;
      while (run(fault, n)) ASSERT_LT(++n, 1000u);
      EXPECT_TRUE(n > 5 || fault == Fault::kShortWrite) << "nothing was interrupted";  // removing writes nothing
    }
  }

  bool run(Fault fault, size_t n) const {
    SCOPED_TRACE(fmt::format("{} at operation {}", name_of(fault), n));
    const ScratchFolder folder;
    FaultyFileSystem sound;
    FaultyFileSystem disk(fault, n);
    CheckpointStore store(folder / "a/checkpoints", "run-1");
    {
      const ScopedFileSystem scope(sound);
      prepare(store);
    }
    Status status;
    {
      const ScopedFileSystem scope(disk);
      status = attempt(store);
      if (kills(fault)) disk.crash();  // at the latest now
    }
    const ScopedFileSystem scope(sound);
    CheckpointStore restarted(folder / "a/checkpoints", "run-1");
    check(kills(fault) ? restarted : store, status, disk, fault, n);
    return disk.fault_happened();
  }
};

// The number of the operation that gave the checkpoint its name, or 0.
size_t naming(const FaultyFileSystem& disk, const std::string& operation) {
  const auto& all = disk.operations();
  for (size_t i = all.size(); i > 0; --i) {
    if (all[i - 1] == operation) return i;
  }
  return 0;
}

// Which one exists after an interruption: the new one if it had its name and, after a power loss, if that was synced.
void check_either(CheckpointStore& store, const Status& status, const SmallCheckpoint& before,
                  const SmallCheckpoint& after, size_t commit_point, Fault fault, size_t n) {
  // A commit() that reported success is done, even if a harmless fault happened, such as a failed close.
  const bool named = status.ok() || n > commit_point;
  const bool synced = status.ok() || n > commit_point + 1;
  const bool is_new = is_power_loss(fault) ? synced : named;
  EXPECT_TRUE(newest_is(store, is_new ? after : before));
  EXPECT_TRUE(store.refusals().empty());
  EXPECT_TRUE(ok(write_checkpoint(store, after)));
  EXPECT_TRUE(newest_is(store, after));
  EXPECT_TRUE(ok(store.clean_partials()));
  EXPECT_TRUE(newest_is(store, after));
}

// The operations of an undisturbed run, to know when the checkpoint gets its name.
size_t commit_point_of(const Interruption& interruption, const std::string& operation) {
  size_t point = 0;
  Interruption undisturbed = interruption;
  undisturbed.check = [&](CheckpointStore&, const Status& status, const FaultyFileSystem& disk, Fault, size_t) {
    EXPECT_TRUE(ok(status));
    point = naming(disk, operation);
    EXPECT_EQ(disk.operations().at(point), "sync_directory");
  };
  EXPECT_FALSE(undisturbed.run(Fault::kNone, 0));
  return point;
}

TEST(CheckpointFaults, InterruptedWriting_KeepsThePreviousCheckpoint) {
  const auto before = small_checkpoint(10);
  const auto after = small_checkpoint(20);
  size_t commit_point = 0;
  Interruption interruption{
      .prepare = [&](CheckpointStore& store) { ASSERT_TRUE(ok(write_checkpoint(store, before))); },
      .attempt = [&](CheckpointStore& store) { return write_checkpoint(store, after); },
      .check = [&](CheckpointStore& store, const Status& status, const FaultyFileSystem&, Fault fault,
                   size_t n) { check_either(store, status, before, after, commit_point, fault, n); }};
  commit_point = commit_point_of(interruption, "rename");
  interruption.run_all();
}

TEST(CheckpointFaults, InterruptedFirstCheckpoint_IsCompleteOrMissing) {
  const auto first = small_checkpoint(20);
  Interruption{.prepare = [](CheckpointStore&) {},
               .attempt = [&](CheckpointStore& store) { return write_checkpoint(store, first); },
               .check =
                   [&](CheckpointStore& store, const Status& status, const FaultyFileSystem&, Fault, size_t) {
                     const auto latest = store.latest();
                     ASSERT_TRUE(latest.ok()) << latest.error().message;
                     EXPECT_TRUE(!latest.value() || newest_is(store, first));
                     EXPECT_TRUE(!status.ok() || latest.value());
                     EXPECT_TRUE(store.refusals().empty());
                     EXPECT_TRUE(ok(write_checkpoint(store, first)));
                     EXPECT_TRUE(newest_is(store, first));
                   }}
      .run_all();
}

bool is_there(const CheckpointStore& store, int64_t step) {
  return std::filesystem::exists(store.path_of({step, 0}, "unit-0"));
}

TEST(CheckpointFaults, InterruptedRemoval_NeverLeavesAPartialCheckpoint) {
  const auto prepare = [](CheckpointStore& store) {
    for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(ok(write_checkpoint(store, small_checkpoint(step))));
  };
  const auto every_one_is_whole = [](CheckpointStore& store) {
    for (const int64_t step : {40, 30, 20, 10}) {
      const auto latest = store.latest(step);
      ASSERT_TRUE(latest.ok());
      EXPECT_TRUE(!is_there(store, step) || latest.value() == small_checkpoint(step).manifest);
      EXPECT_TRUE(store.refusals().empty());
    }
  };
  Interruption{.prepare = prepare,
               .attempt = [](CheckpointStore& store) { return store.keep(1, 30); },
               .check =
                   [&](CheckpointStore& store, const Status& status, const FaultyFileSystem& disk, Fault, size_t) {
                     every_one_is_whole(store);
                     EXPECT_EQ(status.ok(), !disk.fault_happened());
                     EXPECT_TRUE(newest_is(store, small_checkpoint(40)));
                     EXPECT_TRUE(ok(store.keep(1, 30)));
                     EXPECT_TRUE(ok(store.clean_partials()));
                     EXPECT_FALSE(is_there(store, 10));
                     EXPECT_FALSE(is_there(store, 20));
                     EXPECT_EQ(store.latest(30).value(), small_checkpoint(30).manifest);
                   }}
      .run_all();
}

}  // namespace
}  // namespace thinpipe
