// The organiser's own machine as a member of its run (`thinpipe serve --join`): `thinpipe join` as a process beside the
// coordinator, with an invite of its own and its files in the run's folder. It joins as everybody does, and whatever
// happens to it, the coordinator goes on. It ends with the coordinator, however that ends.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/child_process.h"

namespace thinpipe {

class HostChild {
 public:
  // Asks the coordinator, which must be listening, for the invite. `program`: thinpipe itself. listen: as for `join`,
  // without ports; empty: all interfaces. Call it from the main thread: the process dies with the thread that starts
  // it.
  static Result<HostChild> start(std::filesystem::path program, const std::filesystem::path& run_folder,
                                 const std::vector<std::string>& listen);

  // Something to tell the person: why this machine holds no stage. Starts it again if it was killed.
  std::optional<std::string> news();

 private:
  HostChild(std::filesystem::path program, std::filesystem::path run_folder, std::vector<std::string> arguments)
      : program_(std::move(program)), run_folder_(std::move(run_folder)), arguments_(std::move(arguments)) {}
  std::filesystem::path folder() const { return run_folder_ / "host"; }
  std::filesystem::path log() const { return run_folder_ / "logs" / "host.log"; }
  Status begin();

  std::filesystem::path program_, run_folder_;
  std::vector<std::string> arguments_;
  std::optional<ChildProcess> process_;
  int restarts_ = 0;
};

}  // namespace thinpipe
