// A machine as a guest of somebody: limits that are refused, breaks while it runs on battery, capped lines, and what
// `status` and `service` say.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::expect_refused;
using test::Program;
using test::RunningProgram;
using test::write_file;

// A laptop's power supply, as the kernel shows it. Programs that are started while it lives look at it.
class Laptop {
 public:
  explicit Laptop(const Program& program) : folder_(program / "power") {
    fs::create_directories(folder_ / "AC");
    fs::create_directories(folder_ / "BAT0");
    write_file(folder_ / "AC/type", "Mains\n");
    write_file(folder_ / "BAT0/type", "Battery\n");
    plug(true);
    ::setenv("THINPIPE_POWER_SUPPLY", folder_.c_str(), 1);
  }
  ~Laptop() { ::unsetenv("THINPIPE_POWER_SUPPLY"); }
  Laptop(const Laptop&) = delete;
  Laptop& operator=(const Laptop&) = delete;

  void plug(bool in) const { write_file_atomically(folder_ / "AC/online", in ? "1\n" : "0\n").take(); }

 private:
  fs::path folder_;
};

// A step takes at least 1/4 s, so that there is time to pull the plug.
const Arguments kSlow{"pipeline.stages=2", "link.delay=60ms", "train.steps=30"};

TEST(Guest, WrongLimits_AreRefusedBeforeAnythingIsPrepared) {
  const Program program;
  test::write_small_run(program);
  expect_refused(program, {"train", "small.toml", "--threads", "many"}, {"--threads \"many\": needs a whole number"});
  expect_refused(program, {"train", "small.toml", "--hours", "22-7"}, {"--hours \"22-7\": needs two times of the day"});
  expect_refused(program, {"train", "small.toml", "--max-memory", "20MiB"},
                 {"memory: this run needs up to ", "--max-memory allows 20 MiB", "too little"});
  expect_refused(program, {"train", "small.toml", "--in-process", "--on-battery", "leave"}, {"--in-process"});
  expect_refused(program, {"train", "small.toml", "--host", "box", "--threads", "2"},
                 {"--threads 2: limits this machine", "leave it out"});
  expect_refused(program, {"train", "small.toml", "--on-battery", "run"}, {"run is not one of leave, stay"});
}

TEST(Guest, TrainOnBattery_LeavesWithACheckpointAndComesBackToTheSameBits) {
  const Program program;
  test::write_small_run(program);
  const auto local = program / "local";
  ASSERT_EQ(program.run(test::small_run(local, {"pipeline.stages=2", "train.steps=30"})).exit_code, 0);
  const Laptop laptop(program);
  const auto run = program / "run";
  RunningProgram training(program, test::small_run(run, kSlow, {"--on-battery", "leave", "--nice", "1"}));
  ASSERT_TRUE(training.wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 3; }));
  const auto status = program.run({"status", run.string()});
  EXPECT_NE(status.out.find("limits on this machine: nice 1, on-battery leave\n"), std::string::npos) << status.out;
  laptop.plug(false);
  ASSERT_TRUE(training.wait_for_output("stopping after a checkpoint: this machine runs on battery")) << training.err();
  ASSERT_TRUE(training.wait_for_output("waiting: this machine runs on battery")) << training.err();
  EXPECT_LT(test::metrics_lines(run), 30) << "too late to be a test";
  EXPECT_EQ(training.child("serve"), -1) << "nothing runs during a break";
  laptop.plug(true);
  const auto outcome = training.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run);
  test::expect_same_result(run, test::result_of(local));
}

TEST(Guest, CtrlCDuringABreak_StopsAndSaysHowToResume) {
  const Program program;
  test::write_small_run(program);
  const Laptop laptop(program);
  laptop.plug(false);
  const auto run = program / "run";
  RunningProgram training(program, test::small_run(run, {}, {"--on-battery", "leave"}));
  ASSERT_TRUE(training.wait_for_output("waiting: this machine runs on battery"));
  training.signal(SIGINT);
  const auto outcome = training.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_NE(outcome.out.find("thinpipe train --resume"), std::string::npos) << outcome.out;
  laptop.plug(true);
  const auto resumed = program.run({"train", "--resume", run.string()});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
}

