// bench trust: attacks a run of our own as strangers and members could, and says what it costs. The run is real:
// `thinpipe serve`, two stages and a spare on loopback. Every loop here is bounded.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/work_line.h"
#include "bench/bench.h"
#include "bench/open_run.h"
#include "bench/raw_join.h"
#include "config/config_file.h"
#include "net/addresses.h"
#include "net/invite.h"
#include "run/core/protocol.h"
#include "run/join.h"

namespace thinpipe {
namespace {

constexpr int kIdleConnections = 2000, kUnfinishedJoins = 1000, kCallsPerJoiner = 8;
constexpr int kAttacks = 4, kRounds = 5, kNoticed = 3, kBadMembers = 8;
constexpr size_t kJoinBytes = 160 << 10;
constexpr auto kShort = std::chrono::milliseconds(20);

// Small enough that two cores have time for the attackers too, large enough that a step is not all overhead.
RunConfig trust_config() {
  return parse_config(
      "[model]\nmode = \"subspace\"\nd = 64\nblocks = 4\nheads = 2\n[train]\nsteps = 1000000\nseq_len = 64\n"
      "microbatch = 2\nmicrobatches = 4\nthreads = 1\neval_every = 0\nsample_every = 0\n[pipeline]\nstages = "
      "2\n[subspace]\nrank = 8\n"
      "[checkpoint]\nevery = 20\n[cluster]\nlease_s = 3\nmax_failures = 3\n",
      "the run of bench trust");
}

double resident_mb(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

// Seconds of processor time that a process has used.
double processor_seconds(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 12; ++i) fields >> skipped;  // the state, and eleven numbers
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// A socket that says nothing. -1 if there is none left.
int idle_connection(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  ::close(socket);
  return -1;
}

// Attacks until its end. Its first second is over when the constructor returns.
class Attacker {
 public:
  explicit Attacker(const std::function<void(const std::stop_token&)>& attack)
      : thread_([&attack](const std::stop_token& stop) { attack(stop); }) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }

 private:
  std::jthread thread_;
};

// The bench as a person with the run's invite, and the attacks.
class TrustBench {
 public:
  explicit TrustBench(const BenchTrustOptions& options)
      : options_(options), run_(options.program, "trust", trust_config()) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }

  void begin() {
    run_.serve(1000);
    for (const char* name : {"first", "second", "spare"}) run_.join(name);
    const auto invite = parse_invite(run_.invite()).take();
    port_ = parse_host_port(invite.addresses.front()).take().port;
    go_on(30);
  }

  // Waits until that many more steps are committed: the run lives.
  void go_on(int64_t steps) {
    const int64_t from = run_.status().step();
    run_.wait_until("steps are committed", [&] { return run_.status().step() >= from + steps; });
  }

  // ---- floods ----

  // Steps per second.
  double speed() {
    const auto from = run_.status().step();
    const auto begin = clock_.now();
    std::this_thread::sleep_for(std::chrono::seconds(options_.seconds));
    return static_cast<double>(run_.status().step() - from) / seconds(clock_.now() - begin);
  }

  // How many cores a process is using.
  double cores_of(pid_t pid) {
    const double from = processor_seconds(pid);
    const auto begin = clock_.now();
    std::this_thread::sleep_for(std::chrono::seconds(options_.seconds));
    return (processor_seconds(pid) - from) / seconds(clock_.now() - begin);
  }

