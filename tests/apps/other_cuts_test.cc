// Resumes a run with other cuts, as a person does: the losses agree up to rounding (nothing that crosses a cut is
// rounded here), even after kills in between; a refused change leaves the run as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "store/checkpoints.h"
#include "store/safetensors.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;
using test::small_run;
using Json = nlohmann::json;

// Slow enough to interrupt in the middle.
const Arguments kSlow = {"train.steps=24", "link.delay=60ms"};

class OtherCuts : public testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  // Training losses by step, and the validation losses.
  static std::map<std::string, double> losses_of(const fs::path& run) {
    std::map<std::string, double> losses;
    std::istringstream lines(read_file(run / "metrics.jsonl").take());
    for (std::string line; std::getline(lines, line);) {
      const auto json = Json::parse(line);
      for (const auto& [key, value] : json.items()) {
        if (key.ends_with("loss")) losses[fmt::format("{} {}", json.value("step", -1), key)] = value;
      }
    }
    return losses;
  }

  std::map<std::string, double> expected_losses(const Arguments& settings) {
    const auto outcome = program_.run(small_run(program_ / "expected", settings, {"--in-process"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return losses_of(program_ / "expected");
  }

  static void expect_losses(const fs::path& run, const std::map<std::string, double>& expected) {
    const auto found = losses_of(run);
    ASSERT_EQ(found.size(), expected.size());
    double worst = 0;
    for (const auto& [name, loss] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_NEAR(found.at(name), loss, 1e-5 * loss) << name;
      worst = std::max(worst, std::abs(found.at(name) - loss) / loss);
    }
    fmt::print("largest relative difference of a loss: {:.1e}\n", worst);
  }

  static Arguments resume(const fs::path& run, const Arguments& settings = {}) {
    Arguments arguments{"train", "--resume", run.string()};
    for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }

  static bool wait_for_lines(RunningProgram& running, const fs::path& run, int64_t lines) {
    return running.wait_until(fmt::format("{} steps are committed", lines), [&] {
      return test::metrics_lines(run) >= lines || !running.running();
    }) && running.running();
  }

  void stop_at(RunningProgram& running, const fs::path& run, int64_t lines) {
    ASSERT_TRUE(wait_for_lines(running, run, lines)) << running.err();
    running.signal(SIGINT);
    const auto outcome = running.wait();
    EXPECT_EQ(outcome.exit_code, 130) << outcome.out << outcome.err << test::logs_of(run);
  }

  static CheckpointManifest newest_manifest(const fs::path& run) { return newest_checkpoint(run).take().manifest; }

  void expect_fails(const Arguments& arguments, const Arguments& parts) {
    SCOPED_TRACE(fmt::format("thinpipe {}", fmt::join(arguments, " ")));
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    test::expect_one_line(outcome, parts);
  }

  test::Program program_;
};

TEST_F(OtherCuts, FourStagesThenTwoThenThreeComputeTheSame) {
  const auto expected = expected_losses(kSlow);
  const auto run = program_ / "run";
  {
    RunningProgram four(program_, small_run(run, kSlow));
    stop_at(four, run, 7);
  }
  {
    RunningProgram two(program_, resume(run, {"pipeline.stages=2"}));
    ASSERT_TRUE(two.wait_for_output("stages: 2 processes")) << two.err();
    stop_at(two, run, 14);
  }
  const auto config = read_file(run / "config.toml").take();
  EXPECT_NE(config.find("stages = 2\ncuts = []\n"), std::string::npos) << config;
  EXPECT_NE(program_.run({"show", run.string()}).out.find("4 blocks in 2 stages"), std::string::npos);
  const auto outcome =
      program_.run(resume(run, {"pipeline.cuts=[1,2,1]", "pipeline.schedule=gpipe", "link.delay=0ms"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(fs::exists(run / "model.safetensors"));
  expect_losses(run, expected);
  EXPECT_TRUE(test::processes_of(run).empty());
}

// Killed when the config is written, when the coordinator has started, and later.
TEST_F(OtherCuts, KilledAtAnyMoment_RunStillResumes) {
  const Arguments settings{"train.steps=300", "link.delay=60ms"};  // one stage has no link to slow it down
  const auto expected = expected_losses(settings);
  const auto run = program_ / "run";
  {
    RunningProgram four(program_, small_run(run, settings));
    stop_at(four, run, 7);
  }
  const auto serve_log = [&] {
    const auto log = read_file(run / "logs" / "serve.log");
    return log ? log.value() : std::string();
  };
  int number = 0;
  const auto killed_when = [&](const std::string& setting, const std::string& what, const auto& condition) {
    SCOPED_TRACE(fmt::format("{}: {} when {}", ++number, setting, what));
    RunningProgram running(program_, resume(run, {setting}));
    EXPECT_TRUE(running.wait_until(what, [&] { return condition() || !running.running(); }));
    running.signal(SIGKILL);
    (void)running.wait();
    EXPECT_TRUE(running.wait_until("its children are gone", [&] { return test::processes_of(run).empty(); }));
  };
  const auto config_says = [&](const std::string& text) {
    return [&run, text] { return read_file(run / "config.toml").take().find(text) != std::string::npos; };
  };
  killed_when("pipeline.stages=2", "the config says so", config_says("stages = 2\n"));
  killed_when("pipeline.stages=3", "the coordinator has begun",
              [&, before = serve_log().size()] { return serve_log().size() != before; });
  const auto lines = test::metrics_lines(run);
  killed_when("pipeline.cuts=[3,1]", "a step is done", [&] { return test::metrics_lines(run) >= lines + 1; });
  killed_when("pipeline.stages=2", "some steps are done", [&] { return test::metrics_lines(run) >= lines + 2; });
  // Settings not given again keep their last value.
  const auto outcome = program_.run(resume(run, {"link.delay=0ms"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  EXPECT_NE(read_file(run / "config.toml").take().find("stages = 2\n"), std::string::npos);
  expect_losses(run, expected);
}

TEST_F(OtherCuts, NewestCheckpointDamaged_UsesTheOneBefore) {
  const auto expected = expected_losses(kSlow);
  const auto run = program_ / "run";
  {
    RunningProgram four(program_, small_run(run, kSlow));
    stop_at(four, run, 7);
  }
  const auto newest = newest_checkpoint(run).take();
  fs::resize_file(newest.files.at(2), 100);
  ASSERT_LT(newest_manifest(run).id.step, newest.manifest.id.step);
  const auto outcome = program_.run(resume(run, {"pipeline.stages=2", "link.delay=0ms"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  expect_losses(run, expected);
}

TEST_F(OtherCuts, RefusedChange_LeavesTheRunUnchanged) {
  const auto run = program_ / "run";
  {
    RunningProgram four(program_, small_run(run, {"train.steps=24", "link.delay=60ms", "subspace.anchors=stage",
                                                  "subspace.full_rank_tail=1"}));
    ASSERT_TRUE(wait_for_lines(four, run, 2));
    {
      const test::Held held(four.child("worker-1"));  // it must not end before the attempts
      ASSERT_EQ(program_.run({"pause", run.string()}).exit_code, 0);
    }
    // It is in use.
    const auto before = read_file(run / "config.toml").take();
    expect_fails(resume(run, {"pipeline.stages=2"}), {run.string(), "another process serves this run"});
    expect_fails({"serve", "--run", run.string(), "--set", "pipeline.stages=2"}, {"another process serves this run"});
    EXPECT_EQ(read_file(run / "config.toml").take(), before);
    ASSERT_EQ(program_.run({"resume", run.string()}).exit_code, 0);
    stop_at(four, run, 6);
  }
  const auto config = read_file(run / "config.toml").take();
  const auto manifest = newest_manifest(run);
  const std::vector<std::pair<Arguments, Arguments>> refused = {
      {{"--set", "model.d=64"}, {"--set model.d: changes what the run computes", "start a new run"}},
      {{"--set", "boundary.pack=int4"}, {"--set boundary.pack: changes"}},
      {{"--device", "cuda"}, {"train.device", "cuda"}},
      {{"--set", "pipeline.stages=5"}, {"more stages than blocks"}},
      {{"--set", "pipeline.cuts=[2,3]"}, {"sums to 5"}},
      {{"--run-dir", "elsewhere"}, {"--resume uses the run's own config", "leave out"}},
  };
  for (const auto& [more, parts] : refused) {
    auto arguments = resume(run);
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_fails(arguments, parts);
  }
  expect_fails({"serve", "--run", run.string(), "--set", "model.d=64"}, {"--set model.d: changes"});
  EXPECT_EQ(read_file(run / "config.toml").take(), config);
  EXPECT_EQ(newest_manifest(run), manifest);
  // Trainable anchors: groups may be joined, so this resumes, and completes the run.
  const auto outcome = program_.run(resume(run, {"pipeline.cuts=[3,1]"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  expect_fails(resume(run, {"pipeline.stages=1"}), {run.string(), "complete"});
  expect_fails({"serve", "--run", run.string(), "--set", "pipeline.stages=1"}, {run.string(), "complete"});
}

// ---- machines ----

class OtherCutsTogether : public OtherCuts {
 protected:
  std::unique_ptr<RunningProgram> serve(const Arguments& arguments) {
    auto running = std::make_unique<RunningProgram>(program_, arguments);
    EXPECT_TRUE(running->wait_for_output("to let machines join")) << running->err();
    return running;
  }
  std::unique_ptr<RunningProgram> join(const std::string& name, const std::string& text) {
    return std::make_unique<RunningProgram>(program_, Arguments{"join", text, "--listen", "127.0.0.1", "--name", name},
                                            program_ / (name + "-data"));
  }
};

// Three machines with a stage each; the coordinator restarts with two stages. The machines follow without help, and one
// of them waits.
TEST_F(OtherCutsTogether, ConnectedMachines_GetNewStages) {
  const Arguments settings{"pipeline.stages=3", "link.delay=60ms", "train.steps=24"};
  const auto expected = expected_losses(settings);
  const auto run = program_ / "run";
  Arguments arguments{"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()};
  for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  auto serving = serve(arguments);
  const auto text = program_.run({"invite", "--uses", "3", run.string()}).out;
  std::vector<std::unique_ptr<RunningProgram>> machines;
  for (const char* name : {"a", "b", "c"}) machines.push_back(join(name, text));
  ASSERT_TRUE(wait_for_lines(*serving, run, 8));
  serving->signal(SIGKILL);
  (void)serving->wait();
  ASSERT_LT(test::metrics_lines(run), 24) << "too late to be a test";
  serving = serve({"serve", "--run", run.string(), "--listen", "127.0.0.1", "--set", "pipeline.stages=2"});
  for (auto& machine : machines) {
    const auto outcome = machine->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  EXPECT_EQ(serving->wait().exit_code, 0) << serving->err();
  expect_losses(run, expected);
}

// As many stages as before, with other cuts: the machines' old state looks valid and is not.
TEST_F(OtherCutsTogether, StateHeldForOtherCuts_IsNotUsed) {
  const Arguments settings{"pipeline.stages=2", "link.delay=60ms", "train.steps=24"};
  const auto expected = expected_losses(settings);
  const auto run = program_ / "run";
  Arguments arguments{"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()};
  for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  auto serving = serve(arguments);
  const auto text = program_.run({"invite", "--uses", "2", run.string()}).out;
  auto a = join("a", text), b = join("b", text);
  ASSERT_TRUE(wait_for_lines(*serving, run, 3));  // before the first checkpoint: the disk cannot show it
  serving->signal(SIGKILL);
  (void)serving->wait();
  ASSERT_LT(test::metrics_lines(run), 24) << "too late to be a test";
  serving = serve({"serve", "--run", run.string(), "--listen", "127.0.0.1", "--set", "pipeline.cuts=[3,1]"});
  for (auto* running : {a.get(), b.get(), serving.get()}) {
    const auto outcome = running->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  expect_losses(run, expected);
}

TEST_F(OtherCutsTogether, AutoCuts_AreDecidedAgainForTheMachinesThatJoin) {
  const auto expected = expected_losses(kSlow);
  const auto run = program_ / "run";
  {
    RunningProgram four(program_, small_run(run, kSlow));
    stop_at(four, run, 7);
  }
  auto serving = serve({"serve", "--run", run.string(), "--listen", "127.0.0.1", "--set", "pipeline.stages=2", "--set",
                        "pipeline.cuts=auto"});
  const auto text = program_.run({"invite", "--uses", "2", run.string()}).out;
  auto a = join("a", text), b = join("b", text);
  for (auto* running : {a.get(), b.get(), serving.get()}) {
    const auto outcome = running->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  EXPECT_NE(serving->err().find("placed: "), std::string::npos) << serving->err();
  EXPECT_EQ(read_file(run / "config.toml").take().find("\"auto\"\nschedule"), std::string::npos);
  expect_losses(run, expected);
}

}  // namespace
}  // namespace thinpipe
