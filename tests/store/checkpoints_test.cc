#include "store/checkpoints.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "store/checkpoint_files.h"
#include "store/safetensors.h"
#include "support/faulty_file_system.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::newest_is;
using test::ok;
using test::receive;
using test::ScratchFolder;
using test::small_checkpoint;
using test::SmallCheckpoint;
using test::write_checkpoint;

// A store on a disk that need not be synced, in a folder of its own.
class CheckpointStoreTest : public ::testing::Test {
 protected:
  void commit(const SmallCheckpoint& checkpoint) { ASSERT_TRUE(ok(write_checkpoint(store_, checkpoint))); }

  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string at(int64_t step, const std::string& name) const {
    return (scratch_ / fmt::format("step-{:08}-g0", step) / name).string();
  }
  bool holds(int64_t step, const CheckpointFile& file) const { return store_.holds({step, 0}, file.unit, file.sha256); }

  static void overwrite(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  const ScratchFolder scratch_;
  test::FaultyFileSystem disk_;
  const ScopedFileSystem scope_{disk_};
  CheckpointStore store_{scratch_.path(), "run-1"};
};

TEST_F(CheckpointStoreTest, IsEmptyBeforeTheFirstCommit) {
  EXPECT_EQ(store_.latest().value(), std::nullopt);
  CheckpointStore nowhere(scratch_ / "not/there", "run-1");
  EXPECT_EQ(nowhere.latest().value(), std::nullopt);
  EXPECT_TRUE(ok(nowhere.keep(1, 0)));
  EXPECT_TRUE(ok(nowhere.clean_partials()));
  EXPECT_EQ(scratch_.file_count(), 0u);
}

TEST_F(CheckpointStoreTest, HoldsACheckpointOnlyAfterItsCommit) {
  const auto one = small_checkpoint(20);
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[1], one.contents[1])));
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[0], one.contents[0])));
  EXPECT_EQ(folders(), std::vector<std::string>{".step-00000020-g0.partial"});
  EXPECT_EQ(store_.latest().value(), std::nullopt);
  ASSERT_TRUE(ok(store_.commit(one.manifest)));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000020-g0"});
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_EQ(read_file(at(20, "unit-1.safetensors")).value(), one.contents[1]);
  EXPECT_EQ(read_file(at(20, "manifest.json")).value(), manifest_text(one.manifest));
  EXPECT_EQ(std::distance(fs::directory_iterator(at(20, "")), {}), 3);
}

TEST_F(CheckpointStoreTest, FindsTheNewestUpToAStep) {
  for (const int64_t step : {9, 100, 20}) commit(small_checkpoint(step));
  EXPECT_EQ(store_.latest().value()->id.step, 100);
  EXPECT_EQ(store_.latest(100).value()->id.step, 100);
  EXPECT_EQ(store_.latest(99).value()->id.step, 20);
  EXPECT_EQ(store_.latest(9).value()->id.step, 9);
  EXPECT_EQ(store_.latest(8).value(), std::nullopt);
}

TEST_F(CheckpointStoreTest, ATransferWithTheWrongBytesLeavesNothing) {
  const CheckpointFile file{"unit-0", 5, sha256_hex("right")};
  const auto partial = scratch_ / ".step-00000020-g0.partial";
  const auto refusal = [&](std::string_view bytes) {
    const auto status = receive(store_, {20, 0}, file, bytes);
    EXPECT_TRUE(fs::is_empty(partial));
    return status.ok() ? "taken" : status.error().message;
  };
  const std::string start = "checkpoint step-00000020-g0: unit-0: ";
  EXPECT_EQ(refusal("righ"), start + "4 bytes came, 5 were announced");
  EXPECT_EQ(refusal("right!"), start + "more bytes came than the 5 that were announced");
  EXPECT_EQ(refusal("wrong"), start + "damaged on its way: its sha256 is " + sha256_hex("wrong") + ", announced was " +
                                  sha256_hex("right"));
  {
    auto incoming = store_.receive_file({20, 0}, file);
    ASSERT_TRUE(incoming.value().append("rig").ok());
    EXPECT_FALSE(fs::is_empty(partial));
  }
  EXPECT_TRUE(fs::is_empty(partial));
  EXPECT_TRUE(ok(receive(store_, {20, 0}, file, "right")));
}

