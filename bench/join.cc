// bench join: how long a newcomer waits until the first step it takes part in. Everything is as between machines, but
// on loopback: `thinpipe serve`, invites, and one `thinpipe join` per stage with its own data directory, so without a
// copy of the corpus.
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/result.h"
#include "bench/bench.h"
#include "config/config_file.h"
#include "pipeline/run_folder.h"
#include "run/child_process.h"
#include "run/coordinator/serve.h"
#include "run/coordinator_line.h"

namespace thinpipe {
namespace {

constexpr Duration kPatience = std::chrono::seconds(120);
constexpr auto kOften = std::chrono::milliseconds(10);

class JoinBench {
 public:
  explicit JoinBench(const std::string& program) : program_(program) {
    config_ = parse_config("", "the defaults");
    folder_ = data_dir() / "bench" / fmt::format("join-{}", ::getpid());
    create_run_folder((folder_ / "run").string(), config_).take();
    make_directories(folder_ / "logs").take();
  }
  ~JoinBench() {
    children_.clear();
    (void)remove_tree(folder_);
  }

  void serve() {
    children_.push_back(
        ChildProcess::start(program_, {"serve", "--run", run().string(), "--listen", "127.0.0.1"}, log("serve"))
            .take());
    wait_until("the coordinator listens", [&] { return read_coordinator_place(run()).ok(); });
    line_ = std::make_unique<CoordinatorLine>(operator_access(run(), read_coordinator_place(run()).value().address));
    control::InviteRequest request;
    request.set_uses(config_.pipeline.stages + 1);
    request.set_lifetime_s(3600);
    control::InviteReply reply;
    call([&](auto& stub, auto* context) { return stub.Invite(context, request, &reply); });
    invite_ = reply.text();
  }

  void join() {
    const auto name = fmt::format("host-{}", children_.size());
    const auto own = data_dir();
    ::setenv("THINPIPE_DATA_DIR", (folder_ / name).c_str(), 1);
    children_.push_back(
        ChildProcess::start(program_, {"join", invite_, "--name", name, "--listen", "127.0.0.1"}, log(name)).take());
    ::setenv("THINPIPE_DATA_DIR", own.c_str(), 1);
  }

  // The number of stages with a connected worker.
  int64_t held() {
    int64_t count = 0;
    const auto now = status();
    for (const auto& member : now.members()) count += member.has_seat() && member.connected() ? 1 : 0;
    return count;
  }

  // The time from now to the next commit after a join.
  double time_join() {
    const auto before = status();
    const auto begin = clock_.now();
    join();
    wait_until("the next step is committed", [&] {
      const auto now = status();
      return now.epoch() > before.epoch() && now.step() > now_from(now, before);
    });
    return seconds(clock_.now() - begin);
  }

  void wait_for_checkpoint() {
    wait_until("there is a checkpoint", [&] { return status().manifest_step() > 0; });
  }

  void kick_last() {
    std::string last;
    const auto now = status();
    for (const auto& member : now.members()) {
      if (member.has_seat() && member.seat().stage() + 1 == config_.pipeline.stages) last = member.peer();
    }
    control::ControlRequest request;
    request.set_what(control::ControlRequest::KICK);
    request.set_peer(last);
    control::ControlReply reply;
    call([&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
  }

  int64_t stages() const { return config_.pipeline.stages; }

 private:
  std::filesystem::path run() const { return folder_ / "run"; }
  std::filesystem::path log(const std::string& name) const { return folder_ / "logs" / (name + ".log"); }

  // Where the current epoch began: a newcomer may send everybody back to the last checkpoint.
  static int64_t now_from(const control::RunStatus& now, const control::RunStatus& before) {
    return std::min(before.step(), std::max<int64_t>(0, now.manifest_step()));
  }

  control::RunStatus status() {
    control::RunStatus status;
    call([&](auto& stub, auto* context) { return stub.GetStatus(context, {}, &status); });
    return status;
  }

  template <class Call>
  void call(const Call& make) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status status = make(*line_->stub(), &context);
    if (!status.ok()) throw UserError("bench join: " + status.error_message());
  }

  template <class Condition>
  void wait_until(const std::string& what, const Condition& condition) {
    const auto deadline = clock_.now() + kPatience;
    while (!condition()) {
      for (auto& child : children_) {
        if (const auto end = child.poll(); end && end->exit_code > 2) throw UserError("bench join: a process failed");
      }
      if (clock_.now() > deadline) throw UserError(fmt::format("bench join: timed out waiting until {}", what));
      std::this_thread::sleep_for(kOften);
    }
  }

  const std::string program_;
  const SystemClock clock_;
  RunConfig config_;
  std::filesystem::path folder_;
  std::vector<ChildProcess> children_;
  std::unique_ptr<CoordinatorLine> line_;
  std::string invite_;
};

}  // namespace

void bench_join(const std::string& program, bool json) {
  JoinBench bench(program);
  bench.serve();
  for (int64_t stage = 0; stage + 1 < bench.stages(); ++stage) bench.join();
  while (bench.held() + 1 < bench.stages()) std::this_thread::sleep_for(kOften);
  const double first_s = bench.time_join();
  fmt::print("the last of {} machines joins a new run: {:.2f} s from the command to the first step\n", bench.stages(),
             first_s);
  std::fflush(stdout);
  bench.wait_for_checkpoint();
  bench.kick_last();
  const double replacement_s = bench.time_join();
  fmt::print("a machine takes over a stage, with its state: {:.2f} s from the command to the next step\n",
             replacement_s);
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"join_s", first_s}, {"replacement_join_s", replacement_s}}).dump());
  }
}

}  // namespace thinpipe
