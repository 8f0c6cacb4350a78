// Two or more machines, each in its own network namespace, on a small internet: a coordinator that can be dialled and
// workers that can, or that are behind routers that let nobody in. They join by invite, train to the end, and the
// result equals that of a run on one machine, bit for bit.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "support/test_internet.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using test::Arguments;
using test::RunningProgram;
using test::TestInternet;

// Whether ::1 can be bound; a kernel with IPv6 may have no such address.
bool has_ipv6_loopback() {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  sockaddr_in6 place{};
  place.sin6_family = AF_INET6;
  place.sin6_addr = in6addr_loopback;
  const bool can = ::bind(socket, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0;
  ::close(socket);
  return can;
}

// While this object lives, started programs have a clock that is off by `off`.
class WrongClock {
 public:
  explicit WrongClock(std::chrono::seconds off) {
    ::setenv("LD_PRELOAD", THINPIPE_WRONG_CLOCK, 1);
    ::setenv("WRONG_CLOCK_S", fmt::format("{}", off.count()).c_str(), 1);
  }
  ~WrongClock() {
    ::unsetenv("LD_PRELOAD");
    ::unsetenv("WRONG_CLOCK_S");
  }
  WrongClock(const WrongClock&) = delete;
  WrongClock& operator=(const WrongClock&) = delete;
};

class Joining : public ::testing::Test {
 protected:
  void SetUp() override { test::write_small_run(program_); }

  static Arguments with(Arguments arguments, const Arguments& settings) {
    for (const auto& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }

  // The same run on one machine.
  test::RunResult local_result(const Arguments& settings) {
    const auto run = program_ / "local";
    const auto outcome = program_.run(test::small_run(run, settings));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << test::logs_of(run);
    return test::result_of(run);
  }

  // Ends when the run is over.
  std::unique_ptr<RunningProgram> serve(const Arguments& arguments, const std::string& network) {
    auto running =
        std::make_unique<RunningProgram>(program_, arguments, fs::path(), test::RunOptions{.network = network});
    EXPECT_TRUE(running->wait_for_output("to let machines join")) << running->err();
    return running;
  }

  std::string invite(const fs::path& run, const std::string& network, const Arguments& more = {}) {
    Arguments arguments{"invite", run.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto outcome = program_.run(arguments, {.network = network});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out.substr(0, outcome.out.find('\n'));
  }

  // A new machine with its own network and data directory.
  std::unique_ptr<RunningProgram> join(const std::string& name, const std::string& text, const std::string& network,
                                       const Arguments& more = {}) {
    Arguments arguments{"join", text, "--name", name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<RunningProgram>(program_, arguments, program_ / (name + "-data"),
                                            test::RunOptions{.network = network});
  }

  // Waits until it is in the run, so that stages are assigned in order of joining.
  static void wait_until_in(RunningProgram& serve, const std::string& name) {
    ASSERT_TRUE(serve.wait_until(name + " takes a stage", [&] {
      return serve.err().find("assigned: " + name + "-") != std::string::npos || !serve.running();
    }));
  }

  static bool says(RunningProgram& running, const std::string& text) {
    return running.wait_until(fmt::format("it says '{}'", text),
                              [&] { return running.err().find(text) != std::string::npos; });
  }

  static void expect_ends_well(RunningProgram& running) {
    const auto outcome = running.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }

  test::Program program_;
};

constexpr const char* kTwoStages = "pipeline.stages=2";
// A step takes at least 1/8 s, so that the tests can act in the middle of a run.
constexpr const char* kSlowLinks = "link.delay=60ms";

TEST_F(Joining, EveryPairOfOpenAndHiddenMachinesTrainsToTheSameBits) {
  TestInternet internet;
  const auto coordinator = internet.add_open_host("c");
  const TestInternet::Host open[] = {internet.add_open_host("o1"), internet.add_open_host("o2")};
  const TestInternet::Host hidden[] = {internet.add_hidden_host("h1"), internet.add_hidden_host("h2")};
  if (!internet.why_not().empty()) GTEST_SKIP() << internet.why_not();
  const auto expected = local_result({kTwoStages});
  struct Case {
    bool lower_hidden, upper_hidden;
    const char* path;
  };
  const Case cases[] = {{false, false, "stages 0 and 1: direct, stage 0 dials 10.77.0."},
                        {true, false, "stages 0 and 1: direct, stage 0 dials 10.77.0."},
                        {false, true, "stages 0 and 1: direct, stage 1 dials 10.77.0."},
                        {true, true, "stages 0 and 1: relayed"}};
  int number = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(one.path);
    const auto run = program_ / fmt::format("run-{}", ++number);
    auto serving = serve(with({"serve", "small.toml", "--run-dir", run.string()}, {kTwoStages}), coordinator.network);
    const auto text = invite(run, coordinator.network, {"--uses", "2"});
    const auto a = fmt::format("a{}", number), b = fmt::format("b{}", number);
    auto lower = join(a, text, (one.lower_hidden ? hidden : open)[0].network);
    wait_until_in(*serving, a);
    auto upper = join(b, text, (one.upper_hidden ? hidden : open)[1].network);
    for (auto* running : {lower.get(), upper.get(), serving.get()}) expect_ends_well(*running);
    EXPECT_NE(serving->err().find(one.path), std::string::npos) << serving->err();
    test::expect_same_result(run, expected);
  }
}

TEST_F(Joining, RelayedRun_AfterTheCoordinatorIsKilled_Continues) {
  TestInternet internet;
  const auto coordinator = internet.add_open_host("c");
  const auto one = internet.add_hidden_host("h1"), other = internet.add_hidden_host("h2");
  if (!internet.why_not().empty()) GTEST_SKIP() << internet.why_not();
  Arguments settings{kTwoStages, "train.steps=40"};
  const auto expected = local_result(settings);
  settings.push_back(kSlowLinks);
  const auto run = program_ / "run";
  auto serving = serve(with({"serve", "small.toml", "--run-dir", run.string()}, settings), coordinator.network);
  const auto text = invite(run, coordinator.network, {"--uses", "2"});
  auto lower = join("a", text, one.network);
  wait_until_in(*serving, "a");
  auto upper = join("b", text, other.network);
  ASSERT_TRUE(serving->wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 7; }));
  EXPECT_NE(serving->err().find("stages 0 and 1: relayed"), std::string::npos) << serving->err();
  serving->signal(SIGKILL);
  EXPECT_EQ(serving->wait().exit_code, -1);
  EXPECT_LT(test::metrics_lines(run), 40) << "too late to be a test";
  serving = serve({"serve", "--run", run.string()}, coordinator.network);
  for (auto* running : {lower.get(), upper.get(), serving.get()}) expect_ends_well(*running);
  EXPECT_NE(serving->err().find("stages 0 and 1: relayed"), std::string::npos) << serving->err();
  test::expect_same_result(run, expected);
}

TEST_F(Joining, ClocksDaysOff_DoNotPreventJoining) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer must be the first library, and so must the wrong clock";
  using std::chrono::hours;
  Arguments settings{kTwoStages, "train.steps=40"};
  const auto expected = local_result(settings);
  settings.push_back(kSlowLinks);
  const auto run = program_ / "run";
  const Arguments local{"--listen", "127.0.0.1"};
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  const auto text = invite(run, "", {"--uses", "2"});
  const auto join_with_clock = [&](const std::string& name, std::chrono::seconds off) {
    const WrongClock wrong(off);
    return join(name, text, "", local);
  };
  auto ahead = join_with_clock("ahead", hours(24 * 400));
  wait_until_in(*serving, "ahead");
  auto behind = join_with_clock("behind", -hours(24 * 400));
  ASSERT_TRUE(serving->wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 7; }));
  serving->signal(SIGKILL);
  EXPECT_EQ(serving->wait().exit_code, -1);
  EXPECT_LT(test::metrics_lines(run), 40) << "too late to be a test";
  {
    const WrongClock wrong(-hours(25));
    serving = serve({"serve", "--run", run.string(), "--listen", "127.0.0.1"}, "");
  }
  for (auto* running : {ahead.get(), behind.get(), serving.get()}) expect_ends_well(*running);
  EXPECT_NE(behind->out().find("warning  clock"), std::string::npos) << behind->out();
  test::expect_same_result(run, expected);
}

