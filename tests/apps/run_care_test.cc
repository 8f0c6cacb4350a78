// Commands around runs: init, clean, metrics, and the watching of runs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/models.h"
#include "apps/running_program.h"
#include "config/config_file.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Json;
using test::RunningProgram;

class RunCare : public testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  std::string must(const Arguments& arguments, const test::RunOptions& options = {}) {
    const auto outcome = program_.run(arguments, options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }
  // In the data folder, where `runs` and `clean` look.
  Arguments named(const std::string& name, const Arguments& settings = {}) const {
    Arguments arguments{"train", "small.toml", "--name", name, "--set", "pipeline.stages=2"};
    for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  fs::path run(const std::string& name) const { return program_.data() / "runs" / name; }
  Json runs() { return test::json_of(program_.run({"runs", "--json"})); }

  test::Program program_;
};

// ---- clean ----

TEST_F(RunCare, Clean_RemovesWhatNoRunNeedsAndNothingElse) {
  must(named("complete", {"train.steps=12", "checkpoint.keep_last=3"}));
  const auto copy = [&](const std::string& name) {
    fs::copy(run("complete"), run(name), fs::copy_options::recursive);
    return run(name);
  };
  fs::remove(copy("interrupted") / "outcome.json");
  // Its newest checkpoint is damaged, so an older one may be wanted.
  const auto damaged = copy("damaged");
  fs::resize_file(newest_checkpoint(damaged).take().files.front(), 10);
  // It failed before its first step.
  test::write_file(run("failed") / "config.toml", "");
  test::write_file(run("failed") / "outcome.json", "{\"failed\": true, \"complete\": false}\n");
  test::write_file(program_.data() / "prepared/.abc.partial/train.bin", "half");
  test::write_file(program_.data() / "prepared/.mine/notes", "stays");

  // Which steps have a checkpoint depends on how long writing one takes; the last one has.
  const auto checkpoints = checkpoints_of(run("complete")).take();
  ASSERT_GE(checkpoints.size(), 2U);
  EXPECT_EQ(checkpoints.front().step, 12);
  const auto many = fmt::format("{} folder(s), ", checkpoints.size() - 1 + 3);
  const auto before = program_.contents();
  const auto asked = program_.run({"clean"});
  EXPECT_EQ(asked.exit_code, 2);
  test::expect_one_line(asked, {"give --yes to remove " + many});
  EXPECT_EQ(program_.contents(), before);

  const auto said = must({"clean", "--yes"});
  EXPECT_NE(said.find("removed " + many), std::string::npos) << said;
  std::set<std::string> gone;
  const auto after = program_.contents();
  std::set_difference(before.begin(), before.end(), after.begin(), after.end(), std::inserter(gone, gone.end()));
  for (const auto& path : gone) {
    const bool expected = path.starts_with("data/runs/failed") || path.starts_with("data/prepared/.abc.partial") ||
                          path.starts_with("data/runs/complete/workers") ||
                          path.starts_with("data/runs/complete/checkpoints/");
    EXPECT_TRUE(expected) << path << " is gone";
  }
  EXPECT_EQ(checkpoints_of(run("complete")).take(), std::vector{checkpoints.front()});
  EXPECT_FALSE(fs::exists(run("complete") / "workers"));
  EXPECT_FALSE(fs::exists(run("failed")));
  EXPECT_NE(must({"clean", "--yes"}).find("nothing to remove"), std::string::npos);
  // The run can still be trained longer.
  must({"train", "--resume", "complete", "--steps", "14"});
}

// ---- watch ----

TEST_F(RunCare, Watch_RedrawsATerminalUntilCtrlC) {
  if (!test::has_pseudo_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  test::write_file(run("one") / "config.toml", "[train]\nsteps = 7\n");
  RunningProgram watching(program_, {"runs", "--watch"}, {}, {.terminal = true});
  const std::string screen = "\033[H\033[2Jone  step 0/7";
  ASSERT_TRUE(watching.wait_until("it has drawn twice", [&] {
    const auto first = watching.out().find(screen);
    return first != std::string::npos && watching.out().find(screen, first + 1) != std::string::npos;
  })) << watching.out();
  watching.signal(SIGINT);
  EXPECT_EQ(watching.wait().exit_code, -1) << "ended by the signal";
  expect_refused(program_, {"runs", "--watch"}, {"--watch redraws a terminal"});
  expect_refused(program_, {"show", "one", "--watch"}, {"--watch redraws a terminal"});
}

TEST_F(RunCare, RunningRun_HasATimeLeft) {
  {
    RunningProgram running(program_, named("slow", {"train.steps=3000", "link.delay=60ms"}));
    ASSERT_TRUE(running.wait_until("some steps are done",
                                   [&] { return test::metrics_lines(run("slow")) >= 5 || !running.running(); }) &&
                running.running())
        << running.err();
    const auto found = runs();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0]["state"], "running");
    ASSERT_TRUE(found[0]["eta_s"].is_number()) << found;
    EXPECT_GT(found[0]["eta_s"], 2000 * 0.06);  // a step takes at least one delay
    EXPECT_NE(must({"runs"}).find("  ETA "), std::string::npos);
    EXPECT_NE(must({"status", "slow"}).find("\ntime left: about "), std::string::npos);
  }
}