TEST_F(CheckpointStoreTest, ATransferThatFailedOrEndedTakesNoMore) {
  auto incoming = store_.receive_file({20, 0}, {"unit-0", 2, sha256_hex("ab")});
  ASSERT_TRUE(incoming.ok());
  EXPECT_FALSE(incoming.value().append("abc").ok());
  EXPECT_FALSE(incoming.value().append("a").ok());
  EXPECT_FALSE(incoming.value().finish().ok());
  auto other = store_.receive_file({20, 0}, {"unit-0", 2, sha256_hex("ab")});
  EXPECT_TRUE(ok(other.value().append("ab")));
  EXPECT_TRUE(ok(other.value().finish()));
  EXPECT_FALSE(other.value().append("").ok());
  EXPECT_FALSE(other.value().finish().ok());
}

TEST_F(CheckpointStoreTest, RefusesToReceiveWhatCannotBePartOfACheckpoint) {
  const std::string hash = sha256_hex("x");
  for (const char* name : {"", "..", "../x", "a/b", "a.b", "X"}) {
    const auto incoming = store_.receive_file({20, 0}, {name, 1, hash});
    ASSERT_FALSE(incoming.ok()) << name;
    EXPECT_NE(incoming.error().message.find("needs a plain name"), std::string::npos);
  }
  EXPECT_FALSE(store_.receive_file({-1, 0}, {"x", 1, hash}).ok());
  EXPECT_FALSE(store_.receive_file({100'000'000, 0}, {"x", 1, hash}).ok());
  EXPECT_EQ(store_.receive_file({1, 0}, {"x", 1, "abc"}).error().message,
            "checkpoint step-00000001-g0: \"x\": its sha256 is \"abc\", needs 64 lower-case hex digits");
  EXPECT_EQ(scratch_.file_count(), 0u);
}

TEST_F(CheckpointStoreTest, AFileReceivedAgainReplacesTheFirst) {
  const auto one = small_checkpoint(20);
  const CheckpointFile other{"unit-0", 5, sha256_hex("other")};
  ASSERT_TRUE(ok(receive(store_, {20, 0}, other, "other")));
  ASSERT_TRUE(ok(receive(store_, {20, 0}, {"unit-9", 5, sha256_hex("other")}, "other")));
  commit(one);
  EXPECT_FALSE(holds(20, other));
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_FALSE(fs::exists(at(20, "unit-9.safetensors"))) << "not in the manifest";
}

TEST_F(CheckpointStoreTest, CommitNamesTheFileThatIsNotThere) {
  const auto one = small_checkpoint(20);
  const std::string start = "cannot commit the checkpoint step-00000020-g0: ";
  EXPECT_EQ(store_.commit(one.manifest).error().message, start + "unit-0 has not been received");
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[0], one.contents[0])));
  EXPECT_EQ(store_.commit(one.manifest).error().message, start + "unit-1 has not been received");
  ASSERT_TRUE(ok(receive(store_, {20, 0}, {"unit-1", 5, sha256_hex("other")}, "other")));
  EXPECT_EQ(store_.commit(one.manifest).error().message, start + "unit-1 was received with 5 bytes and sha256 " +
                                                             sha256_hex("other") + ", the manifest has 101 and " +
                                                             one.manifest.files[1].sha256);
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[1], one.contents[1])));
  fs::resize_file(scratch_ / ".step-00000020-g0.partial/unit-1.safetensors", 50);
  EXPECT_NE(store_.commit(one.manifest).error().message.find("truncated: has 50 bytes, needs 101"), std::string::npos);
  EXPECT_EQ(store_.latest().value(), std::nullopt);
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[1], one.contents[1])));
  EXPECT_TRUE(ok(store_.commit(one.manifest)));
}

TEST_F(CheckpointStoreTest, CommitRefusesAFileOfTheRightSizeAndAnotherHash) {
  const auto one = small_checkpoint(20);
  const auto other = small_checkpoint(20, 1);
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[0], one.contents[0])));
  ASSERT_TRUE(ok(receive(store_, {20, 0}, other.manifest.files[1], other.contents[1])));
  EXPECT_NE(store_.commit(one.manifest).error().message.find("unit-1 was received with 101 bytes and"),
            std::string::npos);
}

