// What the supervisor of a run on one machine prints, and what it does when the coordinator ends before it listens.
// tests/apps tests the rest of the processes' lives with the real program.
#include "run/supervisor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "base/files.h"
#include "base/result.h"
#include "run/coordinator/admission.h"
#include "run/coordinator/run_store.h"
#include "run/coordinator_line.h"
#include "run/run_files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;
using Texts = std::vector<std::string>;

// The coordinator's answer to a request for the events after that number.
control::RunStatus answer(const RunStore& store, int64_t after) {
  control::RunStatus status;
  for (auto& event : store.events(after, 200).take()) *status.add_events() = std::move(event);
  return status;
}

TEST(EventNotes, EventsOfThisStart_AreShownOnce_EarlierOnesNever) {
  const ScratchFolder folder;
  RunStore::open(folder / "run.sqlite").take().add_event("rollback", "of an earlier start").take();
  EventNotes notes(folder.path());
  auto store = RunStore::open(folder / "run.sqlite").take();
  // Before the supervisor's first question: the coordinator passes over a damaged checkpoint while it starts.
  store.add_event("refused", "step 20 is damaged").take();
  store.add_event("joined", "only in the store").take();
  EXPECT_EQ(notes.of(answer(store, notes.last())), Texts{"step 20 is damaged"});
  store.add_event("paused", "by the operator").take();
  const auto status = answer(store, notes.last());
  EXPECT_EQ(notes.of(status), Texts{"by the operator"});
  EXPECT_EQ(notes.of(status), Texts{});
}

TEST(EventNotes, WithoutAStoreAtFirst_ShowsEveryEvent) {
  const ScratchFolder folder;
  EventNotes notes(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / "run.sqlite"));
  auto store = RunStore::open(folder / "run.sqlite").take();
  store.add_event("refused", "the first").take();
  EXPECT_EQ(notes.of(answer(store, notes.last())), Texts{"the first"});
}

// A run whose coordinator is a shell script. It never says where it listens, so no worker is ever started.
class FailingStart : public testing::Test {
 protected:
  // `script` runs at every start, in the run's folder; $starts counts them from 1.
  RunOutcome run(const std::string& script) {
    const auto program = folder_ / "program.sh";
    write_file_atomically(program, "#!/bin/sh\ncd " + folder_.path().string() +
                                       "\necho x >>starts\nstarts=$(wc -l <starts)\n" + script + "\n")
        .take();
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen((folder_ / "out").c_str(), "w"), &std::fclose);
    return run_locally({.program = program, .folder = folder_.path(), .config = {}, .out = out.get()}, SystemClock());
  }
  std::string failure(const std::string& script) {
    try {
      run(script);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }
  std::string text_of(const char* file) const { return read_file(folder_ / file).take(); }

  const ScratchFolder folder_;
};

constexpr const char* kEndWell = R"(echo '{"failed": false, "complete": true, "step": 7}' >outcome.json)";
const std::string kKilled = "the coordinator was ended by signal 9 (Killed); starting it again\n";

TEST_F(FailingStart, CoordinatorKilledBeforeItListens_IsStartedAgain) {
  const auto outcome = run(fmt::format("[ $starts -gt 2 ] || kill -9 $$\n{}", kEndWell));
  EXPECT_TRUE(outcome.complete);
  EXPECT_EQ(outcome.step, 7);
  EXPECT_EQ(text_of("out"), kKilled + kKilled);
}

TEST_F(FailingStart, CoordinatorKilledAtEveryStart_EndsTheRunAfterElevenStarts) {
  EXPECT_EQ(failure("kill -9 $$"), "signal 9 (Killed) ended the coordinator 11 times without a step in between; see " +
                                       (folder_ / "logs/serve.log").string());
  EXPECT_EQ(text_of("starts").size(), 22U);
}

TEST_F(FailingStart, CoordinatorThatRefusesItsConfig_EndsTheRunAtOnce) {
  EXPECT_EQ(failure("echo 'thinpipe: train.steps = -1: at least 1' >&2; exit 2"),
            "the coordinator: train.steps = -1: at least 1");
  EXPECT_EQ(text_of("starts").size(), 2U);
}

TEST_F(FailingStart, WorkersKilledBeforeTheyAreConnected_EndTheRunAfterMaxFailures) {
  const auto authority = CertificateAuthority::open_or_create(authority_folder(folder_.path()), "run").take();
  make_identity(authority, kOperatorName, operator_folder(folder_.path())).take();
  const auto reason = failure(
      "[ $1 = serve ] || kill -9 $$\n"
      "echo '{\"address\": \"127.0.0.1:1\", \"pid\": '$$', \"run\": \"run\"}' >coordinator.json\nexec sleep 1000");
  EXPECT_NE(
      reason.find("signal 9 (Killed) ended workers 6 times before all stages were connected: did the machine run"),
      std::string::npos)
      << reason;
}

TEST(FullDisk, IsNamedWithWhatToDo) {
  EXPECT_EQ(full_disk_advice(ScratchFolder().path()), "");
  const test::SmallDisk disk(1 << 16);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const auto advice = full_disk_advice(disk.folder().path());
  EXPECT_NE(advice.find("is full: free some space and continue the run"), std::string::npos) << advice;
  EXPECT_NE(advice.find("--resume " + disk.folder().path().string()), std::string::npos) << advice;
}

}  // namespace
}  // namespace thinpipe
