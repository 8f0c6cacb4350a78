// `thinpipe launch slurm`: a run as a job of a real Slurm, on loopback, which goes on after it was queued again.
#include <gtest/gtest.h>

#include "apps/running_program.h"
#include "support/slurm_cluster.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::expect_refused;

TEST(LaunchSlurm, Script_HasATaskPerStageAndNoSurprises) {
  const test::Program program;
  test::write_file(program / "it's.toml", "[pipeline]\nstages = 3\n");
  const auto printed = program.run({"launch", "slurm", "it's.toml", "--set", "train.steps=7", "--print", "--time",
                                    "1:00", "--cpus", "2", "--sbatch=--mem=1G", "--name", "first"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  for (const std::string part : {"#!/bin/bash\n", "#SBATCH --ntasks=3\n", "#SBATCH --cpus-per-task=2\n",
                                 "#SBATCH --time=1:00\n", "#SBATCH --mem=1G\n", "#SBATCH --signal=B:TERM@120\n",
                                 "#SBATCH --requeue\n", "/it'\\''s.toml' --set 'train.steps=7'", "/runs/first'\n"}) {
    EXPECT_NE(printed.out.find(part), std::string::npos) << part << " not in " << printed.out;
  }
  test::write_file(program / "script", printed.out);
  EXPECT_EQ(program.run({"-n", "script"}, {.program = "/bin/bash"}).err, "") << "is no shell script";
  EXPECT_FALSE(std::filesystem::exists(program.data() / "slurm"));
  expect_refused(program, {"launch", "slurm", "--sbatch", "mem"}, {"--sbatch \"mem\"", "needs an option of sbatch"});
  expect_refused(program, {"launch", "slurm", "--time", "1\n#SBATCH --x"}, {"an option of sbatch is one line"});
  expect_refused(program, {"launch", "slurm", "--name", "../x", "--print"}, {"--name ../x"});
  expect_refused(program, {"launch", "slurm", "none.toml"}, {"none.toml"});
}

TEST(LaunchSlurm, Job_AfterTheSignalBeforeItsTimeLimit_IsQueuedAgainAndFinishesTheRun) {
  const test::Program program;
  const test::SlurmCluster cluster(program);
  if (!cluster.why_not().empty()) GTEST_SKIP() << cluster.why_not();
  test::write_small_run(program);
  const Arguments settings{"pipeline.stages=2", "train.steps=60"};
  EXPECT_EQ(program.run(test::small_run(program / "local", settings)).exit_code, 0);
  Arguments launch{"launch", "slurm", "small.toml", "--name", "queued", "--set", "link.delay=60ms"};
  for (const auto& setting : settings) launch.insert(launch.end(), {"--set", setting});
  const auto submitted = program.run(launch);
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  const auto at = submitted.out.find("Submitted batch job ");
  ASSERT_NE(at, std::string::npos) << submitted.out;
  const auto job = submitted.out.substr(at + 20, submitted.out.find('\n', at) - at - 20);

  const auto run = program.data() / "runs/queued", log = program.data() / "slurm/queued.log";
  const auto printed = [&] {
    const auto text = read_file(log);
    return (text ? text.value() : "no output") + test::logs_of(run);
  };
  test::RunningProgram waiting(program, {"-c", "exec sleep 1000"}, {}, {.program = "/bin/sh"});
  ASSERT_TRUE(waiting.wait_until("some steps are done", [&] {
    return test::metrics_lines(run) >= 3 || cluster.state_of(job) == "FAILED";
  })) << printed();
  ASSERT_EQ(cluster.state_of(job), "RUNNING") << printed();
  EXPECT_EQ(cluster.said_by("scancel --signal=TERM --batch " + job), "");  // what --signal=B:TERM does
  ASSERT_TRUE(waiting.wait_until("it is queued again", [&] {
    return printed().find("the job is queued again") != std::string::npos;
  })) << printed();
  EXPECT_LT(test::metrics_lines(run), 60) << "too late to be a test";
  // Slurm lets a job that was queued again wait for two minutes.
  (void)cluster.said_by("scontrol update job=" + job + " StartTime=now");
  EXPECT_TRUE(waiting.wait_until("the job is over", [&] {
    (void)cluster.said_by("scontrol update job=" + job + " StartTime=now");
    const auto state = cluster.state_of(job);
    return state == "COMPLETED" || state == "FAILED";
  })) << printed();
  EXPECT_EQ(cluster.state_of(job), "COMPLETED") << printed();
  EXPECT_NE(printed().find("trained "), std::string::npos) << printed();
  test::expect_same_result(run, test::result_of(program / "local"));
}

}  // namespace
}  // namespace thinpipe
