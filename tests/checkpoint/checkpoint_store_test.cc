#include "checkpoint/checkpoint_store.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"
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

  std::string at(int64_t step, const std::string& name) const { return store_.path_of(step, name).string(); }

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
  EXPECT_TRUE(ok(nowhere.drop_after(0)));
  EXPECT_TRUE(ok(nowhere.clean_partials()));
  EXPECT_EQ(scratch_.file_count(), 0u);
}

TEST_F(CheckpointStoreTest, HoldsACheckpointOnlyAfterItsCommit) {
  const auto one = small_checkpoint(20);
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[1], one.contents[1])));
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[0], one.contents[0])));
  EXPECT_EQ(folders(), std::vector<std::string>{".step-00000020.partial"});
  EXPECT_EQ(store_.latest().value(), std::nullopt);
  ASSERT_TRUE(ok(store_.commit(one.manifest)));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000020"});
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_EQ(read_file(at(20, "stage-1.safetensors")).value(), one.contents[1]);
  EXPECT_EQ(read_file(at(20, "manifest.json")).value(), manifest_text(one.manifest));
  EXPECT_EQ(std::distance(fs::directory_iterator(at(20, "")), {}), 3);
}

TEST_F(CheckpointStoreTest, FindsTheNewestUpToAStep) {
  for (const int64_t step : {9, 100, 20}) commit(small_checkpoint(step));
  EXPECT_EQ(store_.latest().value()->step, 100);
  EXPECT_EQ(store_.latest(100).value()->step, 100);
  EXPECT_EQ(store_.latest(99).value()->step, 20);
  EXPECT_EQ(store_.latest(9).value()->step, 9);
  EXPECT_EQ(store_.latest(8).value(), std::nullopt);
}

TEST_F(CheckpointStoreTest, ATransferWithTheWrongBytesLeavesNothing) {
  const CheckpointFile file{"stage-0.safetensors", 5, sha256_hex("right")};
  const auto partial = scratch_ / ".step-00000020.partial";
  const auto refusal = [&](std::string_view bytes) {
    const auto status = receive(store_, 20, file, bytes);
    EXPECT_TRUE(fs::is_empty(partial));
    EXPECT_FALSE(store_.holds(20, file.name, file.sha256));
    return status.ok() ? "taken" : status.error().message;
  };
  const std::string start = "checkpoint of step 20: stage-0.safetensors: ";
  EXPECT_EQ(refusal("righ"), start + "4 bytes came, 5 were announced");
  EXPECT_EQ(refusal("right!"), start + "more bytes came than the 5 that were announced");
  EXPECT_EQ(refusal("wrong"), start + "damaged on its way: its sha256 is " + sha256_hex("wrong") + ", announced was " +
                                  sha256_hex("right"));
  {
    auto incoming = store_.receive_file(20, file.name, file.bytes, file.sha256);
    ASSERT_TRUE(incoming.value().append("rig").ok());
    EXPECT_FALSE(fs::is_empty(partial));
  }
  EXPECT_TRUE(fs::is_empty(partial));
  EXPECT_TRUE(ok(receive(store_, 20, file, "right")));
  EXPECT_TRUE(store_.holds(20, file.name, file.sha256));
}

TEST_F(CheckpointStoreTest, ATransferThatFailedOrEndedTakesNoMore) {
  auto incoming = store_.receive_file(20, "stage-0.safetensors", 2, sha256_hex("ab"));
  ASSERT_TRUE(incoming.ok());
  EXPECT_FALSE(incoming.value().append("abc").ok());
  EXPECT_FALSE(incoming.value().append("a").ok());
  EXPECT_FALSE(incoming.value().finish().ok());
  auto other = store_.receive_file(20, "stage-0.safetensors", 2, sha256_hex("ab"));
  EXPECT_TRUE(ok(other.value().append("ab")));
  EXPECT_TRUE(ok(other.value().finish()));
  EXPECT_FALSE(other.value().append("").ok());
  EXPECT_FALSE(other.value().finish().ok());
  EXPECT_TRUE(store_.holds(20, "stage-0.safetensors", sha256_hex("ab")));
}