// The new bytes have the name and the old hash was noted: together they would make a damaged checkpoint.
TEST_F(CheckpointStoreTest, AReplacementThatFailedInItsLastStepIsNotTakenForTheFirst) {
  const auto one = small_checkpoint(20);
  const auto other = small_checkpoint(20, 1);
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[i], one.contents[i])));
  disk_.fail_next("sync_directory");
  ASSERT_FALSE(receive(store_, {20, 0}, other.manifest.files[0], other.contents[0]).ok());
  EXPECT_EQ(store_.commit(one.manifest).error().message,
            "cannot commit the checkpoint step-00000020-g0: unit-0 has not been received");
  EXPECT_TRUE(ok(write_checkpoint(store_, one)));
  EXPECT_TRUE(newest_is(store_, one));
}

TEST_F(CheckpointStoreTest, GenerationsOfOneStepStandSideBySideAndTheLaterIsTheNewest) {
  commit(small_checkpoint(20, 3));
  commit(small_checkpoint(40, 2));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20, 3))) << "the run had gone back from step 40";
  EXPECT_TRUE(ok(store_.commit(small_checkpoint(20, 3).manifest))) << "without sending its files again";
  commit(small_checkpoint(20, 4));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20, 4)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000020-g3", "step-00000020-g4", "step-00000040-g2"}));
}

TEST_F(CheckpointStoreTest, CommitRefusesAManifestThatCouldNotBeReadBack) {
  auto one = small_checkpoint(20);
  one.manifest.basis_hash = "x";
  EXPECT_EQ(
      write_checkpoint(store_, one).error().message,
      "cannot commit the checkpoint step-00000020-g0: basis_hash needs 64 lower-case hex digits or an empty text");
  EXPECT_EQ(write_checkpoint(store_, small_checkpoint(20, 0, "run-2")).error().message,
            "cannot commit the checkpoint step-00000020-g0: it is of run \"run-2\", this store is of run \"run-1\"");
  EXPECT_EQ(store_.latest().value(), std::nullopt);
}

TEST_F(CheckpointStoreTest, HoldsTheFilesOfWhatWasCommitted) {
  const auto one = small_checkpoint(20);
  const auto& file = one.manifest.files[0];
  ASSERT_TRUE(ok(receive(store_, {20, 0}, file, one.contents[0])));
  EXPECT_FALSE(holds(20, file));
  commit(one);
  EXPECT_TRUE(holds(20, file));
  EXPECT_FALSE(holds(21, file));
  EXPECT_FALSE(store_.holds({20, 1}, file.unit, file.sha256));
  EXPECT_FALSE(store_.holds({20, 0}, file.unit, sha256_hex("other")));
  EXPECT_FALSE(store_.holds({20, 0}, "unit-1", file.sha256));
}

TEST_F(CheckpointStoreTest, EveryFlippedByteOfAFileIsNoticed) {
  commit(small_checkpoint(10));
  const auto one = small_checkpoint(20);
  commit(one);
  for (size_t file = 0; file < 2; ++file) {
    const auto path = at(20, unit_file_name(one.manifest.files[file].unit));
    for (size_t i = 0; i < one.contents[file].size(); ++i) {
      std::string bytes = one.contents[file];
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      overwrite(path, bytes);
      EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
      EXPECT_EQ(store_.refusals(), std::vector<std::string>{path + ": damaged: its sha256 is " + sha256_hex(bytes) +
                                                            ", needs " + one.manifest.files[file].sha256});
    }
    overwrite(path, one.contents[file]);
  }
  EXPECT_TRUE(newest_is(store_, one));
}

