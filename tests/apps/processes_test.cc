// A run as processes, as a person uses it: the same numbers over every kind of link, stopping and resuming, damage and
// refusals, status and control. (kills_test.cc kills them at random.)
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_same_result;
using test::Held;
using test::lines_of;
using test::Outcome;
using test::Program;
using test::RunningProgram;
using test::Seconds;
using test::small_run;
using Json = nlohmann::json;

// Takes seconds, so that a test can interrupt it in the middle on a busy machine too. The delay of the links does not
// change the numbers.
const Arguments kSlow = {"train.steps=24", "link.delay=60ms"};

class Processes : public testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  // All stages in one process: every other way to run must match.
  test::RunResult expected_of(const Arguments& settings) {
    const auto outcome = program_.run(small_run(program_ / "expected", settings, {"--in-process"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return test::result_of(program_ / "expected");
  }

  static bool wait_for_lines(RunningProgram& running, const fs::path& run, int64_t lines) {
    return running.wait_until(fmt::format("{} steps are committed", lines), [&] {
      return test::metrics_lines(run) >= lines || !running.running();
    }) && running.running();
  }

  void expect_resumed(const fs::path& run, const test::RunResult& expected) {
    const auto outcome = program_.run({"train", "--resume", run.string(), "--set", "link.delay=0ms"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
    EXPECT_EQ(outcome.err, "");
    expect_same_result(run, expected);
    EXPECT_TRUE(test::processes_of(run).empty());
  }

  // Exit code 2 and one line with `parts`.
  void expect_fails(const Arguments& arguments, const Arguments& parts) {
    SCOPED_TRACE(fmt::format("thinpipe {}", fmt::join(arguments, " ")));
    const auto outcome = program_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    test::expect_one_line(outcome, parts);
  }

  Program program_;
};

TEST_F(Processes, GiveTheSameNumbersOverEveryKindOfLink) {
  const auto expected = expected_of({"train.steps=50"});
  EXPECT_EQ(std::count(expected.metrics.begin(), expected.metrics.end(), '\n'), 51);
  const std::vector<std::pair<std::string, Arguments>> links = {
      {"unlimited", {"train.steps=50", "link.rate=unlimited"}},
      {"shaped", {"train.steps=50", "link.rate=20mbit", "link.delay=2ms", "link.jitter=1ms"}}};
  for (const auto& [name, settings] : links) {
    SCOPED_TRACE(name);
    const auto run = program_ / name;
    const auto outcome = program_.run(small_run(run, settings));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << test::logs_of(run);
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("\nvalidation loss "), std::string::npos) << outcome.out;
    expect_same_result(run, expected);
    EXPECT_TRUE(test::processes_of(run).empty());
  }
}

// A stage reports while its last packets still wait in the outbox for their delay.
TEST_F(Processes, SocketBytes_OnASlowLine_CoverThePayloadOfEveryStep) {
  const auto run = program_ / "run";
  ASSERT_EQ(program_.run(small_run(run, {"train.steps=4", "link.delay=60ms", "subspace.update_every=0"})).exit_code, 0)
      << test::logs_of(run);
  const auto timing = lines_of(run / "timing.jsonl"), metrics = lines_of(run / "metrics.jsonl");
  ASSERT_EQ(timing.size(), 4U);
  for (size_t i = 0; i + 1 < timing.size(); ++i) {
    int64_t payload = 0;
    for (const auto& cut : metrics.at(i).at("bytes")) {
      payload += cut.at("forward").get<int64_t>() + cut.at("backward").get<int64_t>();
    }
    const auto before = timing[i].at("socket_bytes").get<int64_t>();
    EXPECT_GE(timing[i + 1].at("socket_bytes").get<int64_t>() - before, payload) << "step " << i + 1;
  }
}

TEST_F(Processes, CtrlC_StopsWithACheckpointToResumeFrom) {
  const auto expected = expected_of(kSlow);
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run, kSlow));
  ASSERT_TRUE(wait_for_lines(running, run, 7));
  running.signal(SIGINT);
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  // Usually not a multiple of checkpoint.every: the current step, not the last one due.
  const auto step = Json::parse(read_file(run / "outcome.json").take()).at("step").get<int64_t>();
  EXPECT_NE(outcome.out.find(fmt::format("stopped after step {0}; to resume from the checkpoint of step {0}:\n"
                                         "  thinpipe train --resume {1}\n",
                                         step, run.string())),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(newest_checkpoint(run).take().manifest.id.step, step);
  EXPECT_FALSE(fs::exists(run / "model.safetensors"));
  EXPECT_TRUE(test::processes_of(run).empty());
  expect_resumed(run, expected);
}

TEST_F(Processes, SecondCtrlC_EndsAllAtOnce) {
  const auto expected = expected_of(kSlow);
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run, kSlow));
  ASSERT_TRUE(wait_for_lines(running, run, 7));
  // A stage that does not answer, so the checkpoint for the first ctrl-C cannot be written.
  const Held frozen(running.child("worker-2"));
  running.signal(SIGINT);
  ASSERT_TRUE(running.wait_for_output("ctrl-C again stops at once"));
  const auto start = test::now();
  running.signal(SIGINT);
  const auto outcome = running.wait();
  fmt::print("gone {:.2f} s after the second ctrl-C\n", test::seconds_since(start));
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_NE(outcome.out.find("thinpipe train --resume " + run.string()), std::string::npos) << outcome.out;
  EXPECT_TRUE(test::processes_of(run).empty());
  expect_resumed(run, expected);
}