TEST_F(Joining, NothingThatPassesTheRelayCanBeRead) {
  TestInternet internet;
  const auto coordinator = internet.add_open_host("c");
  const auto one = internet.add_hidden_host("h1"), other = internet.add_hidden_host("h2");
  if (!internet.why_not().empty()) GTEST_SKIP() << internet.why_not();
  const auto capture = program_ / "relay.pcap";
  const auto command = fmt::format("ip netns exec {} tcpdump -q -U -i wan -w {} tcp 2>/dev/null & echo $!",
                                   coordinator.network, capture.string());
  if (std::system("command -v tcpdump >/dev/null") != 0) GTEST_SKIP() << "tcpdump is not installed";
  std::FILE* shell = ::popen(command.c_str(), "r");
  ASSERT_NE(shell, nullptr);
  pid_t tcpdump = 0;
  ASSERT_EQ(std::fscanf(shell, "%d", &tcpdump), 1);
  ::pclose(shell);
  const std::unique_ptr<pid_t, void (*)(const pid_t*)> ended(&tcpdump, [](const pid_t* pid) { ::kill(*pid, SIGINT); });
  const auto run = program_ / "run";
  auto serving = serve(with({"serve", "small.toml", "--run-dir", run.string()}, {kTwoStages}), coordinator.network);
  ASSERT_TRUE(serving->wait_until("the capture has begun", [&] { return fs::exists(capture); }));
  const auto text = invite(run, coordinator.network, {"--uses", "2"});
  auto lower = join("a", text, one.network);
  wait_until_in(*serving, "a");
  auto upper = join("b", text, other.network);
  for (auto* running : {lower.get(), upper.get(), serving.get()}) expect_ends_well(*running);
  // tcpdump may write late.
  EXPECT_TRUE(serving->wait_until("the capture holds the run", [&] { return fs::file_size(capture) > 200'000; }));
  const auto seen = read_file(capture).take();
  // A window's ids cross the cut with the bytes of the shard, so the test looks for any 32 bytes of it.
  std::string shard;
  for (const auto& entry : fs::recursive_directory_iterator(program_.data() / "prepared")) {
    if (entry.path().filename().string().find("train") != std::string::npos && entry.path().extension() == ".bin") {
      shard = read_file(entry.path()).take().substr(1024);
    }
  }
  ASSERT_GT(shard.size(), 4096U);
  size_t found = 0;
  for (size_t at = 0; at + 32 <= shard.size(); at += 32) {
    if (seen.find(shard.substr(at, 32)) != std::string::npos) ++found;
  }
  EXPECT_EQ(found, 0U);
  for (const char* word : {"model.", "microbatch", "block-000", "param."}) {
    EXPECT_EQ(seen.find(word), std::string::npos) << word << " went over the line in plain text";
  }
}

TEST_F(Joining, WorksOverIPv6) {
  const auto run = program_ / "run";
  if (!has_ipv6_loopback()) GTEST_SKIP() << "no IPv6 here";
  auto serving = serve(with({"serve", "small.toml", "--listen", "::1", "--run-dir", run.string()}, {kTwoStages}), "");
  const auto text = invite(run, "", {"--uses", "2"});
  auto a = join("a", text, "", {"--listen", "::1"});
  auto b = join("b", text, "", {"--listen", "::1"});
  for (auto* running : {a.get(), b.get(), serving.get()}) expect_ends_well(*running);
  EXPECT_NE(serving->err().find("dials [::1]:"), std::string::npos) << serving->err();
}

TEST_F(Joining, LeavingOrKickedMachines_DoNotChangeTheResult) {
  Arguments settings{kTwoStages, "train.steps=60"};
  const auto expected = local_result(settings);
  settings.push_back(kSlowLinks);
  const auto run = program_ / "run";
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  const auto text = invite(run, "", {"--uses", "9"});
  const Arguments local{"--listen", "127.0.0.1"};
  auto a = join("a", text, "", local);
  wait_until_in(*serving, "a");
  auto b = join("b", text, "", local);
  ASSERT_TRUE(serving->wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 3; }));
  // One leaves properly; another joins.
  b->signal(SIGINT);
  expect_ends_well(*b);
  EXPECT_NE(b->out().find("left the run;"), std::string::npos) << b->out();
  EXPECT_TRUE(says(*serving, "left: stage 1 (b-"));
  EXPECT_EQ(serving->err().find("rollback"), std::string::npos) << serving->err();
  auto c = join("c", text, "", local);
  wait_until_in(*serving, "c");
  const auto lines = test::metrics_lines(run);
  ASSERT_TRUE(serving->wait_until("it goes on", [&] { return test::metrics_lines(run) > lines; }));
  // One is kicked and may not come back.
  const auto from = serving->err().find("takes stage 1", serving->err().rfind("assigned: c-"));
  const auto begin = serving->err().rfind("c-", from);
  const auto peer = serving->err().substr(begin, serving->err().find(' ', begin) - begin);
  {
    const test::Held held(a->pid());  // keeps it alive until then
    EXPECT_EQ(program_.run({"kick", peer, run.string()}).exit_code, 0);
  }
  const auto end = c->wait();
  EXPECT_EQ(end.exit_code, 2) << end.out;
  test::expect_one_line({end.exit_code, "", end.err.substr(end.err.rfind("thinpipe: "))}, {"removed from this run"});
  const auto again = join("c", text, "", local)->wait();
  EXPECT_EQ(again.exit_code, 2) << again.out;
  EXPECT_NE(again.err.find("removed from this run"), std::string::npos) << again.err;
  auto d = join("d", text, "", local);
  for (auto* running : {a.get(), d.get(), serving.get()}) expect_ends_well(*running);
  test::expect_same_result(run, expected);
}

TEST_F(Joining, CoordinatorThatDies_IsNoticedAndCtrlCLeaves) {
  const auto run = program_ / "run";
  const Arguments settings{kTwoStages, "train.steps=100000", kSlowLinks};
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  const auto text = invite(run, "", {"--uses", "2"});
  const Arguments local{"--listen", "127.0.0.1"};
  auto upper = join("zoe", text, "", local);
  wait_until_in(*serving, "zoe");
  // One stage has nobody yet, and the list is in the order of the stages.
  const auto waiting = program_.run({"status", run.string()}).out;
  EXPECT_LT(waiting.find("stage 0    zoe-"), waiting.find("stage 1    nobody")) << waiting;
  EXPECT_NE(waiting.find("stage 1    nobody"), std::string::npos) << waiting;
  auto lower = join("ann", text, "", local);
  ASSERT_TRUE(serving->wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 3; }));
  const auto status = program_.run({"status", run.string()}).out;
  EXPECT_LT(status.find("stage 0    zoe-"), status.find("stage 1    ann-")) << status;
  EXPECT_EQ(serving->err().find("refused"), std::string::npos)
      << "an ordinary join is no event of that kind: " << serving->err();
  EXPECT_TRUE(upper->wait_for_output("a subspace model, d = 32, 4 blocks in 2 stages; 100000 steps"));
  serving->signal(SIGKILL);
  serving->wait();
  EXPECT_TRUE(upper->wait_for_output("the coordinator has not answered for "));
  upper->signal(SIGINT);
  expect_ends_well(*upper);
  EXPECT_NE(upper->out().find("this machine took part in "), std::string::npos) << upper->out();
  // Who comes back is told so, and the same about the run as at first.
  serving = serve({"serve", "--run", run.string()}, "");
  upper = join("zoe", text, "", local);
  EXPECT_TRUE(upper->wait_for_output("back in the run run as zoe-"));
  EXPECT_TRUE(upper->wait_for_output("; this machine held stage 0 and took part in "));
  EXPECT_TRUE(upper->wait_for_output("a subspace model, d = 32, 4 blocks in 2 stages; 100000 steps"));
}