TEST_F(CheckpointStoreTest, RefusesToReceiveWhatCannotBePartOfACheckpoint) {
  const std::string hash = sha256_hex("x");
  for (const char* name : {"", "..", "../x", "a/b", "manifest.json", "X"}) {
    const auto incoming = store_.receive_file(20, name, 1, hash);
    ASSERT_FALSE(incoming.ok()) << name;
    EXPECT_NE(incoming.error().message.find("needs a plain file name"), std::string::npos);
  }
  EXPECT_FALSE(store_.receive_file(-1, "x", 1, hash).ok());
  EXPECT_FALSE(store_.receive_file(100'000'000, "x", 1, hash).ok());
  EXPECT_EQ(store_.receive_file(1, "x", 1, "abc").error().message,
            "checkpoint of step 1: \"x\": its sha256 is \"abc\", needs 64 lower-case hex digits");
  EXPECT_EQ(scratch_.file_count(), 0u);
}

TEST_F(CheckpointStoreTest, AFileReceivedAgainReplacesTheFirst) {
  const auto one = small_checkpoint(20);
  const CheckpointFile other{"stage-0.safetensors", 5, sha256_hex("other")};
  ASSERT_TRUE(ok(receive(store_, 20, other, "other")));
  ASSERT_TRUE(ok(receive(store_, 20, {"stage-9.safetensors", 5, sha256_hex("other")}, "other")));
  commit(one);
  EXPECT_FALSE(store_.holds(20, other.name, other.sha256));
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_FALSE(fs::exists(at(20, "stage-9.safetensors"))) << "not in the manifest";
}

TEST_F(CheckpointStoreTest, HoldsWhatWasReceivedOrCommitted) {
  const auto one = small_checkpoint(20);
  const auto& file = one.manifest.files[0];
  EXPECT_FALSE(store_.holds(20, file.name, file.sha256));
  ASSERT_TRUE(ok(receive(store_, 20, file, one.contents[0])));
  EXPECT_TRUE(store_.holds(20, file.name, file.sha256));
  EXPECT_FALSE(store_.holds(20, file.name, sha256_hex("other")));
  EXPECT_FALSE(store_.holds(21, file.name, file.sha256));
  EXPECT_FALSE(store_.holds(20, "stage-1.safetensors", file.sha256));
  CheckpointStore restarted(scratch_.path(), "run-1");
  EXPECT_FALSE(restarted.holds(20, file.name, file.sha256)) << "nobody knows what a killed process left";
  commit(one);
  EXPECT_TRUE(store_.holds(20, file.name, file.sha256));
  EXPECT_TRUE(restarted.holds(20, file.name, file.sha256));
}

TEST_F(CheckpointStoreTest, CommitNamesTheFileThatIsNotThere) {
  const auto one = small_checkpoint(20);
  const std::string start = "cannot commit the checkpoint of step 20: ";
  EXPECT_EQ(store_.commit(one.manifest).error().message, start + "stage-0.safetensors has not been received");
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[0], one.contents[0])));
  EXPECT_EQ(store_.commit(one.manifest).error().message, start + "stage-1.safetensors has not been received");
  ASSERT_TRUE(ok(receive(store_, 20, {"stage-1.safetensors", 5, sha256_hex("other")}, "other")));
  EXPECT_EQ(store_.commit(one.manifest).error().message,
            start + "stage-1.safetensors was received with 5 bytes and sha256 " + sha256_hex("other") +
                ", the manifest has 101 and " + one.manifest.files[1].sha256);
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[1], one.contents[1])));
  fs::resize_file(scratch_ / ".step-00000020.partial/stage-1.safetensors", 50);
  EXPECT_FALSE(store_.holds(20, "stage-1.safetensors", one.manifest.files[1].sha256));
  EXPECT_NE(store_.commit(one.manifest).error().message.find("its 101 bytes are no longer in"), std::string::npos);
  EXPECT_EQ(store_.latest().value(), std::nullopt);
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[1], one.contents[1])));
  EXPECT_TRUE(ok(store_.commit(one.manifest)));
}