  using Attack = std::function<void(const std::stop_token&)>;
  struct Cost {
    double slowdown = 0;           // the step's time under the attack over its time without
    double coordinator_cores = 0;  // what the attack makes the coordinator use; measured while the run is paused
    double attacker_cores = 0;     // what the attacker uses of this machine: it has none of its own here
  };
  Cost cost_of(const char* name, const Attack& attack) {
    Cost cost;
    const double memory = resident_mb(run_.coordinator());
    double grown = 0;
    std::vector<double> ratios;
    double before = speed();
    for (int round = 0; round < kRounds; ++round) {
      double during = 0;
      {
        const Attacker attacker(attack);
        const double used = processor_seconds(::getpid());
        const auto begin = clock_.now();
        during = speed();
        cost.attacker_cores += (processor_seconds(::getpid()) - used) / seconds(clock_.now() - begin) / kRounds;
        grown = std::max(grown, resident_mb(run_.coordinator()) - memory);
      }
      const double after = speed();
      ratios.push_back(during > 0 ? (before + after) / 2 / during : std::numeric_limits<double>::infinity());
      before = after;
    }
    std::sort(ratios.begin(), ratios.end());
    cost.slowdown = ratios[ratios.size() / 2];
    cost.coordinator_cores = coordinator_cores(attack);
    most_memory_mb_ = std::max(most_memory_mb_, grown);
    tell(fmt::format(
        "{}: a step takes {:.2f} times as long ({:.2f} to {:.2f}); costs the coordinator {:.3f} cores and "
        "{:.1f} MB; the attacker uses {:.3f} cores of this machine",
        name, cost.slowdown, ratios.front(), ratios.back(), cost.coordinator_cores, grown, cost.attacker_cores));
    line_.add();
    return cost;
  }

  // Steps cost the coordinator time, too, so the run is paused.
  double coordinator_cores(const Attack& attack) {
    run_.control(control::ControlRequest::PAUSE);
    run_.wait_until("the run is paused", [&] { return run_.status().phase() == "paused"; });
    const double without = cores_of(run_.coordinator());
    double with = 0;
    {
      const Attacker attacker(attack);
      with = cores_of(run_.coordinator());
    }
    run_.control(control::ControlRequest::RESUME);
    return std::max(0.0, with - without);
  }

  // Holds 2000 connections on which nothing is said.
  void idle(const std::stop_token& stop) const {
    std::vector<int> sockets;
    for (int i = 0; i < kIdleConnections && !stop.stop_requested(); ++i) {
      if (const int socket = idle_connection(port_); socket >= 0) sockets.push_back(socket);
    }
    while (!stop.stop_requested()) std::this_thread::sleep_for(kShort);
    for (const int socket : sockets) ::close(socket);
  }

  // Begins 1000 Joins and sends all but their last bytes.
  void unfinished_joins(const std::stop_token& stop) const {
    std::vector<std::unique_ptr<RawJoin>> joiners;
    for (int i = 0; i < kUnfinishedJoins / kCallsPerJoiner && !stop.stop_requested(); ++i) {
      joiners.push_back(std::make_unique<RawJoin>(port_, kCallsPerJoiner, kJoinBytes));
      for (auto& one : joiners) (void)one->pump();
    }
    while (!stop.stop_requested()) {
      for (auto& one : joiners) (void)one->pump();
      std::this_thread::sleep_for(kShort);
    }
  }

  // A member that calls as often as it can.
  void calls(const std::stop_token& stop) {
    CoordinatorLine line(member("caller"));
    const auto stub = line.stub();
    while (!stop.stop_requested()) {
      grpc::ClientContext context, second;
      control::RunStatus status;
      control::RunDescription run;
      (void)stub->GetStatus(&context, {}, &status);
      (void)stub->GetRun(&second, {}, &run);
    }
  }

  // A member that sends heartbeats as fast as it can.
  void messages(const std::stop_token& stop) {
    CoordinatorLine line(member("talker"));
    grpc::ClientContext context;
    const auto stream = line.stub()->Attend(&context);
    control::FromWorker beat;
    beat.mutable_heartbeat();
    const std::stop_callback hang_up(stop, [&] { context.TryCancel(); });  // a throttled Write takes minutes
    stream->Write(hello("talker"));
    while (!stop.stop_requested() && stream->Write(beat)) continue;
    context.TryCancel();
    (void)stream->Finish();
  }