// ---- metrics ----

TEST_F(RunCare, Metrics_WritesATableAndAnEventFile) {
  must(named("run", {"train.steps=4"}));
  EXPECT_TRUE(runs()[0]["eta_s"].is_null()) << "it is complete";
  EXPECT_EQ(must({"metrics", "--format", "csv"}), "wrote run.csv\n");
  const auto table = read_file(program_ / "run.csv").take();
  EXPECT_TRUE(table.starts_with("step,loss,")) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  EXPECT_EQ(must({"metrics", "run", "--format", "tensorboard"}), "wrote run.tfevents\n");
  EXPECT_NE(read_file(program_ / "run.tfevents").take().find("brain.Event:2"), std::string::npos);
  expect_refused(program_, {"metrics", "--format", "tensorboard", "--out", "x"}, {"--out x", "tfevents"});
  expect_refused(program_, {"metrics", "--format", "xml"}, {"csv, tensorboard"});
  expect_refused(program_, {"metrics", "nothing", "--format", "csv"}, {"nothing"});
}

// ---- init ----

TEST_F(RunCare, Init_WritesAConfigThatTrains) {
  const Arguments all{"init",   "my.toml", "--text", "corpus.txt", "--machines", "2",
                      "--line", "10mbit",  "--time", "1min",       "--for",      "export"};
  const auto said = must(all);
  for (const char* part : {" million weights; about ", "machine 0: at most ", "machine 1: ",
                           "wrote my.toml; next: "
                           "thinpipe serve my.toml\n"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " not in " << said;
  }
  const auto config = load_config(program_ / "my.toml");
  EXPECT_EQ(config.data.corpus, "corpus.txt");
  EXPECT_EQ(config.pipeline.stages, 2);
  EXPECT_TRUE(config.model.is_subspace());
  must({"plan", "my.toml"});
  must({"train", "my.toml", "--steps", "1", "--in-process"});
  expect_refused(program_, all, {"my.toml exists", "--force"});
  auto again = all;
  again.back() = "loss";
  again.push_back("--force");
  must(again);
  EXPECT_TRUE(load_config(program_ / "my.toml").model.is_fast());
}

TEST_F(RunCare, Init_AsksForWhatNoOptionSays) {
  test::write_file(program_ / "typed", "corpus.txt\n\n1min\n\n");
  const auto said = must({"init", "--line", "5mbit"}, {.input = "typed"});
  EXPECT_NE(said.find("How many machines? [1] "), std::string::npos) << said;
  EXPECT_EQ(said.find("the slowest of them"), std::string::npos) << "one machine has no line: " << said;
  const auto config = load_config(program_ / "thinpipe.toml");
  EXPECT_EQ(config.pipeline.stages, 1);
  EXPECT_FALSE(config.model.is_subspace());
}

TEST_F(RunCare, Init_RefusesWhatItCannotUse) {
  expect_refused(program_, {"init"}, {"the input ended before the answer to \"What text?", "--text gives it"});
  expect_refused(program_, {"init", "--text", "corpus.txt"}, {"How many machines?", "--machines gives it"});
  expect_refused(program_, {"init", "--text", "nothing.txt", "--machines", "0"}, {"--machines \"0\""});
  expect_refused(program_, {"init", "my.txt"}, {"my.txt: needs a name that ends in .toml"});
  const auto refused = [&](const Arguments& more, const Arguments& parts) {
    Arguments arguments{"init", "--text", "corpus.txt", "--time", "1h", "--for", "export"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(program_, arguments, parts);
  };
  refused({"--machines", "0"}, {"--machines \"0\": needs a whole number from 1 to 256"});
  refused({"--machines", "2", "--line", "fast"}, {"--line \"fast\": needs a rate such as 10mbit"});
  expect_refused(program_, {"init", "--text", "nothing.txt"}, {"--text \"nothing.txt\"", "nothing.txt"});
  expect_refused(program_, {"init", "--text", "corpus.txt", "--machines", "1", "--time", "5s"},
                 {"--time \"5s\": needs a time of at least 1min"});
  expect_refused(program_, {"init", "--for", "fun"}, {"fun is not one of export, loss"});
}

}  // namespace
}  // namespace thinpipe