TEST_F(CheckpointStoreTest, EveryTruncationIsPassedOverWithItsReason) {
  commit(small_checkpoint(10));
  const auto one = small_checkpoint(20);
  commit(one);
  const auto path = at(20, "unit-1.safetensors");
  const auto expect_refusal = [&](const std::string& reason) {
    EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
    EXPECT_EQ(store_.refusals(), std::vector<std::string>{path + reason});
  };
  for (size_t size = 0; size < 103; ++size) {
    std::string bytes = one.contents[1];
    bytes.resize(size, 'y');
    overwrite(path, bytes);
    if (size == 101) continue;
    expect_refusal(fmt::format(": {}: has {} bytes, needs 101", size < 101 ? "truncated" : "too long", size));
  }
  fs::remove(path);
  expect_refusal(": is missing");
  fs::create_directory(path);
  expect_refusal(": is not a regular file");
  fs::remove_all(path);
  overwrite(path, one.contents[1]);
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_TRUE(store_.refusals().empty());
}

TEST_F(CheckpointStoreTest, AManifestOfAnotherRunOrStepIsNamed) {
  commit(small_checkpoint(10));
  commit(small_checkpoint(20));
  overwrite(at(20, "manifest.json"), manifest_text(small_checkpoint(20, 0, "run-2").manifest));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
  EXPECT_EQ(store_.refusals(), std::vector<std::string>{fmt::format("{}: is of another run: \"run-2\", not \"run-1\"",
                                                                    (scratch_ / "step-00000020-g0").string())});
  EXPECT_FALSE(write_checkpoint(store_, small_checkpoint(20)).ok()) << "it is not ours to remove";
  overwrite(at(20, "manifest.json"), manifest_text(small_checkpoint(30).manifest));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
  EXPECT_EQ(store_.refusals(),
            std::vector<std::string>{at(20, "manifest.json") + ": is of step-00000030-g0, not step-00000020-g0"});
}

// The first attempt may have failed at its last sync: the second must not say more than it knows.
TEST_F(CheckpointStoreTest, AStepCommittedAgainIsSyncedAgain) {
  commit(small_checkpoint(20));
  disk_.fail_next("sync_directory");
  EXPECT_FALSE(store_.commit(small_checkpoint(20).manifest).ok());
  EXPECT_TRUE(ok(store_.commit(small_checkpoint(20).manifest)));
}

TEST_F(CheckpointStoreTest, ADamagedStepIsReplacedByTheSameGeneration) {
  commit(small_checkpoint(20));
  fs::remove(at(20, "unit-0.safetensors"));
  commit(small_checkpoint(20));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20)));
}

TEST_F(CheckpointStoreTest, ATransferOutlastedByItsCommitIsRefused) {
  const auto one = small_checkpoint(20);
  auto late = store_.receive_file({20, 0}, {"unit-0", 5, sha256_hex("other")});
  ASSERT_TRUE(late.value().append("other").ok());
  commit(one);
  EXPECT_NE(late.value().finish().error().message.find("comes too late"), std::string::npos);
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_EQ(std::distance(fs::directory_iterator(at(20, "")), {}), 3);
}

TEST_F(CheckpointStoreTest, PassesOverAnyNumberOfDamagedOnes) {
  for (const int64_t step : {10, 20, 30, 40}) commit(small_checkpoint(step));
  overwrite(at(40, "manifest.json"), manifest_text(small_checkpoint(40).manifest) + " ");  // manifest_test.cc flips all
  fs::remove(at(30, "manifest.json"));
  fs::resize_file(at(20, "unit-0.safetensors"), 7);
  EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
  EXPECT_EQ(store_.refusals(), (std::vector<std::string>{
                                   at(40, "manifest.json") + ": not a checkpoint manifest: damaged: it is not spelled "
                                                             "as thinpipe writes it",
                                   at(30, "manifest.json") + ": is missing",
                                   at(20, "unit-0.safetensors") + ": truncated: has 7 bytes, needs 100"}));
}

TEST_F(CheckpointStoreTest, IgnoresFoldersThatAreNotItsOwn) {
  commit(small_checkpoint(20));
  for (const char* name : {"step-30-g0", "step-00000030", "step-0000003x-g0", "step-00000030-g", "step-00000030-g01",
                           "step--0000030-g0", ".step-00000030-g0.partial"}) {
    ASSERT_TRUE(make_directories(scratch_ / name).ok());
  }
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20)));
  EXPECT_TRUE(store_.refusals().empty());
}

