// thinpipe serve: the coordinator of a run. thinpipe work: a worker of one, started by `thinpipe train`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "boundary/boundary.h"
#include "cluster/serve.h"
#include "cluster/worker.h"
#include "commands.h"
#include "config/config_file.h"
#include "pipeline/run_folder.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

struct ServeArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::string run_dir;
  std::string listen = "127.0.0.1";
};

void serve(const ServeArguments& arguments) {
  // Before any thread is made: they inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::filesystem::path folder;
  if (!arguments.run.empty()) {
    if (!arguments.config.empty() || !arguments.overrides.empty() || !arguments.run_dir.empty()) {
      throw UserError("--run goes on with the run's own config: leave out the config, --set and --run-dir");
    }
    folder = find_run(arguments.run).take();
  } else {
    const auto config = arguments.config.empty() ? parse_config("", "the command line", arguments.overrides)
                                                 : load_config(arguments.config, arguments.overrides);
    check_pack(config);
    folder = create_run_folder(arguments.run_dir, config).take();
    fmt::print("run: {}\n", folder.string());
    std::fflush(stdout);
  }
  const auto end = serve_run({folder, arguments.listen});
  if (end.failed) throw UserError(end.reason);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  auto* command = app.add_subcommand("serve", "the coordinator of a run: who takes part, steps, checkpoints");
  command->add_option("config", arguments->config, "TOML file (docs/config.md); none: the default small model");
  command->add_option("--set", arguments->overrides, "override a key: --set model.d=512")->expected(1)->take_all();
  command->add_option("--run", arguments->run, "go on with this run instead");
  command->add_option("--run-dir", arguments->run_dir, "where a new run's files go");
  command->add_option("--listen", arguments->listen, "HOST or HOST:PORT; without a port the kernel chooses one, once")
      ->capture_default_str();
  command->footer(
      "Examples:\n  thinpipe serve my.toml\n  thinpipe serve --run 2026-01-31-17-05-09\n"
      "Links are not encrypted yet: listen beyond this machine only on a network you trust.");
  command->callback([arguments] { serve(*arguments); });
}

void add_work_command(CLI::App& app) {
  auto options = std::make_shared<WorkerOptions>();
  auto folder = std::make_shared<std::string>();
  auto* command = app.add_subcommand("work", "hold a stage of a run (started by train)")->group("");
  command->add_option("--coordinator", options->coordinator, "HOST:PORT")->required();
  command->add_option("--name", options->name, "who this is; the same after a restart")->required();
  command->add_option("--folder", *folder, "for this worker's own files")->required();
  command->add_option("--listen", options->listen, "host where neighbours dial")->capture_default_str();
  command->callback([options, folder] {
    options->folder = *folder;
    run_worker(*options).take();
  });
}

}  // namespace thinpipe
