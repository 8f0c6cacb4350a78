// A worker's local copies of its state, without a coordinator: what it writes and keeps.
#include "run/worker/state_files.h"

#include <gtest/gtest.h>

#include "pipeline/saved_run.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;
using Files = std::set<fs::path>;

class OwnCopies : public testing::Test {
 protected:
  OwnCopies()
      : run_(test::tiny_config(ModelMode::kDense), corpus_),
        files_({.coordinator = {.addresses = {"127.0.0.1:1"}},  // nobody answers
                .run = "a run",
                .folder = folder_.path(),
                .mode = CheckpointMode::kAsync,
                .on_failure = [](const std::string& why) { FAIL() << why; }}) {}

  // Trains a step, saves, and returns the files that were added.
  Files save(int64_t step) {
    run_.step(step);
    const auto before = found();
    std::vector<std::string> units;
    for (const auto& unit : run_.worker(0).state()) units.push_back(unit.unit);
    control::Save save;
    save.set_step(step + 1);
    files_.save(run_.worker(0), units, save).take();
    files_.give_up();  // waits for all writes
    Files added;
    for (const auto& path : found()) {
      if (!before.contains(path)) added.insert(path);
    }
    return added;
  }
  Files found() const {
    Files all;
    for (const auto& entry : fs::directory_iterator(folder_.path())) all.insert(entry.path());
    return all;
  }

  const test::TinyCorpus corpus_;
  test::TinyRun run_;
  const ScratchFolder folder_;
  StateFiles files_;
};

Files both(Files one, const Files& other) {
  one.insert(other.begin(), other.end());
  return one;
}

TEST_F(OwnCopies, ThirdSave_KeepsTheCopiesOfTheLastTwo) {
  const auto first = save(0), second = save(1);
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(found(), both(first, second));
  const auto third = save(2);
  EXPECT_EQ(found(), both(second, third));
}

TEST_F(OwnCopies, ClockSetBackBetweenSaves_KeepsTheNewestCopies) {
  const auto first = save(0), second = save(1);
  for (const auto& path : found()) fs::last_write_time(path, fs::last_write_time(path) + std::chrono::hours(25));
  const auto third = save(2);
  EXPECT_EQ(third.size(), second.size());
  EXPECT_EQ(found(), both(second, third));
}

}  // namespace
}  // namespace thinpipe