TEST_F(CheckpointStoreTest, KeepsTheNewestAndTheRoundOnes) {
  for (const int64_t step : {0, 10, 20, 30, 40, 50, 60, 70}) commit(small_checkpoint(step));
  ASSERT_TRUE(ok(store_.keep(2, 30)));
  EXPECT_EQ(folders(),
            (std::vector<std::string>{"step-00000000-g0", "step-00000030-g0", "step-00000060-g0", "step-00000070-g0"}));
  ASSERT_TRUE(ok(store_.keep(3, 0)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000030-g0", "step-00000060-g0", "step-00000070-g0"}));
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000070-g0"});
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(70)));
}

// Otherwise a damaged newest one would push out the last whole one.
TEST_F(CheckpointStoreTest, KeepDoesNotCountDamagedOnesOrThoseOfOtherRuns) {
  for (const int64_t step : {10, 20, 30, 40, 50}) commit(small_checkpoint(step));
  fs::resize_file(at(50, "unit-0.safetensors"), 7);
  overwrite(at(40, "manifest.json"), manifest_text(small_checkpoint(40, 0, "run-2").manifest));
  overwrite(at(10, "manifest.json"), manifest_text(small_checkpoint(10, 0, "run-2").manifest));
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_EQ(folders(),
            (std::vector<std::string>{"step-00000010-g0", "step-00000030-g0", "step-00000040-g0", "step-00000050-g0"}));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(30)));
}

TEST_F(CheckpointStoreTest, CleansWhatInterruptionsLeft) {
  commit(small_checkpoint(20));
  const CheckpointFile file = small_checkpoint(30).manifest.files[0];
  ASSERT_TRUE(ok(receive(store_, {30, 0}, file, small_checkpoint(30).contents[0])));
  ASSERT_TRUE(make_directories(scratch_ / ".step-00000010-g0.removed/x").ok());
  ASSERT_TRUE(make_directories(scratch_ / ".other").ok());
  ASSERT_TRUE(ok(store_.clean_partials()));
  EXPECT_EQ(folders(), (std::vector<std::string>{".other", "step-00000020-g0"}));
  commit(small_checkpoint(30));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(30)));
}

TEST_F(CheckpointStoreTest, TakesNothingOverFromAKilledProcess) {
  const auto one = small_checkpoint(20);
  ASSERT_TRUE(ok(receive(store_, {20, 0}, one.manifest.files[0], one.contents[0])));
  CheckpointStore restarted(scratch_.path(), "run-1");
  ASSERT_TRUE(ok(receive(restarted, {20, 0}, one.manifest.files[1], one.contents[1])));
  EXPECT_FALSE(fs::exists(scratch_ / ".step-00000020-g0.partial/unit-0.safetensors"));
  EXPECT_FALSE(restarted.commit(one.manifest).ok());
}

TEST(CheckpointStoreThreads, ReceivesFilesFromSeveralAtOnce) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), "run-1");
  auto big = small_checkpoint(20);
  big.manifest.files.clear();
  for (int stage = 0; stage < 4; ++stage) {
    big.contents.resize(4);
    big.contents[static_cast<size_t>(stage)] = std::string(10'000, static_cast<char>('a' + stage));
    big.manifest.files.push_back(
        {fmt::format("unit-{}", stage), 10'000, sha256_hex(big.contents[static_cast<size_t>(stage)])});
  }
  std::vector<std::thread> stages;
  for (size_t stage = 0; stage < 4; ++stage) {
    stages.emplace_back([&, stage] {
      const auto& file = big.manifest.files[stage];
      auto incoming = store.receive_file({20, 0}, file);
      ASSERT_TRUE(incoming.ok());
      for (size_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(incoming.value().append(std::string_view(big.contents[stage]).substr(i * 100, 100)).ok());
        (void)store.holds({20, 0}, file.unit, file.sha256);
      }
      EXPECT_TRUE(ok(incoming.value().finish()));
    });
  }
  for (auto& stage : stages) stage.join();
  EXPECT_TRUE(ok(store.commit(big.manifest)));
  EXPECT_TRUE(newest_is(store, big));
}

}  // namespace
}  // namespace thinpipe
