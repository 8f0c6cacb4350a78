// The dashboard of a run as a process beside it (`thinpipe dashboard`). Whatever happens to it, the run goes on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "run/child_process.h"

namespace thinpipe {

// What a person has asked for: --dashboard off|ADDR and --open.
struct DashboardWish {
  std::string listen = "127.0.0.1";  // HOST or HOST:PORT; "off": none
  bool open = false;                 // in a browser
};
// Returns an error that names the option if `listen` is neither "off" nor an address.
Status check(const DashboardWish& wish);

class DashboardChild {
 public:
  // Starts it, unless it is off. `program`: thinpipe itself.
  DashboardChild(std::filesystem::path program, std::filesystem::path run_folder, const DashboardWish& wish);

  // Something to tell the person: where it is, once, or why it is not there. Starts it again if it was killed.
  std::optional<std::string> news();

 private:
  void start(bool open);

  const std::filesystem::path program_, folder_;
  const std::string listen_;
  std::optional<ChildProcess> process_;
  bool told_ = false;
};

}  // namespace thinpipe
