// Workers on machines that the organiser has a login on: `thinpipe join` there, started through ssh, or by srun inside
// a Slurm job. One child process per slot; its standard input brings the invite and then a line now and then, and the
// worker leaves when it ends (input_watch.h). What it prints goes to the run's logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "run/child_process.h"
#include "run/host_list.h"

namespace thinpipe {

enum class HostReach { kSsh, kSrun };

// A run whose stages are on other machines. Without hosts, they are processes of this one.
struct RemoteRun {
  std::vector<Host> hosts;
  HostReach reach = HostReach::kSsh;
  std::vector<std::string> listen, announce;  // of the coordinator, as for `serve`
};

// Connects to every host and looks for thinpipe there; `clone_from`, a git repository, installs it where it is missing.
// Throws UserError with a sentence for each host that cannot take part, and with the commands that install it;
// `repository` is the address to name in them, empty if it is unknown.
struct HostCheck {
  std::string clone_from;
  std::string repository;
};
void check_hosts(const std::vector<Host>& hosts, const HostCheck& check);

// How long to wait before a worker is started again that has ended `failures` times in a row, or nothing: give up.
// lost: its connection or a signal ended it; else the program itself did, for a reason that will hardly go away.
std::optional<Duration> wait_before_restart(int failures, bool lost);

class RemoteWorkers {
 public:
  // The run and the clock must outlive it. logs: the folder for what they print.
  RemoteWorkers(const RemoteRun& run, int64_t stages, std::filesystem::path logs, const Clock& clock);

  bool started() const { return !invite_.empty(); }
  // Every slot starts at the next tend(). The invite must have a use for each.
  void start(const std::string& invite) { invite_ = invite; }
  // Starts workers that are due and returns lines to show to the person. Throws UserError when too few slots are left
  // for the run. stopping: the run ends, so nobody is started again.
  std::vector<std::string> tend(bool stopping);
  bool all_ended() const;
  // Ends the connections, and with them the workers.
  void end() { slots_.clear(); }

 private:
  struct Slot {
    std::string host;
    std::string label;               // of its files: "user-box-2"
    std::filesystem::path log, own;  // what the worker prints, and ssh itself
    std::optional<ChildProcess> process = std::nullopt;
    Fd input = Fd();
    TimePoint due = {}, began = {}, beat = {};
    uintmax_t own_before = 0;  // bytes in `own` when it began
    int failures = 0;
    bool over = false;  // is not started again
  };

  void start(Slot& slot);
  void beat(Slot& slot);
  std::string ended(Slot& slot, const ChildEnd& end);
  std::string reason(const Slot& slot, const ChildEnd& end) const;
  int64_t usable_slots() const;

  const RemoteRun& run_;
  const int64_t stages_;
  const Clock& clock_;
  std::string invite_;
  std::vector<Slot> slots_;
};

}  // namespace thinpipe
