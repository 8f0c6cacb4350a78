// `thinpipe train --hosts`: the stages of a run on machines that are reached through ssh. A real sshd on loopback plays
// all of them.
#include <gtest/gtest.h>

#include "apps/running_program.h"
#include "support/ssh_server.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::RunningProgram;
using test::SshServer;

constexpr const char* kTwo = "pipeline.stages=2";

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!server_.why_not().empty()) GTEST_SKIP() << server_.why_not();
    test::write_small_run(program_);
    test::write_file(program_ / "hosts.txt", "# ours\nbox-a\n\nbox-b slots=1  # the other one\n");
  }

  // Trains in two stages on both.
  Arguments on_hosts(const Arguments& settings = {}, const Arguments& more = {}) const {
    auto all = settings;
    all.emplace_back(kTwo);
    auto arguments = test::small_run(run_, all, {"--hosts", "hosts.txt", "--listen", "127.0.0.1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // The same run on this machine.
  test::RunResult local_result(const Arguments& settings = {}) const {
    auto all = settings;
    all.emplace_back(kTwo);
    const auto run = program_ / "local";
    const auto outcome = program_.run(test::small_run(run, all));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << test::logs_of(run);
    return test::result_of(run);
  }

  void expect_done(RunningProgram& running, const test::RunResult& expected) const {
    const auto outcome = running.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << test::logs_of(run_);
    test::expect_same_result(run_, expected);
    EXPECT_TRUE(server_.workers().empty());
  }

  void wait_for_steps(RunningProgram& running, int64_t steps) const {
    ASSERT_TRUE(running.wait_until("some steps are done", [&] {
      return test::metrics_lines(run_) >= steps || !running.running();
    })) << test::logs_of(run_);
    ASSERT_TRUE(running.running()) << running.err() << test::logs_of(run_);
  }

  static pid_t ssh_of(const RunningProgram& running, const std::string& host) {
    for (const auto& info : test::all_processes()) {
      const auto found = std::find(info.arguments.begin(), info.arguments.end(), host);
      if (info.parent == running.pid() && info.state != 'Z' && found != info.arguments.end()) return info.pid;
    }
    return -1;
  }

  test::Program program_;
  const std::filesystem::path run_ = program_ / "run";
  const SshServer server_{program_, {"box-a", "box-b"}};
};

TEST_F(Hosts, RunOverTwo_EndsWithTheSameBitsAsOnOneMachine) {
  server_.install_program();
  RunningProgram running(program_, on_hosts());
  expect_done(running, local_result());
  EXPECT_NE(running.out().find("stages: 2 on box-a, box-b, links of 80mbit"), std::string::npos) << running.out();
  for (const char* name : {"host-box-a-1.log", "host-box-b-1.log"}) {
    const auto log = read_file(run_ / "logs" / name);
    ASSERT_TRUE(log) << name;
    EXPECT_NE(log.value().find("joined as box-"), std::string::npos) << log.value();
  }
}

TEST_F(Hosts, CtrlCOrDeathOfTrain_LeavesNoProcessThere) {
  server_.install_program();
  Arguments settings{"train.steps=60"};
  const auto expected = local_result(settings);
  settings.emplace_back("link.delay=60ms");
  {
    RunningProgram running(program_, on_hosts(settings));
    wait_for_steps(running, 3);
    EXPECT_EQ(server_.workers().size(), 2U);
    const auto there = server_.workers();
    for (const auto& info : test::all_processes()) {
      if (info.parent != running.pid() && std::find(there.begin(), there.end(), info.pid) == there.end()) continue;
      for (const auto& argument : info.arguments) {
        EXPECT_EQ(argument.find("thinpipe-v1-"), std::string::npos) << "an invite that everybody can see";
      }
    }
    running.signal(SIGINT);
    EXPECT_EQ(running.wait().exit_code, 130) << running.out() << running.err();
    EXPECT_NE(running.out().find("to resume from the checkpoint"), std::string::npos) << running.out();
    EXPECT_TRUE(running.wait_until("the workers are gone", [&] { return server_.workers().empty(); }));
  }
  const Arguments resume{"train", "--resume", run_.string(), "--hosts", "hosts.txt", "--listen", "127.0.0.1"};
  {
    RunningProgram running(program_, resume);
    wait_for_steps(running, test::metrics_lines(run_) + 2);
    running.signal(SIGKILL);
    running.wait();
    EXPECT_TRUE(running.wait_until("the workers are gone", [&] { return server_.workers().empty(); }));
  }
  RunningProgram running(program_, resume);
  expect_done(running, expected);
}

TEST_F(Hosts, WorkerWhoseConnectionOrProcessIsKilled_ComesBack) {
  server_.install_program();
  Arguments settings{"train.steps=60"};
  const auto expected = local_result(settings);
  settings.emplace_back("link.delay=60ms");
  RunningProgram running(program_, on_hosts(settings));
  wait_for_steps(running, 3);
  const auto before = server_.workers();
  const pid_t ssh = ssh_of(running, "box-b");
  ASSERT_GT(ssh, 0);
  ::kill(ssh, SIGKILL);
  EXPECT_TRUE(running.wait_for_output("box-b: signal 9 (Killed) ended ssh; trying again in 1"));
  EXPECT_TRUE(running.wait_until("its worker has ended", [&] {
    const auto now = server_.workers();
    return std::any_of(before.begin(), before.end(),
                       [&](pid_t pid) { return std::find(now.begin(), now.end(), pid) == now.end(); });
  }));
  wait_for_steps(running, test::metrics_lines(run_) + 3);
  const auto workers = server_.workers();
  ASSERT_EQ(workers.size(), 2U);
  ::kill(workers[0], SIGKILL);
  EXPECT_TRUE(running.wait_for_output("the connection or its worker was ended; trying again in "));
  expect_done(running, expected);
}

TEST_F(Hosts, HostWithoutTheProgram_IsNamedWithTwoCommands_WhichInstallRemoteRuns) {
  // A repository whose launcher "builds" by linking the program.
  const auto source = program_ / "source";
  std::filesystem::create_directories(source);
  test::write_file(source / "thinpipe",
                   "#!/bin/sh\ncd \"${0%/*}\" && mkdir -p build/release/apps && ln -s " THINPIPE_PROGRAM
                   " build/release/apps/thinpipe\n");
  std::filesystem::permissions(source / "thinpipe", std::filesystem::perms::owner_all);
  const auto [status, said] = test::output_of(fmt::format(
      "cd {} && git init -q 2>&1 && git add thinpipe 2>&1 && git -c user.name=t -c user.email=t@example.org "
      "commit -q -m made 2>&1",
      source.string()));
  if (status != 0) GTEST_SKIP() << "no git here: " << said;
  test::expect_refused(
      program_, on_hosts(),
      {"box-a, box-b: thinpipe is not installed there", " thinpipe` and `thinpipe/thinpipe --version`"});
  test::expect_refused(program_, on_hosts({}, {"--install-from", (program_ / "nothing").string()}),
                       {"box-a: cannot install thinpipe: fatal: ", "nothing"});
  // Both are one machine, so one at a time.
  RunningProgram running(program_, {"train", "small.toml", "--run-dir", run_.string(), "--set", "pipeline.stages=1",
                                    "--host", "box-a", "--listen", "127.0.0.1", "--install-from", source.string()});
  expect_done(running, [&] {
    const auto run = program_ / "local";
    EXPECT_EQ(program_.run(test::small_run(run, {"pipeline.stages=1"})).exit_code, 0);
    return test::result_of(run);
  }());
  EXPECT_NE(running.out().find("installing thinpipe on box-a"), std::string::npos) << running.out();
}

TEST_F(Hosts, HostThatCannotBeReached_IsOneLineWithTheReasonOfSsh) {
  server_.install_program();
  test::write_file(program_ / "hosts.txt", "box-a\nclosed\n");
  test::expect_refused(program_, on_hosts(),
                       {"thinpipe: closed: ssh: connect to host 127.0.0.1", "Connection refused"});
  // The server has no such user, and nobody could type a password.
  test::write_file(program_ / "hosts.txt", "box-a\nnosuchuser@box-b\n");
  test::expect_refused(program_, on_hosts(), {"nosuchuser@box-b: ", "Permission denied"});
}

TEST_F(Hosts, WrongHostsOrOptions_AreRefused) {
  test::write_file(program_ / "hosts.txt", "box-a\nbox-b slots=two\n");
  test::expect_refused(program_, on_hosts(), {"hosts.txt:2: slots=two: needs a number from 1 to 256"});
  test::expect_refused(program_, {"train", "small.toml", "--host", "box-a"},
                       {"the hosts have 1 slot(s), but the run has 4 stages", "--set pipeline.stages=1"});
  test::expect_refused(program_, {"train", "small.toml", "--host", "-oProxyCommand=x"}, {"--host: ", "is not a host"});
  test::expect_refused(program_, {"train", "--host", "a", "--in-process"}, {"--in-process"});
  test::expect_refused(program_, {"train", "--hosts", "hosts.txt", "--host", "a"}, {"give one of them"});
  test::expect_refused(program_, {"train", "--slurm"}, {"this is not a Slurm job"});
  test::expect_refused(program_, {"train", "--install-remote"}, {"name them with --hosts or --host"});
  test::expect_refused(program_, {"train", "--host", "a", "--announce", "b"}, {"its port is missing"});
  test::expect_refused(program_, {"join", "thinpipe-v1-x", "--leave-with-input"},
                       {"needs the invite on standard input"});
}

}  // namespace
}  // namespace thinpipe
