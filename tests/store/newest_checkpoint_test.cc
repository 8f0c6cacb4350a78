// Finds checkpoints while a coordinator writes and removes them.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "store/checkpoint_files.h"
#include "support/faulty_file_system.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::ok;
using test::ScratchFolder;
using test::small_checkpoint;
using test::write_checkpoint;

class NewestCheckpointTest : public ::testing::Test {
 protected:
  void commit(int64_t step) { ASSERT_TRUE(ok(write_checkpoint(store_, small_checkpoint(step)))); }
  std::string refusal() const {
    const auto found = newest_checkpoint(run_.path());
    return found.ok() ? "" : found.error().message;
  }

  const ScratchFolder run_;
  test::FaultyFileSystem disk_;
  const ScopedFileSystem scope_{disk_};
  CheckpointStore store_{run_ / "checkpoints", "run-1"};
};

TEST_F(NewestCheckpointTest, HasTheGreatestStepAndItsFilesInOrder) {
  for (const int64_t step : {20, 100, 40}) commit(step);
  const auto found = newest_checkpoint(run_.path()).take();
  EXPECT_EQ(found.manifest.id.step, 100);
  const auto folder = run_ / "checkpoints/step-00000100-g0";
  EXPECT_EQ(found.files, (std::vector<fs::path>{folder / "unit-0.safetensors", folder / "unit-1.safetensors"}));
  EXPECT_EQ(found.manifest, small_checkpoint(100).manifest);
}

TEST_F(NewestCheckpointTest, SkipsDamagedCheckpoints) {
  commit(20);
  commit(40);
  commit(60);
  fs::remove(run_ / "checkpoints/step-00000060-g0/unit-1.safetensors");
  std::ofstream(run_ / "checkpoints/step-00000040-g0/unit-0.safetensors", std::ios::app) << "x";
  fs::create_directory(run_ / "checkpoints/.step-00000080-g0.partial");
  EXPECT_EQ(newest_checkpoint(run_.path()).take().manifest.id.step, 20);
  commit(100);
  std::fstream(run_ / "checkpoints/step-00000100-g0/unit-1.safetensors", std::ios::in | std::ios::out)
          .seekp(-1, std::ios::end)
      << "~";
  EXPECT_EQ(newest_checkpoint(run_.path()).take().manifest.id.step, 20) << "a damaged byte";
  EXPECT_NE(checkpoint_of_step(run_.path(), 100).error().message.find("damaged"), std::string::npos);
}

TEST_F(NewestCheckpointTest, WithoutACheckpointSaysWhy) {
  EXPECT_EQ(refusal(), run_.path().string() + ": has no checkpoint yet");
  commit(20);
  const auto folder = run_ / "checkpoints/step-00000020-g0";
  fs::rename(folder, run_ / "checkpoints/step-00000030-g0");
  EXPECT_EQ(refusal(), fmt::format("{0}: has no intact checkpoint: {0}/checkpoints/step-00000030-g0/manifest.json: "
                                   "belongs to step-00000020-g0, not step-00000030-g0",
                                   run_.path().string()));
  fs::remove(run_ / "checkpoints/step-00000030-g0/manifest.json");
  EXPECT_NE(refusal().find("manifest.json: is missing"), std::string::npos) << refusal();
}

// Replaces checkpoints as fast as possible: reading takes longer, so each one disappears while it is read.
TEST_F(NewestCheckpointTest, IsFoundWhileOthersAreWrittenAndRemoved) {
  constexpr int64_t kSteps = 300;
  const auto folder = run_ / "checkpoints";
  const auto aside = run_ / "aside";
  const auto name = [](int64_t step) { return fmt::format("step-{:08}-g0", step); };
  fs::create_directory(aside);
  for (int64_t step = 2; step <= kSteps; ++step) {
    commit(step);
    fs::rename(folder / name(step), aside / name(step));
  }
  commit(1);
  std::atomic<bool> done = false;
  const std::jthread coordinator([&] {
    for (int64_t step = 2; step <= kSteps; ++step) {
      fs::rename(aside / name(step), folder / name(step));
      fs::rename(folder / name(step - 1), aside / name(step - 1));
    }
    done = true;
  });
  int64_t last = 0;
  while (!done) {
    const auto found = newest_checkpoint(run_.path());
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_GE(found.value().manifest.id.step, last);
    last = found.value().manifest.id.step;
  }
  EXPECT_EQ(newest_checkpoint(run_.path()).take().manifest.id.step, kSteps);
}

}  // namespace
}  // namespace thinpipe