TEST_F(CheckpointStoreTest, CommitRefusesAFileOfTheRightSizeAndAnotherHash) {
  const auto one = small_checkpoint(20);
  const auto other = small_checkpoint(20, 1);
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[0], one.contents[0])));
  ASSERT_TRUE(ok(receive(store_, 20, other.manifest.files[1], other.contents[1])));
  EXPECT_NE(store_.commit(one.manifest).error().message.find("stage-1.safetensors was received with 101 bytes and"),
            std::string::npos);
}

// The new bytes have the name and the old hash was noted: together they would make a damaged checkpoint.
TEST_F(CheckpointStoreTest, AReplacementThatFailedInItsLastStepIsNotTakenForTheFirst) {
  const auto one = small_checkpoint(20);
  const auto other = small_checkpoint(20, 1);
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[i], one.contents[i])));
  disk_.fail_next("sync_directory");
  ASSERT_FALSE(receive(store_, 20, other.manifest.files[0], other.contents[0]).ok());
  EXPECT_FALSE(store_.holds(20, "stage-0.safetensors", one.manifest.files[0].sha256));
  EXPECT_EQ(store_.commit(one.manifest).error().message,
            "cannot commit the checkpoint of step 20: stage-0.safetensors has not been received");
  EXPECT_TRUE(ok(write_checkpoint(store_, one)));
  EXPECT_TRUE(newest_is(store_, one));
}

TEST_F(CheckpointStoreTest, CommitRefusesAManifestThatCouldNotBeReadBack) {
  auto one = small_checkpoint(20);
  one.manifest.corpus_id = "x";
  EXPECT_EQ(write_checkpoint(store_, one).error().message,
            "checkpoint of step 20: not a checkpoint manifest: corpus_id is \"x\", needs 64 lower-case hex digits");
  one = small_checkpoint(20);
  one.manifest.machine = "caf\xe9";
  EXPECT_NE(write_checkpoint(store_, one).error().message.find("not UTF-8"), std::string::npos);
  EXPECT_EQ(write_checkpoint(store_, small_checkpoint(20, 0, "run-2")).error().message,
            "cannot commit the checkpoint of step 20: it is of run \"run-2\", this store is of run \"run-1\"");
  EXPECT_EQ(store_.latest().value(), std::nullopt);
}

TEST_F(CheckpointStoreTest, AStepCommittedAgainIsReplacedOnlyByANewerGeneration) {
  commit(small_checkpoint(20, 3));
  commit(small_checkpoint(20, 2));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20, 3)));
  EXPECT_TRUE(ok(store_.commit(small_checkpoint(20, 3).manifest))) << "without sending its files again";
  commit(small_checkpoint(20, 4));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20, 4)));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000020"});
}

// The first attempt may have failed at its last sync: the second must not say more than it knows.
TEST_F(CheckpointStoreTest, AStepCommittedAgainIsSyncedAgain) {
  commit(small_checkpoint(20));
  disk_.fail_next("sync_directory");
  EXPECT_FALSE(store_.commit(small_checkpoint(20).manifest).ok());
  EXPECT_TRUE(ok(store_.commit(small_checkpoint(20).manifest)));
}

TEST_F(CheckpointStoreTest, AReplacedStepKeepsNoFileOfTheOldOne) {
  auto old = small_checkpoint(20, 0);
  old.manifest.cuts = {2, 1, 1};
  old.manifest.files.push_back({"stage-2.safetensors", 3, sha256_hex("two")});
  old.contents.push_back("two");
  commit(old);
  disk_.can_exchange = false;
  commit(small_checkpoint(20, 1));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20, 1)));
  EXPECT_FALSE(fs::exists(at(20, "stage-2.safetensors")));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000020"});
}

