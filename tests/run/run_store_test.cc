// The coordinator's store: it returns what was added, a rollback is atomic, and a process killed in the middle leaves
// a store that opens.
#include "run/coordinator/run_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "run/core/coordinator_core.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

CommitRow row_of(int64_t step) {
  return {.step = step,
          .epoch = static_cast<uint64_t>(3 + step),
          .apply = step % 2 == 0,
          .grad_factor = 1.0 / 3.0,
          .squared_norm = 1e-300,
          .loss = 0.1 + static_cast<double>(step),
          .basis_version = step / 7,
          .metrics = "{\"step\":1,\"text\":\"it's \xc3\xa9\"}",
          .timing = "{}"};
}

void expect_same(const CommitRow& a, const CommitRow& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.apply, b.apply);
  EXPECT_EQ(a.grad_factor, b.grad_factor);
  EXPECT_EQ(a.squared_norm, b.squared_norm);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.basis_version, b.basis_version);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.timing, b.timing);
}

std::string error_of(const std::filesystem::path& path) {
  const auto store = RunStore::open(path);
  return store ? "" : store.error().message;
}

TEST(RunStore, BeforeAndAfterReopening_ReturnsEverythingAdded) {
  const ScratchFolder folder;
  const auto path = folder / "run.sqlite";
  const auto check = [](const RunStore& store) {
    EXPECT_EQ(store.get("run").value(), "r-1");
    EXPECT_EQ(store.get("port").value(), std::nullopt);
    EXPECT_EQ(store.get("epoch").value(), "18446744073709551615");
    EXPECT_EQ(store.get("generation").value(), "4");
    EXPECT_EQ(store.roster().value(), (std::vector<std::string>{"a", "b"}));
    const auto rows = store.commits().value();
    ASSERT_EQ(rows.size(), 3u);
    for (size_t i = 0; i < 3; ++i) expect_same(rows[i], row_of(static_cast<int64_t>(i)));
    EXPECT_EQ(store.commits(2).value().size(), 1u);
    const auto evaluations = store.evaluations().value();
    ASSERT_EQ(evaluations.size(), 2u);
    EXPECT_EQ(evaluations[0].step, 2);
    EXPECT_EQ(evaluations[0].loss, 2.5);
    EXPECT_FALSE(evaluations[0].is_final);
    EXPECT_TRUE(evaluations[1].is_final);
    const auto stored = store.load().value();
    EXPECT_EQ(stored.steps.epoch, UINT64_MAX);
    EXPECT_EQ(stored.steps.generation, 4u);
    EXPECT_TRUE(stored.paused);
    EXPECT_EQ(stored.roster, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(stored.revoked, std::set<std::string>{"mallory"});
    EXPECT_EQ(stored.steps.committed, 3);
    EXPECT_EQ(stored.steps.skipped, std::set<int64_t>{1});
    ASSERT_TRUE(stored.steps.last_commit);
    EXPECT_EQ(stored.steps.last_commit->step, 2);
    EXPECT_EQ(stored.steps.evaluations, (std::set<int64_t>{2, 3}));
    EXPECT_EQ(stored.steps.final_loss, 2.25);
  };
  {
    auto store = RunStore::open(path).take();
    store.set("run", "r-0").take();
    store.set("run", "r-1").take();
    store.set_epoch({UINT64_MAX, 4, -1, {"a", "b"}}).take();
    for (const int64_t step : {0, 2, 1}) store.add_commit(row_of(step)).take();
    store.add_evaluation({2, 2.5, false}).take();
    store.add_evaluation({3, 2.25, true}).take();
    store.set("paused", "1").take();
    store.revoke_peer("mallory").take();
    check(store);
  }
  check(RunStore::open(path).take());
}

TEST(RunStore, ForgetHolders_BeginsAnEmptyGenerationAndKeepsTheSteps) {
  const ScratchFolder folder;
  auto store = RunStore::open(folder / "run.sqlite").take();
  store.add_commit(row_of(0)).take();
  store.set_epoch({7, 5, -1, {"a"}}).take();
  EXPECT_EQ(store.forget_holders().value(), 8u);
  const auto stored = store.load().value();
  EXPECT_EQ(stored.steps.generation, 8u);
  EXPECT_TRUE(stored.roster.empty());
  EXPECT_EQ(stored.steps.committed, 1);
}

TEST(RunStore, KeepsLossesThatAreNotNumbers) {
  const ScratchFolder folder;
  auto store = RunStore::open(folder / "run.sqlite").take();
  auto row = row_of(0);
  row.loss = std::numeric_limits<double>::quiet_NaN();
  row.squared_norm = std::numeric_limits<double>::infinity();
  store.add_commit(row).take();
  store.add_evaluation({1, row.loss, false}).take();
  EXPECT_TRUE(std::isnan(store.commits().value()[0].loss));
  EXPECT_EQ(store.commits().value()[0].squared_norm, row.squared_norm);
  EXPECT_TRUE(std::isnan(store.evaluations().value()[0].loss));
}

TEST(RunStore, Rollback_DeletesLaterStepsLaterEvaluationsAndTheFinalOne) {
  const ScratchFolder folder;
  auto store = RunStore::open(folder / "run.sqlite").take();
  for (int64_t step = 0; step < 6; ++step) store.add_commit(row_of(step)).take();
  for (const int64_t step : {2, 4}) store.add_evaluation({step, 1, false}).take();
  store.add_evaluation({6, 1, true}).take();
  store.set_epoch({7, 7, -1, {"a"}}).take();
  EXPECT_EQ(store.commits().value().size(), 6u);
  EXPECT_EQ(store.evaluations().value().size(), 3u);
  store.set_epoch({8, 8, 4, {"b"}}).take();
  EXPECT_EQ(store.commits().value().size(), 4u);
  ASSERT_EQ(store.evaluations().value().size(), 2u);
  EXPECT_EQ(store.evaluations().value()[1].step, 4);
  EXPECT_EQ(store.roster().value(), std::vector<std::string>{"b"});
  store.add_commit(row_of(4)).take();
  EXPECT_EQ(store.commits(4).value().size(), 1u);
}

TEST(RunStore, Events_AreNumberedAndTheNewestAreReturned) {
  const ScratchFolder folder;
  auto store = RunStore::open(folder / "run.sqlite").take();
  for (int i = 0; i < 5; ++i) store.add_event("kind", std::to_string(i)).take();
  const auto events = store.events(1, 2).value();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text(), "3");
  EXPECT_EQ(events[1].text(), "4");
  EXPECT_EQ(events[1].number(), 5);
  EXPECT_EQ(events[1].time().size(), std::string("2026-01-01T00:00:00Z").size());
  EXPECT_TRUE(store.events(5, 10).value().empty());
}

