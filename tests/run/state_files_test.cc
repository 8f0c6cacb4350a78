// A worker's local copies of its state, without a coordinator: what it writes and keeps.
#include "run/worker/state_files.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "pipeline/saved_run.h"
#include "support/faulty_file_system.h"

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

// A save of a stage in which operation n on the worker's disk fails. Afterwards the disk is sound again.
class InterruptedSave {
 public:
  InterruptedSave(test::TinyRun& run, int64_t& trained, test::Fault fault, size_t n)
      : run_(run), trained_(trained), disk_(fault, n) {
    make_files();
    save(1);
    const auto before = copies();
    {
      const ScopedFileSystem scope(disk_);
      save(2);
    }
    EXPECT_LE(failures_.size(), 1u);
    for (const auto& why : failures_) {
      EXPECT_TRUE(why.find(folder_.path().string()) != std::string::npos && why.find('\n') == std::string::npos) << why;
    }
    for (const auto& copy : before) EXPECT_TRUE(copies().contains(copy)) << "the last whole checkpoint needs " << copy;
    if (test::kills(fault)) make_files();
    failures_.clear();
    save(3);
    EXPECT_TRUE(failures_.empty()) << failures_.front();
    EXPECT_GE(copies().size(), before.size());
  }

  bool happened() const { return disk_.fault_happened(); }

 private:
  void make_files() {
    files_.reset();
    files_ = std::make_unique<StateFiles>(
        StateSource{.coordinator = {.addresses = {"127.0.0.1:1"}},  // nobody answers
                    .run = "a run",
                    .folder = folder_.path(),
                    .mode = CheckpointMode::kAsync,
                    .on_failure = [this](const std::string& why) { failures_.push_back(why); }});
  }

  void save(int64_t step) {
    run_.step(trained_++);
    const std::vector<std::string> units{run_.worker(0).state().front().unit};
    control::Save order;
    order.set_step(step);
    order.set_generation(static_cast<uint64_t>(step));
    files_->save(run_.worker(0), units, order).take();
    files_->give_up();  // waits for all writes
  }

  // Every copy has the hash that it is named after.
  Files copies() const {
    Files all;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename() == "draft.safetensors" || entry.path().extension() != ".safetensors") continue;
      EXPECT_EQ(sha256_of_file(entry.path()).take(), entry.path().stem());
      all.insert(entry.path());
    }
    return all;
  }

  test::TinyRun& run_;
  int64_t& trained_;  // steps
  const ScratchFolder folder_;
  test::FaultyFileSystem disk_;
  std::vector<std::string> failures_;  // the writing thread's; it has ended when they are read
  std::unique_ptr<StateFiles> files_;
};

TEST(OwnCopiesOnAFailingDisk, EveryOperationFailsOnceOrForGood_WhatWasSavedStaysAndTheNextSaveWorks) {
  const test::TinyCorpus corpus;
  test::TinyRun run(test::tiny_config(ModelMode::kDense), corpus);
  int64_t trained = 0;
  for (const auto fault : {test::Fault::kIoError, test::Fault::kNoSpace, test::Fault::kShortWrite, test::Fault::kCrash,
                           test::Fault::kPowerLoss}) {
    size_t n = 1;
    for (;; ++n) {
      SCOPED_TRACE(fmt::format("{} at operation {}", name_of(fault), n));
      if (!InterruptedSave(run, trained, fault, n).happened()) break;
      ASSERT_LT(n, 1000u);
    }
    EXPECT_GT(n, 5u) << name_of(fault);
  }
}

}  // namespace
}  // namespace thinpipe