  double most_memory_mb() const { return most_memory_mb_; }

  // ---- frozen processes ----

  // Seconds from SIGSTOP of a stage's holder to the event that names it; the longest of some tries.
  double time_notice() {
    double longest = 0;
    for (int i = 0; i < kNoticed; ++i) {
      const auto before = run_.status(last_event());
      const auto begin = clock_.now();
      ::kill(run_.pid(holder(before)), SIGSTOP);
      run_.wait_until("the frozen worker is noticed", [&] { return saw("silent", before); });
      longest = std::max(longest, seconds(clock_.now() - begin));
      ::kill(run_.pid(holder(before)), SIGCONT);
      go_on(60);
      line_.add();
    }
    tell(fmt::format("a frozen worker is noticed after {:.2f} s", longest));
    return longest;
  }

  // Freezes the coordinator for longer than the lease. Returns how many committed steps were lost in all.
  int64_t freeze_coordinator() {
    int64_t lost = 0;
    for (int64_t i = 0; i < options_.tries; ++i) {
      const auto before = run_.status(last_event());
      ::kill(run_.coordinator(), SIGSTOP);
      std::this_thread::sleep_for(std::chrono::seconds(run_.config().cluster.lease_s + 1));
      ::kill(run_.coordinator(), SIGCONT);
      const auto after = run_.status(last_of(before));
      lost += std::max<int64_t>(0, before.step() - after.step());
      for (int turn = 0; turn < 100; ++turn) {
        const auto now = run_.status(last_of(before));
        lost += std::max<int64_t>(0, before.step() - now.step());
        if (now.step() > before.step() + 5) break;
        std::this_thread::sleep_for(kShort);
      }
      go_on(5);
      line_.add();
    }
    tell(fmt::format("{} freezes of the coordinator, each longer than the lease: {} committed steps lost",
                     options_.tries, lost));
    return lost;
  }

  // ---- bad members ----

  // Each spoils what it can for some seconds. Returns how many runs it ended: the run has to go on afterwards.
  void try_member(const char* name, const std::function<void()>& spoil) {
    ++tried_;
    spoil();
    bool lives = true;
    try {
      go_on(3);
    } catch (const UserError& error) {
      lives = false;
      tell(fmt::format("{}: {}", name, error.what()));
    }
    ended_ += lives && run_.is_running("serve") ? 0 : 1;
    tell(fmt::format("bad member {}: the run {}", name, lives ? "goes on" : "has ended"));
    line_.add();
  }
  int64_t tried() const { return tried_; }
  int64_t ended() const { return ended_; }

  // Attends as a spare, says these messages again and again, and comes back when it is sent away.
  void say_often(const std::string& name, const std::vector<control::FromWorker>& messages, int times) {
    CoordinatorLine line(member(name));
    for (int i = 0; i < times; ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
      const auto stream = line.stub()->Attend(&context);
      bool open = stream->Write(hello(name));
      for (const auto& message : messages) open = open && stream->Write(message);
      context.TryCancel();
      (void)stream->Finish();
    }
  }

  // Takes the last stage when its honest holder is gone, and answers every order with this.
  void hold_and_answer(const std::string& name,
                       const std::function<control::FromWorker(const control::ToWorker&)>& answer) {
    const auto honest = holder(run_.status());
    run_.kill("spare");
    run_.kill(honest);
    CoordinatorLine line(member(name));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto stream = line.stub()->Attend(&context);
    stream->Write(hello(name));
    control::ToWorker told;
    while (stream->Read(&told) && !told.has_refuse()) {
      if (told.has_probe()) {
        control::FromWorker probed;
        probed.mutable_probed()->set_incarnation(told.probe().incarnation());
        probed.mutable_probed()->set_address(told.probe().addresses(0));
        stream->Write(probed);
      } else {
        auto said = answer(told);
        said.set_revision(told.revision());
        stream->Write(said);
      }
    }
    context.TryCancel();
    (void)stream->Finish();
    run_.join(honest);
    run_.join("spare");
  }

