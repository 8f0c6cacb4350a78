// metrics.jsonl is a function of the store's rows: interruptions of the run do not change its bytes.
#include "run/coordinator/run_logs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using test::ScratchFolder;

const TrainConfig kTrain{.steps = 6, .eval_every = 2};

CommitRow row_of(int64_t step, uint64_t epoch = 1) {
  CommitRow row;
  row.step = step;
  row.epoch = epoch;
  row.metrics = fmt::format(R"({{"step":{},"loss":{}}})", step, 1.0 / static_cast<double>(step + 3));
  row.timing = fmt::format(R"({{"step":{},"epoch":{}}})", step, epoch);
  return row;
}

// A store and the logs beside it, driven as the service drives them.
struct LoggedRun {
  LoggedRun() : store(RunStore::open(folder / "run.sqlite").take()), logs(folder.path(), kTrain) {
    logs.rewrite(store).take();
  }
  void commit(int64_t step, uint64_t epoch = 1) {
    store.add_commit(row_of(step, epoch)).take();
    logs.catch_up(store).take();
  }
  void evaluate(int64_t committed) {
    store.add_evaluation({committed, 0.5 + static_cast<double>(committed) / 7, committed == kTrain.steps}).take();
    logs.catch_up(store).take();
  }
  // Steps from..to-1 with the evaluations that follow them.
  void go(int64_t from, int64_t to, uint64_t epoch = 1) {
    for (int64_t step = from; step < to; ++step) {
      commit(step, epoch);
      if ((step + 1) % kTrain.eval_every == 0) evaluate(step + 1);
    }
  }
  std::string metrics() const { return read_file(folder / "metrics.jsonl").take(); }
  std::string timing() const { return read_file(folder / "timing.jsonl").take(); }

  ScratchFolder folder;
  RunStore store;
  RunLogs logs;
};

std::string undisturbed() {
  LoggedRun run;
  run.go(0, 6);
  return run.metrics();
}

TEST(RunLogs, EachStep_HasALineWithItsValidationLoss_ThenTheFinalLine) {
  LoggedRun run;
  run.go(0, 6);
  EXPECT_EQ(run.metrics(),
            "{\"step\":0,\"loss\":0.3333333333333333}\n"
            "{\"step\":1,\"loss\":0.25,\"validation_loss\":0.7857142857142857}\n"
            "{\"step\":2,\"loss\":0.2}\n"
            "{\"step\":3,\"loss\":0.16666666666666666,\"validation_loss\":1.0714285714285714}\n"
            "{\"step\":4,\"loss\":0.14285714285714285}\n"
            "{\"step\":5,\"loss\":0.125}\n"
            "{\"step\":6,\"final_validation_loss\":1.3571428571428572}\n");
  EXPECT_EQ(run.timing().substr(0, 44), "{\"step\":0,\"epoch\":1}\n{\"step\":1,\"epoch\":1}\n{\"");
}

TEST(RunLogs, ALineWaitsForItsEvaluation) {
  LoggedRun run;
  run.commit(0);
  const auto before = run.metrics();
  run.commit(1);
  EXPECT_EQ(run.metrics(), before);
  run.evaluate(2);
  EXPECT_NE(run.metrics().find("validation_loss"), std::string::npos);
  run.go(2, 6);
  EXPECT_EQ(run.metrics(), undisturbed());
}

TEST(RunLogs, RewrittenAtAnyPoint_AreTheSame) {
  const auto whole = undisturbed();
  for (const int64_t stop : {0, 2, 3, 6}) {
    LoggedRun run;
    run.go(0, stop);
    RunLogs next(run.folder.path(), kTrain);  // of the next coordinator
    next.rewrite(run.store).take();
    EXPECT_EQ(run.metrics(), whole.substr(0, run.metrics().size()));
    for (int64_t step = stop; step < 6; ++step) {
      run.store.add_commit(row_of(step)).take();
      next.catch_up(run.store).take();
      if ((step + 1) % kTrain.eval_every != 0) continue;
      run.store.add_evaluation({step + 1, 0.5 + static_cast<double>(step + 1) / 7, step == 5}).take();
      next.catch_up(run.store).take();
    }
    EXPECT_EQ(run.metrics(), whole) << "stopped after " << stop;
    next.rewrite(run.store).take();
    next.catch_up(run.store).take();
    EXPECT_EQ(run.metrics(), whole);
  }
}

TEST(RunLogs, AreTheSameAfterARollback) {
  const auto whole = undisturbed();
  for (const auto& [reached, back] : {std::pair<int64_t, int64_t>{3, 0}, {5, 3}, {6, 4}}) {
    LoggedRun run;
    run.go(0, reached);
    run.store.set_epoch({2, 2, back, {}}).take();
    run.logs.rewrite(run.store).take();
    EXPECT_EQ(run.metrics(), whole.substr(0, run.metrics().size()));
    run.go(back, 6, 2);
    EXPECT_EQ(run.metrics(), whole) << "from " << reached << " back to " << back;
    EXPECT_NE(run.timing().find("\"epoch\":2"), std::string::npos);
  }
}

TEST(RunLogs, ATornLastLineIsRepaired) {
  LoggedRun run;
  run.go(0, 3);
  const auto good = run.metrics();
  std::ofstream(run.folder / "metrics.jsonl", std::ios::app) << "{\"step\":3,\"lo";
  std::ofstream(run.folder / "timing.jsonl", std::ios::app) << "{";
  run.logs.rewrite(run.store).take();
  EXPECT_EQ(run.metrics(), good);
  EXPECT_EQ(run.timing().back(), '\n');
  run.go(3, 6);
  EXPECT_EQ(run.metrics(), undisturbed());
}

}  // namespace
}  // namespace thinpipe
