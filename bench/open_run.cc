#include "bench/open_run.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "base/files.h"
#include "base/result.h"
#include "pipeline/run_folder.h"
#include "run/coordinator/serve.h"

namespace thinpipe {
namespace {

constexpr Duration kOpenRunPatience = std::chrono::seconds(120);
constexpr auto kPollEvery = std::chrono::milliseconds(10);

}  // namespace

OpenRun::OpenRun(std::string program, const std::string& name, RunConfig config)
    : program_(std::move(program)),
      name_(name),
      config_(std::move(config)),
      folder_(data_dir() / "bench" / fmt::format("{}-{}", name, ::getpid())) {
  NewRunFolder::create(run(), config_).take().keep();
  make_directories(folder_ / "logs").take();
}

OpenRun::~OpenRun() {
  children_.clear();
  (void)remove_tree(folder_);
}

void OpenRun::serve(int64_t uses) {
  const std::vector<std::string> arguments{"serve",     "--run",       run().string(), "--listen",
                                           "127.0.0.1", "--dashboard", "off"};
  children_.emplace("serve", ChildProcess::start(program_, arguments, log("serve")).take());
  wait_until("the coordinator listens", [&] { return read_coordinator_place(run()).ok(); });
  line_ = std::make_unique<CoordinatorLine>(operator_access(run(), read_coordinator_place(run()).value().address));
  control::InviteRequest request;
  request.set_uses(uses);
  request.set_lifetime_s(24 * 3600);
  control::InviteReply reply;
  call([&](auto& stub, auto* context) { return stub.Invite(context, request, &reply); });
  invite_ = reply.text();
}

void OpenRun::join(const std::string& name) {
  children_.erase(name);
  const auto own = data_dir();
  ::setenv("THINPIPE_DATA_DIR", (folder_ / name).c_str(), 1);
  const std::vector<std::string> arguments{"join", invite_, "--name", name, "--listen", "127.0.0.1"};
  auto child = ChildProcess::start(program_, arguments, log(name));
  ::setenv("THINPIPE_DATA_DIR", own.c_str(), 1);
  children_.emplace(name, std::move(child).take());
}

bool OpenRun::is_running(const std::string& name) {
  const auto found = children_.find(name);
  return found != children_.end() && !found->second.poll();
}

control::RunStatus OpenRun::status(int64_t events_after) {
  control::RunStatus status;
  control::StatusRequest request;
  request.set_events_after(events_after);
  call([&](auto& stub, auto* context) { return stub.GetStatus(context, request, &status); });
  return status;
}

void OpenRun::kick(const std::string& peer) {
  control::ControlRequest request;
  request.set_what(control::ControlRequest::KICK);
  request.set_peer(peer);
  control::ControlReply reply;
  call([&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
}

void OpenRun::control(control::ControlRequest::What what) {
  control::ControlRequest request;
  request.set_what(what);
  control::ControlReply reply;
  call([&](auto& stub, auto* context) { return stub.Control(context, request, &reply); });
}

template <class Call>
void OpenRun::call(const Call& make) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Status status = make(*line_->stub(), &context);
  if (!status.ok()) throw UserError(fmt::format("bench {}: {}", name_, status.error_message()));
}

void OpenRun::wait_until(const std::string& what, const std::function<bool()>& condition) {
  const auto deadline = clock_.now() + kOpenRunPatience;
  while (!condition()) {
    for (auto& [name, child] : children_) {
      const auto end = child.poll();
      if (end && (name == "serve" || end->exit_code > 2))
        throw UserError(fmt::format("bench {}: {} failed", name_, name));
    }
    if (clock_.now() > deadline) throw UserError(fmt::format("bench {}: timed out waiting until {}", name_, what));
    std::this_thread::sleep_for(kPollEvery);
  }
}

}  // namespace thinpipe