TEST_F(Processes, StarterKilled_AllEndAndTheRunResumes) {
  const auto expected = expected_of(kSlow);
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run, kSlow));
  ASSERT_TRUE(wait_for_lines(running, run, 1));
  EXPECT_EQ(test::processes_of(run).size(), 7U);  // program, coordinator, dashboard, four stages
  ASSERT_TRUE(wait_for_lines(running, run, 7));
  running.signal(SIGKILL);
  EXPECT_TRUE(running.wait_until("its children are gone", [&] { return test::processes_of(run).empty(); }));
  EXPECT_EQ(running.wait().exit_code, -1);
  expect_resumed(run, expected);
}

TEST_F(Processes, CoordinatorKilledRightAfterItsStart_IsStartedAgain) {
  const auto expected = expected_of({});
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run));
  pid_t killed = -1;
  for (int i = 0; i < 3; ++i) {
    pid_t coordinator = -1;
    ASSERT_TRUE(running.wait_until("there is a coordinator", [&] {
      coordinator = running.child("serve");
      return (coordinator > 0 && coordinator != killed) || !running.running();
    }));
    ASSERT_TRUE(running.running()) << running.err();
    ::kill(coordinator, SIGKILL);
    killed = coordinator;
  }
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  EXPECT_NE(outcome.out.find("the coordinator was ended by signal 9 (Killed); starting it again"), std::string::npos);
  expect_same_result(run, expected);
}

TEST_F(Processes, WithoutACorpus_GetTokensFromTheCoordinator) {
  const auto expected = expected_of({});
  const auto run = program_ / "run";
  RunningProgram serve(program_, {"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()});
  ASSERT_TRUE(serve.wait_for_output("to let machines join")) << serve.err();
  const auto invited = program_.run({"invite", "--uses", "4", run.string()});
  ASSERT_EQ(invited.exit_code, 0) << invited.err;
  std::vector<std::unique_ptr<RunningProgram>> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<RunningProgram>(
        program_, Arguments{"join", invited.out, "--listen", "127.0.0.1", "--name", fmt::format("w{}", i)},
        program_ / fmt::format("home-{}", i) / "data"));
  }
  int without_corpus = 0;
  for (auto& worker : workers) {
    const auto outcome = worker->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto said = outcome.out + outcome.err;
    if (said.find("token windows come from the coordinator") != std::string::npos) ++without_corpus;
  }
  EXPECT_EQ(serve.wait().exit_code, 0) << serve.err();
  EXPECT_EQ(without_corpus, 1);  // only stage 0 reads tokens
  expect_same_result(run, expected);
}

