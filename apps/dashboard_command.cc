// Commands that show a run, without libtorch: dashboard, report, trace.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/files.h"
#include "base/result.h"
#include "base/say.h"
#include "commands.h"
#include "dashboard/report.h"
#include "dashboard/server.h"
#include "run/run_files.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

// Says that there is no browser to open, and goes on.
void open_in_browser(const std::string& address) {
  std::string program = "xdg-open", place = address;
  char* const arguments[] = {program.data(), place.data(), nullptr};
  pid_t pid = 0;
  if (::posix_spawnp(&pid, "xdg-open", nullptr, nullptr, arguments, environ) != 0)
    fmt::print(stderr, "cannot open a browser: there is no xdg-open here\n");
}

void write_whole(const std::string& path, const std::string& text) {
  write_file_atomically(path, text).take();
  say("wrote {}\n", path);
}

}  // namespace

void dashboard(const DashboardArguments& arguments) {
  DashboardOptions options;
  options.folder = find_run(arguments.run).take();
  options.listen = parse_host_port(arguments.listen).take();
  if (const auto last = read_dashboard_place(options.folder)) options.last_port = last.value().port;
  options.on_ready = [&](const std::string& address, int port) {
    write_dashboard_place(options.folder, {address, port, ::getpid()}).take();
    say("dashboard: {}\n", address);
    std::fflush(stdout);
    if (arguments.open) open_in_browser(address);
  };
  // Whoever watches a run must not slow it down.
  (void)::setpriority(PRIO_PROCESS, 0, 19);
  serve_dashboard(options);
}

void report(const std::string& run, const std::string& out) {
  write_whole(out.empty() ? "report.html" : out, run_report(find_run(run).take()));
}

void trace(const std::string& run, const std::string& out) {
  write_whole(out.empty() ? "trace.json" : out, run_trace(find_run(run).take()));
}

}  // namespace thinpipe