  void bad_calls(const std::string& name) {
    CoordinatorLine line(member(name));
    const auto stub = line.stub();
    for (int i = 0; i < 20; ++i) {
      grpc::ClientContext control_context, put_context, get_context, windows_context;
      control::ControlRequest stop;
      stop.set_what(control::ControlRequest::STOP);
      control::ControlReply reply;
      (void)stub->Control(&control_context, stop, &reply);
      control::FileTaken taken;
      const auto put = stub->PutFile(&put_context, &taken);
      control::FilePart part;
      part.set_run(parse_invite(run_.invite()).take().run);
      part.mutable_file()->set_unit("block-000");
      part.mutable_file()->set_bytes(uint64_t{1} << 62);
      put->Write(part);
      put->WritesDone();
      (void)put->Finish();
      control::FileRequest file;
      file.mutable_file()->set_unit("block-000");
      (void)stub->GetFile(&get_context, file)->Finish();
      control::Windows windows;
      (void)stub->GetWindows(&windows_context, {}, &windows);
    }
  }

  static control::FromWorker trouble(uint64_t epoch, bool fatal) {
    control::FromWorker message;
    message.mutable_trouble()->set_epoch(epoch);
    message.mutable_trouble()->set_reason("bench trust");
    message.mutable_trouble()->set_fatal(fatal);
    message.mutable_trouble()->set_from_previous(true);
    message.mutable_trouble()->set_from_next(true);
    return message;
  }

  static void tell(const std::string& text) {
    above_live_line([&] {
      fmt::print("{}\n", text);
      std::fflush(stdout);
    });
  }

 private:
  static control::FromWorker hello(const std::string& name) {
    control::FromWorker message;
    auto& hello = *message.mutable_hello();
    hello.set_protocol(kControlProtocol);
    hello.set_peer(peers().at(name));
    hello.set_incarnation(name);
    hello.add_data_addresses("127.0.0.1:9");
    return message;
  }
  static std::map<std::string, std::string>& peers() {
    static std::map<std::string, std::string> known;
    return known;
  }

  // Joins the run under that name, without a worker.
  CoordinatorAccess member(const std::string& name) {
    const auto own = data_dir();
    ::setenv("THINPIPE_DATA_DIR", (run_.folder() / name).c_str(), 1);
    const auto invite = parse_invite(run_.invite()).take();
    auto access = enrol(invite, invite.addresses.front(), name);
    ::setenv("THINPIPE_DATA_DIR", own.c_str(), 1);
    peers()[name] = access.peer;
    return access;
  }

  // The process that holds the last stage.
  static std::string holder(const control::RunStatus& status) {
    for (const auto& member : status.members()) {
      if (member.has_seat() && member.seat().stage() == 1) return member.peer().substr(0, member.peer().rfind('-'));
    }
    throw UserError("bench trust: nobody holds the last stage");
  }

  static int64_t last_of(const control::RunStatus& status) {
    return status.events().empty() ? 0 : status.events(status.events_size() - 1).number();
  }
  int64_t last_event() {
    int64_t last = 0;
    for (int turn = 0; turn < 1000; ++turn) {
      const auto status = run_.status(last);
      if (status.events().empty()) break;
      last = last_of(status);
    }
    return last;
  }
  bool saw(const std::string& kind, const control::RunStatus& before) {
    const auto now = run_.status(last_of(before));
    return std::any_of(now.events().begin(), now.events().end(),
                       [&](const auto& event) { return event.kind() == kind; });
  }