TEST_F(Joining, ServeThatIsStopped_IsWaitedForAndTheRunEndsTheSame) {
  Arguments settings{kTwoStages, "train.steps=40"};
  const auto expected = local_result(settings);
  settings.push_back(kSlowLinks);
  const auto run = program_ / "run";
  const Arguments local{"--listen", "127.0.0.1"};
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  EXPECT_TRUE(serving->wait_for_output("0 of 2 machines are here; for the others: thinpipe invite " + run.string()));
  const auto text = invite(run, "", {"--uses", "2"});
  auto patient = join("patient", text, "", local);
  wait_until_in(*serving, "patient");
  EXPECT_TRUE(patient->wait_for_output("1 of 2 machines are here; the run waits for the others"));
  auto other = join("other", text, "", {"--listen", "127.0.0.1", "--wait", "0"});
  EXPECT_TRUE(serving->wait_for_output("all 2 machines are here"));
  EXPECT_TRUE(serving->wait_for_output("step "));
  ASSERT_TRUE(serving->wait_until("some steps are done", [&] { return test::metrics_lines(run) >= 3; }));
  serving->signal(SIGINT);
  expect_ends_well(*serving);
  EXPECT_NE(serving->out().find("stopping: a checkpoint is written first"), std::string::npos) << serving->out();
  EXPECT_NE(serving->out().find("thinpipe serve --run " + run.string()), std::string::npos) << serving->out();
  EXPECT_LT(test::metrics_lines(run), 40) << "too late to be a test";
  // One was told not to wait.
  expect_ends_well(*other);
  EXPECT_NE(other->out().find("the run has ended: stopped after step"), std::string::npos) << other->out();
  EXPECT_TRUE(says(*patient, "waiting up to 12h00m until the run is served again; ctrl-C leaves"));
  EXPECT_TRUE(patient->wait_for_output("the coordinator has not answered for "));
  serving = serve({"serve", "--run", run.string()}, "");
  EXPECT_TRUE(patient->wait_for_output("the coordinator answers again"));
  other = join("other", text, "", local);
  for (auto* running : {patient.get(), other.get(), serving.get()}) expect_ends_well(*running);
  for (auto* running : {patient.get(), other.get()}) {
    EXPECT_NE(running->out().find("the run has ended: all 40 steps are done"), std::string::npos) << running->out();
  }
  // Steps that were rolled back count, too.
  const std::string part = "this machine took part in ";
  const auto at = patient->out().find(part);
  ASSERT_NE(at, std::string::npos) << patient->out();
  EXPECT_GE(std::stoi(patient->out().substr(at + part.size())), 40) << patient->out();
  EXPECT_NE(serving->out().find("all 40 steps are done; validation loss "), std::string::npos) << serving->out();
  test::expect_same_result(run, expected);
}