TEST_F(CheckpointStoreTest, ADamagedStepIsReplacedByTheSameGeneration) {
  commit(small_checkpoint(20));
  fs::remove(at(20, "stage-0.safetensors"));
  commit(small_checkpoint(20));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20)));
}

TEST_F(CheckpointStoreTest, ATransferOutlastedByItsCommitIsRefused) {
  const auto one = small_checkpoint(20);
  auto late = store_.receive_file(20, "stage-0.safetensors", 5, sha256_hex("other"));
  ASSERT_TRUE(late.value().append("other").ok());
  commit(one);
  EXPECT_NE(late.value().finish().error().message.find("comes too late"), std::string::npos);
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_EQ(std::distance(fs::directory_iterator(at(20, "")), {}), 3);
}

TEST_F(CheckpointStoreTest, EveryFlippedByteOfAFileIsNoticed) {
  const auto one = small_checkpoint(20);
  commit(one);
  for (size_t file = 0; file < 2; ++file) {
    const auto& name = one.manifest.files[file].name;
    for (size_t i = 0; i < one.contents[file].size(); ++i) {
      std::string bytes = one.contents[file];
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      overwrite(at(20, name), bytes);
      EXPECT_EQ(store_.verify(one.manifest).error().message, at(20, name) + ": damaged: its sha256 is " +
                                                                 sha256_hex(bytes) + ", needs " +
                                                                 one.manifest.files[file].sha256);
    }
    overwrite(at(20, name), one.contents[file]);
  }
  EXPECT_TRUE(ok(store_.verify(one.manifest)));
}

TEST_F(CheckpointStoreTest, EveryFlippedByteOfAManifestIsNoticed) {
  commit(small_checkpoint(10));
  const auto one = small_checkpoint(20);
  commit(one);
  const std::string text = manifest_text(one.manifest);
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    overwrite(at(20, "manifest.json"), changed);
    EXPECT_TRUE(newest_is(store_, small_checkpoint(10))) << i;
    ASSERT_EQ(store_.refusals().size(), 1u);
    EXPECT_TRUE(store_.refusals()[0].starts_with(at(20, "manifest.json") + ": not a checkpoint manifest: "));
    EXPECT_FALSE(store_.verify(one.manifest).ok());
  }
}

TEST_F(CheckpointStoreTest, EveryTruncationIsPassedOverWithItsReason) {
  commit(small_checkpoint(10));
  const auto one = small_checkpoint(20);
  commit(one);
  const auto path = at(20, "stage-1.safetensors");
  for (size_t size = 0; size < 103; ++size) {
    std::string bytes = one.contents[1];
    bytes.resize(size, 'y');
    overwrite(path, bytes);
    if (size == 101) continue;
    const std::string reason =
        fmt::format("{}: {}: has {} bytes, needs 101", path, size < 101 ? "truncated" : "too long", size);
    EXPECT_EQ(store_.verify(one.manifest).error().message, reason);
    EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
    EXPECT_EQ(store_.refusals(), std::vector<std::string>{reason});
  }
  fs::remove(path);
  EXPECT_EQ(store_.verify(one.manifest).error().message, path + ": is missing");
  EXPECT_EQ(store_.latest().value()->step, 10);
  EXPECT_EQ(store_.refusals(), std::vector<std::string>{path + ": is missing"});
  fs::create_directory(path);
  EXPECT_EQ(store_.verify(one.manifest).error().message, path + ": is not a regular file");
  fs::remove_all(path);
  overwrite(path, one.contents[1]);
  EXPECT_TRUE(newest_is(store_, one));
  EXPECT_TRUE(store_.refusals().empty());
}

