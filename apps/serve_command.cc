// thinpipe serve: the coordinator of a run. thinpipe work: a worker of one, started by `thinpipe train`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "models/llama.h"
#include "net/addresses.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "pipeline/table_file.h"
#include "run/coordinator/serve.h"
#include "run/dashboard_child.h"
#include "run/run_changes.h"
#include "run/worker/worker.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

constexpr auto kDashboardStart = std::chrono::seconds(5);

}  // namespace

void serve(const ServeArguments& arguments) {
  // Before any thread is started, because threads inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const DashboardWish wish{arguments.dashboard, arguments.open};
  check(wish).take();
  for (const auto& address : arguments.announce) check_address(address).take();
  std::filesystem::path folder;
  std::optional<NewRunFolder> made;  // until it is served: a start that fails leaves no run behind
  if (!arguments.run.empty()) {
    if (!arguments.config.empty() || !arguments.run_dir.empty() || !arguments.name.empty()) {
      throw UserError("--run uses the run's own config: leave out CONFIG, --run-dir and --name");
    }
    folder = find_run_to_resume(arguments.run).take();
    if (!arguments.overrides.empty()) {
      // Checks that the changed run can be served before it is changed.
      const auto wanted = load_resumed_config(folder / "config.toml", arguments.overrides);
      (void)corpus_of_run(folder, wanted.data, data_dir());
      if (const auto changed = change_run(folder, arguments.overrides); !changed.note.empty()) {
        fmt::print("{}\n", changed.note);
      }
    }
  } else {
    // Machines have real links between them, so none is emulated by default.
    const std::vector<std::string> defaults{"link.rate=unlimited"};
    const auto config = arguments.config.empty() ? parse_config("", "the command line", arguments.overrides, defaults)
                                                 : load_config(arguments.config, arguments.overrides, defaults);
    check_boundary(config);
    made.emplace(NewRunFolder::create(folder_for_new_run(arguments.name, arguments.run_dir).take(), config).take());
    folder = made->path();
    bring_table(folder, config, std::filesystem::path(arguments.config).parent_path()).take();
    if (const auto limit = export_limit(config); !limit.empty()) fmt::print("note: {}\n", limit);
    fmt::print("run: {}\n", folder.string());
    std::fflush(stdout);
  }
  ServeOptions options;
  options.folder = folder;
  options.listen = arguments.listen;
  options.announce = arguments.announce;
  options.open = !arguments.local;
  if (arguments.local && options.listen.empty()) options.listen = {"127.0.0.1"};
  std::optional<DashboardChild> dashboard;
  options.on_ready = [&](const std::vector<std::string>& addresses) {
    if (made) made->keep();
    if (arguments.local) return;
    fmt::print("serving at {}\nto let machines join: thinpipe invite\n", fmt::join(addresses, ", "));
    std::fflush(stdout);
    dashboard.emplace(std::filesystem::read_symlink("/proc/self/exe"), folder, wish);
    if (const auto text = dashboard->first_news(SystemClock(), kDashboardStart)) fmt::print("{}\n", *text);
    std::fflush(stdout);
  };
  const auto end = serve_run(options);
  if (end.failed) throw UserError(end.reason);
}

void work(const WorkArguments& arguments) {
  WorkerOptions options;
  options.folder = arguments.folder;
  options.listen = {arguments.listen};
  options.coordinator = coordinator_access({arguments.coordinator}, options.folder / "identity");
  run_worker(options).take();
}

}  // namespace thinpipe