  const BenchTrustOptions options_;
  const SystemClock clock_;
  OpenRun run_;
  int port_ = 0;
  double most_memory_mb_ = 0;
  int64_t tried_ = 0, ended_ = 0;
  WorkLine line_{"attacking", "tries",
                 static_cast<uint64_t>(kAttacks + kNoticed + options_.tries + (options_.members ? kBadMembers : 0))};
};

void try_bad_members(TrustBench& bench) {
  using control::FromWorker;
  bench.try_member("spare that reports trouble",
                   [&] { bench.say_often("trouble", std::vector(20, TrustBench::trouble(1, false)), 5); });
  bench.try_member("spare that reports fatal trouble",
                   [&] { bench.say_often("fatal", {TrustBench::trouble(1, true)}, 5); });
  bench.try_member("spare that connects all the time", [&] { bench.say_often("flood", {}, 100); });
  bench.try_member("spare that reports steps", [&] {
    FromWorker ready, formed;
    ready.mutable_ready()->set_loss_sum(-1e9);
    ready.mutable_ready()->set_squared_norm(-1e300);
    formed.mutable_formed()->set_epoch(1);
    bench.say_often("reports", {ready, formed, ready}, 5);
  });
  bench.try_member("member that calls what it may not", [&] { bench.bad_calls("calls"); });
  bench.try_member("holder that reports trouble", [&] {
    bench.hold_and_answer("holder", [](const control::ToWorker& told) {
      return told.has_form() ? TrustBench::trouble(told.form().epoch(), false) : FromWorker();
    });
  });
  bench.try_member("holder that reports fatal trouble", [&] {
    bench.hold_and_answer("fatal-holder",
                          [](const control::ToWorker& told) { return TrustBench::trouble(told.form().epoch(), true); });
  });
  bench.try_member("holder that reports impossible numbers", [&] {
    bench.hold_and_answer("liar", [](const control::ToWorker& told) {
      FromWorker said;
      if (told.has_form()) said.mutable_formed()->set_epoch(told.form().epoch());
      if (told.has_run_step()) {
        said.mutable_ready()->set_epoch(told.run_step().epoch());
        said.mutable_ready()->set_step(told.run_step().step());
        said.mutable_ready()->set_squared_norm(-1e300);
      }
      return said;
    });
  });
}

}  // namespace

void bench_trust(const BenchTrustOptions& options, bool json) {
  TrustBench bench(options);
  bench.begin();
  nlohmann::ordered_json slowdowns, coordinator_cores, attacker_cores;
  const auto flood = [&](const char* key, const char* name, const TrustBench::Attack& attack) {
    const auto cost = bench.cost_of(name, attack);
    slowdowns[key] = cost.slowdown;
    coordinator_cores[key] = cost.coordinator_cores;
    attacker_cores[key] = cost.attacker_cores;
  };
  flood("idle_connections", "2000 idle connections", [&](const auto& stop) { bench.idle(stop); });
  flood("unfinished_joins", "1000 unfinished joins", [&](const auto& stop) { bench.unfinished_joins(stop); });
  const double strangers_mb = bench.most_memory_mb();
  flood("calls", "a member's calls", [&](const auto& stop) { bench.calls(stop); });
  flood("messages", "a member's messages", [&](const auto& stop) { bench.messages(stop); });
  const double noticed_s = bench.time_notice();
  const int64_t lost = bench.freeze_coordinator();
  if (options.members) try_bad_members(bench);
  TrustBench::tell(fmt::format("{} bad members, {} of them have ended the run", bench.tried(), bench.ended()));
  if (!json) return;
  const nlohmann::ordered_json result = {{"bad_members_tried", bench.tried()},
                                         {"runs_ended_by_members", bench.ended()},
                                         {"strangers_memory_mb", strangers_mb},
                                         {"honest_step_slowdown", slowdowns},
                                         {"coordinator_cores", coordinator_cores},
                                         {"attacker_cores", attacker_cores},
                                         {"hang_noticed_s", noticed_s},
                                         {"frozen_coordinator_tries", options.tries},
                                         {"frozen_coordinator_lost_steps", lost}};
  fmt::print("{}\n", result.dump());
}

}  // namespace thinpipe
