// The dashboard over HTTP: the page, the API of docs/api.md, and who may use it. A process of its own, so whatever
// callers do to it, the run does not notice.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "net/addresses.h"

namespace thinpipe {

struct DashboardOptions {
  std::filesystem::path folder;  // of the run
  HostPort listen;               // port 0: `last_port` if it is free, else the kernel chooses
  int last_port = 0;             // so that a page that is still open finds the dashboard again
  // Gets the address to print, which holds the token, and the port, when it listens.
  std::function<void(const std::string& address, int port)> on_ready;
  std::function<bool()> over = [] { return false; };  // asked four times a second; ends the dashboard
};

// Returns when options.over() says so. Throws UserError if it cannot listen or the folder holds no run.
void serve_dashboard(const DashboardOptions& options);

// The run's token, made at the first call, in a file that only its owner can read.
std::string dashboard_token(const std::filesystem::path& run_folder);

}  // namespace thinpipe