TEST_F(Processes, SayWhichStageFailedAndWhy) {
  const auto run = program_ / "run";
  const auto expected = expected_of(kSlow);
  {
    RunningProgram running(program_, small_run(run, kSlow));
    ASSERT_TRUE(wait_for_lines(running, run, 2));
    running.signal(SIGINT);
    ASSERT_EQ(running.wait().exit_code, 130);
  }
  const Arguments resume{"train", "--resume", run.string()};
  // A file where a worker needs a folder: its next checkpoint fails.
  fs::remove_all(run / "workers/2/states");
  test::write_file(run / "workers/2/states", "a file");
  expect_fails(resume, {"(worker-2)", (run / "workers/2/states").string()});
  EXPECT_TRUE(test::processes_of(run).empty());
  // A folder that cannot be created.
  fs::remove_all(run / "workers");
  test::write_file(run / "workers", "a file");
  expect_fails(resume, {"worker 0", (run / "workers").string()});
  EXPECT_TRUE(test::processes_of(run).empty());
  // Once repaired, the run has lost nothing.
  fs::remove(run / "workers");
  expect_resumed(run, expected);
}

TEST_F(Processes, ModelTooLargeForTheMachine_IsRefusedBeforeAnyProcessStarts) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer reserves more addresses than the limit allows";
  constexpr rlim_t kEnoughForTheLibraries = rlim_t{4} << 30;
  const auto outcome =
      program_.run(small_run(program_ / "run", {"model.d=65536"}), {.address_space = kEnoughForTheLibraries});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  test::expect_one_line(outcome, {"memory: this run needs up to", "lower model.d"});
  EXPECT_FALSE(fs::exists(program_ / "run"));
}

TEST_F(Processes, StageSilentBeyondItsLease_RunStillCompletes) {
  Arguments settings = kSlow;
  settings.push_back("cluster.lease_s=5");  // a shorter one could expire on a busy machine
  const auto expected = expected_of(settings);
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run, settings));
  ASSERT_TRUE(wait_for_lines(running, run, 7));
  {
    const Held frozen(running.child("worker-1"));
    const auto log = run / "logs" / "serve.log";
    EXPECT_TRUE(running.wait_until(
        "its lease is over", [&] { return read_file(log).take().find("(worker-1) was silent") != std::string::npos; }));
    EXPECT_LT(test::metrics_lines(run), 24);
  }
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  expect_same_result(run, expected);
}

TEST_F(Processes, HaveOneCoordinatorPerRun) {
  const auto expected = expected_of(kSlow);
  const auto run = program_ / "run";
  RunningProgram running(program_, small_run(run, kSlow));
  ASSERT_TRUE(wait_for_lines(running, run, 2));
  {
    const Held held(running.child("worker-1"));  // it must not end before the attempts
    ASSERT_EQ(program_.run({"pause", run.string()}).exit_code, 0);
  }
  expect_fails({"serve", "--run", run.string()}, {run.string(), "another process serves this run"});
  expect_fails({"train", "--resume", run.string()}, {run.string(), "another process serves this run"});
  ASSERT_EQ(program_.run({"resume", run.string()}).exit_code, 0);
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  expect_same_result(run, expected);
}