TEST(Guest, JoinedMachine_WithCapsAndBreaks_TrainsToTheSameBits) {
  const Program program;
  test::write_small_run(program);
  const auto local = program / "local";
  ASSERT_EQ(program.run(test::small_run(local, {"pipeline.stages=2", "train.steps=30"})).exit_code, 0);
  const Laptop laptop(program);
  const auto run = program / "run";
  Arguments arguments{"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()};
  for (const auto& setting : kSlow) arguments.insert(arguments.end(), {"--set", setting});
  RunningProgram serving(program, arguments);
  ASSERT_TRUE(serving.wait_for_output("to let machines join")) << serving.err();
  const auto invited = program.run({"invite", run.string(), "--uses", "2"});
  const auto invite = invited.out.substr(0, invited.out.find('\n'));
  const auto join = [&](const std::string& name, const Arguments& more) {
    Arguments words{"join", invite, "--name", name};
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<RunningProgram>(program, words, program / (name + "-data"));
  };
  auto small = join("small", {"--max-memory", "20MiB"});
  const auto refused = small->wait();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("memory: stage 0 needs up to "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--max-memory allows 20 MiB"), std::string::npos) << refused.err;
  auto dialled = join("dialled", {"--max-upload", "5mbit", "--listen", "127.0.0.1"});
  EXPECT_NE(dialled->wait().err.find("leave out --listen and --announce"), std::string::npos);

  auto guest = join("guest", {"--max-upload", "20mbit", "--max-download", "30mbit", "--on-battery", "leave",
                              "--max-memory", "4GiB", "--threads", "1"});
  auto other = join("other", {"--listen", "127.0.0.1"});
  ASSERT_TRUE(serving.wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 3; }));
  RunningProgram asking(program, {"status"}, program / "guest-data");
  EXPECT_NE(
      asking.wait().out.find("  takes part\nlimits on this machine: threads 1, max-memory 4GiB, max-upload 20mbit, "
                             "max-download 30mbit, on-battery leave\n"),
      std::string::npos)
      << asking.out() << asking.err();
  laptop.plug(false);
  ASSERT_TRUE(guest->wait_for_output("waiting: this machine runs on battery")) << guest->out() << guest->err();
  EXPECT_NE(guest->out().find("leaving after a checkpoint: this machine runs on battery"), std::string::npos);
  EXPECT_LT(test::metrics_lines(run), 30) << "too late to be a test";
  RunningProgram listing(program, {"runs", "--json"}, program / "guest-data");
  const auto list = listing.wait().out;
  const auto json = nlohmann::json::parse(list.substr(list.find("\n[") + 1)).at(0);
  EXPECT_EQ(json.at("state").get<std::string>().find("waiting: this machine runs on battery"), 0U) << list;
  EXPECT_EQ(json.at("limits").at("max-upload"), "20mbit") << list;
  EXPECT_EQ(guest->out().find("this machine took part in"), std::string::npos) << "a break is not the end";
  laptop.plug(true);
  for (auto* running : {guest.get(), other.get(), &serving}) {
    const auto outcome = running->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  test::expect_same_result(run, test::result_of(local));
  // The visit is one, with the break in it.
  const auto part = guest->out().find("this machine took part in ");
  EXPECT_NE(part, std::string::npos) << guest->out();
  EXPECT_EQ(guest->out().find("this machine took part in ", part + 1), std::string::npos) << guest->out();
  EXPECT_NE(guest->out().find("the run has ended: "), std::string::npos) << guest->out();
}

TEST(Service, WithoutSystemd_SaysSoInOneLine) {
  if (fs::exists("/run/systemd/system")) GTEST_SKIP() << "this machine runs systemd";
  const Program program;
  for (const Arguments& words : {Arguments{"install", "thinpipe-v1-x"}, Arguments{"remove"}, Arguments{"status"}}) {
    Arguments arguments{"service"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    expect_refused(program, arguments, {"this machine does not run systemd"});
  }
}

TEST(Service, Print_ShowsTheUnitWithoutTheInvite) {
  const Program program;
  test::write_small_run(program);
  const auto run = program / "run";
  // Without a dashboard, which would write into the run's folder while a refusal must leave nothing behind.
  RunningProgram serving(
      program, {"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string(), "--dashboard", "off"});
  ASSERT_TRUE(serving.wait_for_output("to let machines join")) << serving.err();
  const auto invited = program.run({"invite", run.string()});
  const auto invite = invited.out.substr(0, invited.out.find('\n'));
  const auto outcome = program.run({"service", "install", invite, "--print", "--name", "attic"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(" join - --name \"attic\"\n"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("thinpipe-v1-"), std::string::npos) << outcome.out;
  expect_refused(program, {"service", "install", invite, "--print", "--hours", "22"}, {"--hours \"22\""});
}

}  // namespace
}  // namespace thinpipe
