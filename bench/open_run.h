// A run that others join, for benchmarks. Everything is as between machines, but on loopback: `thinpipe serve`, an
// invite, and `thinpipe join` in processes with their own data directories, so without a copy of the corpus.
#pragma once

#include <grpcpp/client_context.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "proto/control.grpc.pb.h"
#include "run/child_process.h"
#include "run/coordinator_line.h"

namespace thinpipe {

class OpenRun {
 public:
  // `name` is that of the benchmark. The run's folder is removed at the end.
  OpenRun(std::string program, const std::string& name, RunConfig config);
  ~OpenRun();

  // Starts the coordinator and makes an invite for that many machines.
  void serve(int64_t uses);
  // Starts a worker under that name.
  void join(const std::string& name);
  // Ends that process with SIGKILL.
  void kill(const std::string& name) { children_.erase(name); }
  pid_t pid(const std::string& name) const { return children_.at(name).pid(); }
  pid_t coordinator() const { return pid("serve"); }
  bool is_running(const std::string& name);

  control::RunStatus status(int64_t events_after = 0);
  // Removes that peer for good.
  void kick(const std::string& peer);
  // Pauses, resumes or stops the run.
  void control(control::ControlRequest::What what);
  // Waits until the condition holds. Throws UserError after two minutes, or if a worker fails.
  void wait_until(const std::string& what, const std::function<bool()>& condition);

  const RunConfig& config() const { return config_; }
  const std::string& invite() const { return invite_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path run() const { return folder_ / "run"; }
  std::filesystem::path log(const std::string& name) const { return folder_ / "logs" / (name + ".log"); }
  template <class Call>
  void call(const Call& make);

  const std::string program_, name_;
  const RunConfig config_;
  const SystemClock clock_;
  std::filesystem::path folder_;
  std::map<std::string, ChildProcess> children_;
  std::unique_ptr<CoordinatorLine> line_;
  std::string invite_;
};

}  // namespace thinpipe