TEST_F(Processes, Commands_ShowAndControlTheRun) {
  const auto expected = expected_of(kSlow);
  EXPECT_NE(program_.run({"runs"}).out.find("no runs yet"), std::string::npos);
  Arguments arguments{"train", "small.toml"};
  for (const auto& setting : kSlow) arguments.insert(arguments.end(), {"--set", setting});
  RunningProgram running(program_, arguments);
  ASSERT_TRUE(running.wait_for_output("\nstages: "));
  const auto run = fs::directory_iterator(program_.data() / "runs")->path();
  const auto name = run.filename().string();
  ASSERT_TRUE(wait_for_lines(running, run, 3));

  {
    const Held held(running.child("worker-1"));
    EXPECT_EQ(program_.run({"pause", name}).exit_code, 0);
  }
  const auto status = [&] {
    const auto outcome = program_.run({"status", name, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out.substr(outcome.out.rfind("\n{") + 1));
  };
  Json paused;
  ASSERT_TRUE(running.wait_until("it is paused", [&] { return (paused = status()).at("phase") == "paused"; }));
  running.look(Seconds(0.8));  // about two steps
  EXPECT_EQ(status().at("step"), paused.at("step"));
  EXPECT_EQ(test::metrics_lines(run), paused.at("step").get<int64_t>());
  EXPECT_EQ(paused.at("members").size(), 4U);
  EXPECT_NE(program_.run({"runs"}).out.find(fmt::format("{}  step {}/24", name, paused.at("step").get<int64_t>())),
            std::string::npos);
  EXPECT_NE(program_.run({"show"}).out.find("state: running"), std::string::npos);

  EXPECT_EQ(program_.run({"resume", name}).exit_code, 0);
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  expect_same_result(run, expected);
  EXPECT_NE(program_.run({"runs"}).out.find("complete"), std::string::npos);
  const auto shown = program_.run({"show", name}).out;
  for (const char* part : {"state: complete", "checkpoints of steps: 20, 24", "model.safetensors"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << shown;
  }
  for (const char* command : {"status", "pause", "resume"}) expect_fails({command, name}, {name, "no longer served"});
  expect_fails({"train", "--resume", name}, {name, "complete"});
  expect_fails({"show", "nothing"}, {"there is no run 'nothing'", "thinpipe runs"});
}

TEST_F(Processes, Resume_WithNothingToResume_IsRefused) {
  const auto run = program_ / "run";
  ASSERT_EQ(program_.run(small_run(run, {"train.steps=2"}, {"--in-process"})).exit_code, 0);
  const auto before = test::result_of(run);
  expect_fails({"train", "--resume", run.string()}, {run.string(), "--in-process", "no checkpoints"});
  EXPECT_EQ(test::result_of(run), before);
  fs::create_directory(program_ / "empty");
  expect_fails({"train", "--resume", (program_ / "empty").string()}, {"there is no run", "empty"});
  expect_fails({"train", "--resume", "2026-01-31"}, {"there is no run '2026-01-31'", "thinpipe runs"});
  for (const Arguments& option : {Arguments{"small.toml"}, {"--run-dir", "x"}, {"--in-process"}}) {
    Arguments arguments{"train", "--resume", run.string()};
    arguments.insert(arguments.end(), option.begin(), option.end());
    expect_fails(arguments, {"--resume uses the run's own config", "leave out"});
  }
  EXPECT_EQ(test::result_of(run), before);
}

// A run at step 12 with the checkpoints of steps 10 and 12; tests damage copies of it.
class DamagedCheckpoint : public Processes {
 protected:
  void SetUp() override {
    Processes::SetUp();
    if (IsSkipped()) return;
    expected_ = expected_of(settings_);
    whole_ = stopped_run("whole", settings_);
    newest_ = newest_in(whole_);
  }

  fs::path stopped_run(const std::string& name, const Arguments& settings) {
    const auto run = program_ / name;
    RunningProgram running(program_, small_run(run, settings));
    EXPECT_TRUE(wait_for_lines(running, run, 11));
    running.signal(SIGINT);
    EXPECT_EQ(running.wait().exit_code, 130) << running.err();
    return run;
  }

  static fs::path newest_in(const fs::path& run) {
    return newest_checkpoint(run).take().files.front().parent_path().lexically_relative(run);
  }

  fs::path copy(const std::string& name) {
    fs::copy(whole_, program_ / name, fs::copy_options::recursive);
    return program_ / name;
  }

  void flip_a_byte(const fs::path& file) {
    auto bytes = read_file(file).take();
    bytes[bytes.size() / 2] ^= 1;
    test::write_file(file, bytes);
  }

  // It used the checkpoint before, logged that, and got the same result.
  void expect_passed_over(const fs::path& run, const Arguments& parts) {
    expect_resumed(run, expected_);
    const auto log = read_file(run / "logs" / "serve.log").take();
    for (const auto& part : parts) EXPECT_NE(log.find(part), std::string::npos) << part << " not in " << log;
  }

  const Arguments settings_ = kSlow;
  test::RunResult expected_;
  fs::path whole_;
  fs::path newest_;
};

// The store's own tests cover other damage and how it is named (tests/store).
TEST_F(DamagedCheckpoint, IsSkippedForTheOneBefore) {
  auto run = copy("missing");
  fs::remove(run / newest_ / "block-003.safetensors");
  expect_passed_over(run, {"block-003.safetensors: is missing"});

  run = copy("flipped");
  flip_a_byte(run / newest_ / "block-001.safetensors");
  expect_passed_over(run, {"block-001.safetensors: damaged: its sha256 is"});
}

}  // namespace
}  // namespace thinpipe