TEST_F(Joining, MemberThatWaitsForAStoppedServe_LeavesAtCtrlC) {
  const auto run = program_ / "run";
  const Arguments local{"--listen", "127.0.0.1"};
  auto serving =
      serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, {kTwoStages}), "");
  const auto text = invite(run, "");
  auto waits = join("waits", text, "", local);
  wait_until_in(*serving, "waits");
  serving->signal(SIGINT);
  expect_ends_well(*serving);
  EXPECT_TRUE(says(*waits, "until the run is served again"));
  waits->signal(SIGINT);
  expect_ends_well(*waits);
  EXPECT_NE(waits->out().find("left the run;"), std::string::npos) << waits->out();
  // Another start of it waits, too: the machine knows the run.
  waits = join("waits", text, "", local);
  EXPECT_TRUE(says(*waits, "does not answer; waiting for it"));
  waits->signal(SIGINT);
  expect_ends_well(*waits);
}

TEST_F(Joining, MemberSeesPausesAndFindsTheRunAmongItsOwn) {
  const auto run = program_ / "run";
  const Arguments settings{kTwoStages, "train.steps=100000", kSlowLinks};
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  const auto text = invite(run, "", {"--uses", "2"});
  const Arguments local{"--listen", "127.0.0.1"};
  auto a = join("a", text, "", local), b = join("b", text, "", local);
  EXPECT_TRUE(a->wait_for_output("run run ("));
  EXPECT_TRUE(a->wait_for_output("this machine holds stage "));
  const auto on_its_machine = [&](const Arguments& arguments) {
    return RunningProgram(program_, arguments, program_ / "a-data").wait();
  };
  EXPECT_EQ(program_.run({"pause", run.string()}).exit_code, 0);
  EXPECT_TRUE(a->wait_for_output("the run is paused: "));
  EXPECT_NE(a->out().find("its organiser can continue it"), std::string::npos) << a->out();
  const auto listed = on_its_machine({"runs"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_TRUE(listed.out.starts_with("run (")) << listed.out;
  EXPECT_NE(listed.out.find("/100000  joined as a-"), std::string::npos) << listed.out;
  EXPECT_TRUE(listed.out.ends_with("  takes part\n")) << listed.out;
  const auto id = listed.out.substr(5, 8);
  for (const Arguments& arguments : {Arguments{"status"}, Arguments{"status", id}}) {
    const auto status = on_its_machine(arguments);
    EXPECT_EQ(status.exit_code, 0) << status.err;
    EXPECT_NE(status.out.find("paused"), std::string::npos) << status.out;
    EXPECT_NE(status.out.find("stage 1    "), std::string::npos) << status.out;
  }
  const auto json = on_its_machine({"status", "--json"}).out;
  EXPECT_EQ(nlohmann::json::parse(json.substr(json.find("\n{") + 1)).at("paused"), true) << json;
  // What only the organiser may do stays refused, and a name that nobody gave is not found.
  EXPECT_EQ(on_its_machine({"resume", id}).exit_code, 2);
  test::expect_one_line(on_its_machine({"status", "walk"}), {"there is no run 'walk'"});
  EXPECT_EQ(program_.run({"resume", run.string()}).exit_code, 0);
  EXPECT_TRUE(a->wait_for_output("the run goes on"));
  serving->signal(SIGKILL);
  (void)serving->wait();
  test::expect_one_line({2, "", on_its_machine({"status"}).err}, {"its coordinator does not answer"});
  a->signal(SIGINT);
  expect_ends_well(*a);
  EXPECT_TRUE(on_its_machine({"runs"}).out.ends_with("  left the run\n"));
}

// The organiser's machine holds a stage too: two machines, two commands.
TEST_F(Joining, ServeThatJoins_HoldsAStageWhateverIsKilled) {
  Arguments settings{kTwoStages, "train.steps=80"};
  const auto expected = local_result(settings);
  settings.push_back(kSlowLinks);
  const auto run = program_ / "run";
  const Arguments local{"--listen", "127.0.0.1"};
  const auto own_machine = [](const RunningProgram& serve) {
    for (const auto& info : test::all_processes()) {
      if (info.parent == serve.pid() && info.state != 'Z' && info.arguments.size() > 1 && info.arguments[1] == "join")
        return info.pid;
    }
    return pid_t{-1};
  };
  auto serving =
      serve(with({"serve", "small.toml", "--join", "--listen", "127.0.0.1", "--run-dir", run.string()}, settings), "");
  EXPECT_TRUE(serving->wait_for_output("1 of 2 machines are here"));
  auto other = join("other", invite(run, ""), "", local);
  const auto wait_for_lines = [&](int64_t lines) {
    ASSERT_TRUE(serving->wait_until("steps are done", [&] { return test::metrics_lines(run) >= lines; }));
  };
  wait_for_lines(3);
  const pid_t killed = own_machine(*serving);
  ASSERT_GT(killed, 0);
  ::kill(killed, SIGKILL);
  EXPECT_TRUE(serving->wait_for_output("this machine's stage was ended by signal 9 (Killed); starting it again"));
  wait_for_lines(test::metrics_lines(run) + 2);
  const pid_t orphan = own_machine(*serving);
  ASSERT_GT(orphan, 0);
  EXPECT_NE(orphan, killed);
  serving->signal(SIGKILL);
  (void)serving->wait();
  EXPECT_TRUE(other->wait_until("nothing of it is left", [&] {
    const auto all = test::all_processes();
    return std::none_of(all.begin(), all.end(),
                        [&](const auto& info) { return info.pid == orphan && info.state != 'Z'; });
  }));
  EXPECT_LT(test::metrics_lines(run), 80) << "too late to be a test";
  serving = serve({"serve", "--join", "--run", run.string(), "--listen", "127.0.0.1"}, "");
  wait_for_lines(test::metrics_lines(run) + 1);
  serving->signal(SIGINT);
  expect_ends_well(*serving);
  EXPECT_NE(serving->out().find(run.string() + " --join"), std::string::npos) << serving->out();
  EXPECT_EQ(own_machine(*serving), -1);
  EXPECT_LT(test::metrics_lines(run), 80) << "too late to be a test";
  serving = serve({"serve", "--join", "--run", run.string(), "--listen", "127.0.0.1"}, "");
  for (auto* running : {other.get(), serving.get()}) expect_ends_well(*running);
  test::expect_same_result(run, expected);
}

TEST_F(Joining, RefusesInvalidInvites) {
  const auto run = program_ / "run";
  auto serving =
      serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()}, {kTwoStages}), "");
  const auto once = invite(run, "");
  const Arguments local{"--listen", "127.0.0.1"};
  const auto refused = [&](const std::string& name, const std::string& text, const std::string& reason) {
    const auto outcome = join(name, text, "", local)->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  };
  auto first = join("first", once, "", local);
  wait_until_in(*serving, "first");
  refused("second", once, "used");
  refused("third", once.substr(0, once.size() / 2), "cut off or mistyped");
  refused("fourth", "no invite at all", "invite");
  const auto revoked = invite(run, "");
  const auto listed = program_.run({"invite", "--list", run.string()}).out;
  const auto id = listed.substr(listed.rfind('\n', listed.size() - 2) + 1, 8);
  EXPECT_EQ(program_.run({"invite", "--revoke", id, run.string()}).exit_code, 0);
  refused("fifth", revoked, "revoked");
  EXPECT_TRUE(says(*serving, "refused: Join from"));
  // --check does not cost a use, and an enrolled machine may join again.
  const auto open = invite(run, "");
  const auto look = join("look", open, "", {"--check"})->wait();
  EXPECT_EQ(look.exit_code, 0) << look.err;
  EXPECT_NE(look.out.find("memory"), std::string::npos) << look.out;
  // Its certificate is gone, as after a long absence: its key is enough.
  first->signal(SIGKILL);
  EXPECT_EQ(first->wait().exit_code, -1);
  fs::remove(fs::directory_iterator(program_ / "first-data" / "joined")->path() / "identity" / "identity.pem");
  first = join("first", once, "", local);
  auto second = join("second", open, "", local);
  for (auto* running : {first.get(), second.get(), serving.get()}) expect_ends_well(*running);
}

TEST_F(Joining, MachinesOfDifferentSpeed_GetMatchingCuts) {
  const auto run = program_ / "run";
  auto serving = serve(with({"serve", "small.toml", "--listen", "127.0.0.1", "--run-dir", run.string()},
                            {kTwoStages, "pipeline.cuts=auto"}),
                       "");
  const auto text = invite(run, "", {"--uses", "2"});
  const Arguments local{"--listen", "127.0.0.1"};
  auto a = join("a", text, "", local);
  auto b = join("b", text, "", local);
  for (auto* running : {a.get(), b.get(), serving.get()}) expect_ends_well(*running);
  EXPECT_NE(serving->err().find("placed: "), std::string::npos) << serving->err();
  const auto config = read_file(run / "config.toml").take();
  EXPECT_NE(config.find("cuts = ["), std::string::npos) << config;
}

}  // namespace
}  // namespace thinpipe