TEST_F(CheckpointStoreTest, PassesOverAnyNumberOfDamagedOnes) {
  for (const int64_t step : {10, 20, 30}) commit(small_checkpoint(step));
  fs::remove(at(30, "manifest.json"));
  fs::resize_file(at(20, "stage-0.safetensors"), 7);
  EXPECT_TRUE(newest_is(store_, small_checkpoint(10)));
  EXPECT_EQ(store_.refusals(),
            (std::vector<std::string>{at(30, "manifest.json") + ": is missing",
                                      at(20, "stage-0.safetensors") + ": truncated: has 7 bytes, needs 100"}));
}

TEST_F(CheckpointStoreTest, SwappedFilesAreNamed) {
  const auto one = small_checkpoint(20);
  commit(one);
  overwrite(at(20, "stage-0.safetensors"), one.contents[1]);
  overwrite(at(20, "stage-1.safetensors"), one.contents[0]);
  EXPECT_EQ(store_.verify(one.manifest).error().message,
            at(20, "stage-0.safetensors") + ": holds what belongs in stage-1.safetensors");
}

TEST_F(CheckpointStoreTest, AFileOfAnotherRunIsNamed) {
  const auto one = small_checkpoint(20);
  commit(one);
  const auto path = at(20, "stage-0.safetensors");
  ASSERT_TRUE(write_safetensors(path, {}, {{"run", "run-2"}}).ok());
  EXPECT_EQ(store_.verify(one.manifest).error().message, path + ": is of another run: \"run-2\", not \"run-1\"");
}

TEST_F(CheckpointStoreTest, AManifestOfAnotherRunOrStepIsNamed) {
  const auto one = small_checkpoint(20);
  commit(small_checkpoint(10));
  commit(one);
  const auto path = at(20, "manifest.json");
  overwrite(path, manifest_text(small_checkpoint(20, 0, "run-2").manifest));
  const std::string reason = path + ": is of another run: \"run-2\", not \"run-1\"";
  EXPECT_EQ(store_.latest().value()->step, 10);
  EXPECT_EQ(store_.refusals(), std::vector<std::string>{reason});
  EXPECT_EQ(store_.verify(one.manifest).error().message, reason);
  EXPECT_EQ(write_checkpoint(store_, small_checkpoint(20, 9)).error().message, reason) << "it is not ours to replace";
  overwrite(path, manifest_text(small_checkpoint(30).manifest));
  EXPECT_EQ(store_.latest().value()->step, 10);
  EXPECT_EQ(store_.refusals(), std::vector<std::string>{path + ": is of step 30, not 20"});
  EXPECT_NE(store_.verify(one.manifest).error().message.find("is another manifest (step 30"), std::string::npos);
  CheckpointStore other(scratch_.path(), "run-2");
  EXPECT_FALSE(other.verify(small_checkpoint(10).manifest).ok());
}

TEST_F(CheckpointStoreTest, IgnoresFoldersThatAreNotItsOwn) {
  commit(small_checkpoint(20));
  for (const char* name : {"step-30", "step-000000030", "step-0000003x", "step--0000030", ".step-00000030.partial"}) {
    ASSERT_TRUE(make_directories(scratch_ / name).ok());
  }
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20)));
  EXPECT_TRUE(store_.refusals().empty());
}

