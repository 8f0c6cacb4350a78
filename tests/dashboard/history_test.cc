#include "dashboard/history.h"

#include <gtest/gtest.h>

#include "dashboard/made_up_run.h"

namespace thinpipe::test {
namespace {

constexpr int64_t kTokens = 100;
constexpr int64_t kAll = int64_t{1} << 40;

RunHistory history_of(const MadeUpRun& run) {
  RunHistory history(run.folder(), kTokens, 1);
  while (history.follow()) {
  }
  return history;
}

TEST(RunHistory, WithoutFiles_IsEmpty) {
  const MadeUpRun run;
  const auto history = history_of(run);
  EXPECT_EQ(history.last_step(), 0);
  EXPECT_TRUE(history.thinned(0, kAll, 10)["step"].empty());
}

TEST(RunHistory, WhenFilesGrow_FollowsWholeLinesOnly) {
  const MadeUpRun run;
  run.add_steps(1, 5);
  RunHistory history(run.folder(), kTokens, 1);
  history.follow();
  EXPECT_EQ(history.last_step(), 5);
  const auto next = metrics_line(6, 3.5) + "\n";
  run.append("metrics.jsonl", next.substr(0, 20));
  history.follow();
  EXPECT_EQ(history.last_step(), 5);
  run.append("metrics.jsonl", next.substr(20));
  history.follow();
  EXPECT_EQ(history.last_step(), 6);
  EXPECT_FLOAT_EQ(history.last_loss(), 3.5);
  EXPECT_FLOAT_EQ(history.bytes_per_token(), 16);
  EXPECT_NEAR(history.tokens_per_s(), 200, 1e-3);
}

TEST(RunHistory, WhenTheFileIsReplaced_ForgetsStepsThatWereRolledBack) {
  const MadeUpRun run;
  run.add_steps(1, 30);
  RunHistory history(run.folder(), kTokens, 1);
  history.follow();
  run.write("new", metrics_line(1, 9) + "\n" + metrics_line(2, 8) + "\n");
  std::filesystem::rename(run.folder() / "new", run.folder() / "metrics.jsonl");
  history.follow();
  EXPECT_EQ(history.last_step(), 2);
  EXPECT_EQ(history.thinned(0, kAll, 10)["loss"].size(), 2);
}

TEST(RunHistory, OfLinesThatAreNotOurs_PassesThemOver) {
  const MadeUpRun run;
  run.write("metrics.jsonl", "garbage\n[]\n{\"step\":\"one\"}\n{\"step\":-3,\"loss\":1}\n" + metrics_line(1, 7) +
                                 "\n{\"step\":5,\"loss\":2}\n{\"step\":2,\"loss\":null,\"bytes\":7}\n");
  run.write("timing.jsonl", "{\"step\":1,\"seconds\":\"x\",\"stages\":3}\n{\"step\":2,\"stages\":[1,2]}\n");
  const auto history = history_of(run);
  EXPECT_EQ(history.last_step(), 2);
  const auto steps = history.thinned(0, kAll, 10);
  EXPECT_EQ(steps["loss"][0], 7);
  EXPECT_TRUE(steps["loss"][1].is_null());
}

TEST(RunHistory, Thinned_IsTheMeanAndTheRangeOfEveryInterval) {
  const MadeUpRun run;
  run.add_steps(1, 1000);
  const auto history = history_of(run);
  const auto steps = history.thinned(101, 900, 7);
  EXPECT_EQ(steps["every"], 115);
  ASSERT_EQ(steps["step"].size(), 7);
  EXPECT_EQ(steps["step"].back(), 900);
  int64_t begin = 101;
  for (size_t i = 0; i < steps["step"].size(); ++i) {
    const auto end = steps["step"][i].get<int64_t>();
    double sum = 0;
    for (int64_t step = begin; step <= end; ++step) sum += static_cast<float>(MadeUpRun::loss(step));
    EXPECT_NEAR(steps["loss"][i], sum / static_cast<double>(end - begin + 1), 1e-6);
    EXPECT_NEAR(steps["loss_max"][i], MadeUpRun::loss(begin), 1e-6);
    EXPECT_NEAR(steps["loss_min"][i], MadeUpRun::loss(end), 1e-6);
    EXPECT_NEAR(steps["tokens_per_s"][i], 200, 0.1);
    EXPECT_NEAR(steps["wait_share"][i], 0.2, 1e-6);
    begin = end + 1;
  }
}

TEST(RunHistory, WhenTheCoordinatorRestarted_LeavesItsFirstStepUntimed) {
  const MadeUpRun run;
  run.write("timing.jsonl", timing_line(1, 100) + "\n" + timing_line(2, 101) + "\n" + timing_line(3, 2) + "\n" +
                                timing_line(4, 3) + "\n");
  const auto history = history_of(run);
  EXPECT_NEAR(history.tokens_per_s(), 100, 1e-6);
}

TEST(RunHistory, KeepsValidationsAndMovesOfTheBasis) {
  const MadeUpRun run;
  run.write("metrics.jsonl",
            "{\"step\":1,\"loss\":5,\"validation_loss\":5.5,\"basis\":{\"version\":1,\"angles_rad\":[0.1,0.3],"
            "\"energy_inside\":0.9}}\n{\"step\":2,\"loss\":4,\"dropped_share\":0.02}\n{\"step\":2,"
            "\"final_validation_loss\":4.5}\n");
  const auto history = history_of(run);
  EXPECT_EQ(history.validation_loss(), 4.5);
  const auto steps = history.thinned(0, kAll, 10);
  EXPECT_EQ(steps["validation"]["step"], nlohmann::json({1, 2}));
  EXPECT_EQ(steps["basis"]["largest_angle"][0], 0.3);
  EXPECT_EQ(steps["basis"]["dropped_share"][0], 0.02);
}

}  // namespace
}  // namespace thinpipe::test