TEST(RunStore, ASecondCoordinatorIsRefused) {
  const ScratchFolder folder;
  const auto path = folder / "run.sqlite";
  const auto store = RunStore::open(path).take();
  EXPECT_EQ(error_of(path), path.string() + ": another process serves this run");
}

TEST(RunStore, Open_FileThatIsNotAStore_IsRefusedByName) {
  const ScratchFolder folder;
  const auto path = folder / "run.sqlite";
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_EQ(error_of(path), path.string() + ": file is not a database");
  EXPECT_NE(error_of(folder / "nowhere/run.sqlite").find("nowhere/run.sqlite: unable to open"), std::string::npos);
}

TEST(RunStore, AStoreOfALaterVersionIsRefused) {
  const ScratchFolder folder;
  const auto path = folder / "run.sqlite";
  RunStore::open(path).take().set("version", "2").take();
  EXPECT_EQ(error_of(path), path.string() + ": is of version 2, this thinpipe reads 1");
}

// Commits rows and rolls back half of them, forever; reports every durable row on the pipe.
[[noreturn]] void commit_until_killed(const std::filesystem::path& path, int report) {
  auto store = RunStore::open(path);
  if (!store) ::_exit(1);
  for (uint64_t epoch = 1;; ++epoch) {
    for (int64_t step = epoch > 1 ? 10 : 0; step < 20; ++step) {
      auto row = row_of(step);
      row.epoch = epoch;
      if (!store.value().add_commit(row)) ::_exit(1);
      const char sign = 'c';
      if (::write(report, &sign, 1) != 1) ::_exit(1);
    }
    if (!store.value().set_epoch({epoch + 1, epoch + 1, 10, {"a", "b"}})) ::_exit(1);
  }
}

TEST(RunStore, ProcessKilledWhileWriting_StoreStaysConsistent) {
  for (const int rows_before : {1, 19, 20, 23}) {
    const ScratchFolder folder;
    const auto path = folder / "run.sqlite";
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const auto child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      commit_until_killed(path, ends[1]);
    }
    ::close(ends[1]);
    char sign = 0;
    for (int i = 0; i < rows_before; ++i) ASSERT_EQ(::read(ends[0], &sign, 1), 1);
    ::kill(child, SIGKILL);  // at any point
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    int64_t reported = rows_before;
    while (::read(ends[0], &sign, 1) == 1) ++reported;
    ::close(ends[0]);

    const auto store = RunStore::open(path).take();
    const auto rows = store.commits().value();
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].step, static_cast<int64_t>(i));
    const auto epoch = store.get("epoch").value();
    EXPECT_EQ(store.roster().value().size(), epoch ? 2u : 0u);
    // An epoch is stored with its rollback: older epochs have no row from step 10 on.
    const uint64_t current = epoch ? std::stoull(*epoch) : 1;
    for (const auto& row : rows) {
      if (row.step >= 10) {
        EXPECT_EQ(row.epoch, current);
      }
    }
    // Every reported row is stored, and at most one more that was not reported yet.
    const int64_t durable = static_cast<int64_t>(rows.size()) + 10 * static_cast<int64_t>(current - 1);
    EXPECT_GE(durable, reported);
    EXPECT_LE(durable, reported + 1);
  }
}

}  // namespace
}  // namespace thinpipe