TEST_F(CheckpointStoreTest, KeepsTheNewestAndTheRoundOnes) {
  for (const int64_t step : {0, 10, 20, 30, 40, 50, 60, 70}) commit(small_checkpoint(step));
  ASSERT_TRUE(ok(store_.keep(2, 30)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000000", "step-00000030", "step-00000060", "step-00000070"}));
  ASSERT_TRUE(ok(store_.keep(3, 0)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000030", "step-00000060", "step-00000070"}));
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_EQ(folders(), std::vector<std::string>{"step-00000070"});
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(70)));
}

// Otherwise a damaged newest one would push out the last whole one.
TEST_F(CheckpointStoreTest, KeepDoesNotCountDamagedOnesOrThoseOfOtherRuns) {
  for (const int64_t step : {10, 20, 30, 40, 50}) commit(small_checkpoint(step));
  fs::resize_file(at(50, "stage-0.safetensors"), 7);
  overwrite(at(40, "manifest.json"), manifest_text(small_checkpoint(40, 0, "run-2").manifest));
  overwrite(at(10, "manifest.json"), manifest_text(small_checkpoint(10, 0, "run-2").manifest));
  ASSERT_TRUE(ok(store_.keep(1, 0)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000010", "step-00000030", "step-00000040", "step-00000050"}));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(30)));
}

TEST_F(CheckpointStoreTest, DropsWhatIsNewer) {
  for (const int64_t step : {10, 20, 30, 40, 50}) commit(small_checkpoint(step));
  fs::remove(at(30, "manifest.json"));
  overwrite(at(40, "manifest.json"), manifest_text(small_checkpoint(40, 0, "run-2").manifest));
  ASSERT_TRUE(ok(store_.drop_after(20)));
  EXPECT_EQ(folders(), (std::vector<std::string>{"step-00000010", "step-00000020", "step-00000040"}));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(20)));
}

TEST_F(CheckpointStoreTest, CleansWhatInterruptionsLeft) {
  commit(small_checkpoint(20));
  const CheckpointFile file = small_checkpoint(30).manifest.files[0];
  ASSERT_TRUE(ok(receive(store_, 30, file, small_checkpoint(30).contents[0])));
  ASSERT_TRUE(make_directories(scratch_ / ".step-00000010.removed/x").ok());
  ASSERT_TRUE(make_directories(scratch_ / ".other").ok());
  ASSERT_TRUE(ok(store_.clean_partials()));
  EXPECT_EQ(folders(), (std::vector<std::string>{".other", "step-00000020"}));
  EXPECT_FALSE(store_.holds(30, file.name, file.sha256));
  commit(small_checkpoint(30));
  EXPECT_TRUE(newest_is(store_, small_checkpoint(30)));
}

TEST_F(CheckpointStoreTest, TakesNothingOverFromAKilledProcess) {
  const auto one = small_checkpoint(20);
  ASSERT_TRUE(ok(receive(store_, 20, one.manifest.files[0], one.contents[0])));
  CheckpointStore restarted(scratch_.path(), "run-1");
  ASSERT_TRUE(ok(receive(restarted, 20, one.manifest.files[1], one.contents[1])));
  EXPECT_FALSE(fs::exists(scratch_ / ".step-00000020.partial/stage-0.safetensors"));
  EXPECT_FALSE(restarted.commit(one.manifest).ok());
}

TEST(CheckpointStoreThreads, ReceivesFilesFromSeveralAtOnce) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), "run-1");
  auto big = small_checkpoint(20);
  big.manifest.cuts.assign(4, 1);
  big.manifest.files.clear();
  for (int stage = 0; stage < 4; ++stage) {
    big.contents.resize(4);
    big.contents[static_cast<size_t>(stage)] = std::string(10'000, static_cast<char>('a' + stage));
    big.manifest.files.push_back(
        {fmt::format("stage-{}.safetensors", stage), 10'000, sha256_hex(big.contents[static_cast<size_t>(stage)])});
  }
  std::vector<std::thread> stages;
  for (size_t stage = 0; stage < 4; ++stage) {
    stages.emplace_back([&, stage] {
      const auto& file = big.manifest.files[stage];
      auto incoming = store.receive_file(20, file.name, file.bytes, file.sha256);
      ASSERT_TRUE(incoming.ok());
      for (size_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(incoming.value().append(std::string_view(big.contents[stage]).substr(i * 100, 100)).ok());
        (void)store.holds(20, file.name, file.sha256);
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
