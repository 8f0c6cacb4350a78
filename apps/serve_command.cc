// thinpipe serve: the coordinator of a run. thinpipe work: a worker of one, started by `thinpipe train`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/result.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "net/invite.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "run/coordinator/serve.h"
#include "run/run_changes.h"
#include "run/worker/worker.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

struct ServeArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::string run_dir;
  std::vector<std::string> listen;
  std::vector<std::string> announce;
  bool local = false;
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
    if (!arguments.config.empty() || !arguments.run_dir.empty()) {
      throw UserError("--run goes on with the run's own config: leave out the config and --run-dir");
    }
    folder = find_run(arguments.run).take();
    if (!arguments.overrides.empty()) {
      // What cannot be served is not changed.
      const auto wanted = load_resumed_config(folder / "config.toml", arguments.overrides);
      (void)corpus_of_run(folder, wanted.data, data_dir());
      change_run(folder, arguments.overrides);
    }
  } else {
    // Between machines there are real lines: none is emulated unless somebody asks for it.
    const std::vector<std::string> defaults{"link.rate=unlimited"};
    const auto config = arguments.config.empty() ? parse_config("", "the command line", arguments.overrides, defaults)
                                                 : load_config(arguments.config, arguments.overrides, defaults);
    check_boundary(config);
    folder = create_run_folder(arguments.run_dir, config).take();
    fmt::print("run: {}\n", folder.string());
    std::fflush(stdout);
  }
  ServeOptions options;
  options.folder = folder;
  options.listen = arguments.listen;
  options.announce = arguments.announce;
  options.open = !arguments.local;
  for (const auto& address : arguments.announce) check_address(address).take();
  if (arguments.local && options.listen.empty()) options.listen = {"127.0.0.1"};
  if (!arguments.local) {
    options.on_ready = [](const std::vector<std::string>& addresses) {
      fmt::print("serving at {}\nto bring somebody in: thinpipe invite\n", fmt::join(addresses, ", "));
      std::fflush(stdout);
    };
  }
  const auto end = serve_run(options);
  if (end.failed) throw UserError(end.reason);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  auto* command = app.add_subcommand("serve", "the coordinator of a run: who takes part, steps, checkpoints");
  command->add_option("config", arguments->config, "TOML file (docs/config.md); default: the default small model");
  add_overrides(*command, arguments->overrides);
  command->add_option("--run", arguments->run, "resume this run instead of starting a new one");
  command->add_option("--run-dir", arguments->run_dir,
                      "folder for a new run's files; default: a new folder in the data directory");
  add_repeatable(*command, "--listen", arguments->listen,
                 "address to listen on (HOST or HOST:PORT), may be repeated; default: all interfaces");
  add_repeatable(*command, "--announce", arguments->announce,
                 "address that invites name too (HOST:PORT), for example a forwarded port");
  command->add_flag("--local", arguments->local, "for train: nobody else joins")->group("");
  command->footer(
      "Examples:\n  thinpipe serve my.toml\n"
      "  thinpipe serve my.toml --listen [::]:7700 --announce my.home.example:7700\n"
      "  thinpipe serve --run 2026-01-31-17-05-09               go on with a run\n"
      "  thinpipe serve --run 2026-01-31-17-05-09 --set pipeline.stages=2\n"
      "It waits for as many machines as the run has stages, then leads it. Bring them in from another window: thinpipe "
      "invite");
  command->callback([arguments] { serve(*arguments); });
}

void add_work_command(CLI::App& app) {
  auto coordinator = std::make_shared<std::string>(), folder = std::make_shared<std::string>();
  auto listen = std::make_shared<std::string>("127.0.0.1");
  auto* command = app.add_subcommand("work", "hold a stage of a run (started by train)")->group("");
  command->add_option("--coordinator", *coordinator, "HOST:PORT")->required();
  command->add_option("--folder", *folder, "for this worker's own files, with its identity in it")->required();
  command->add_option("--listen", *listen, "host where neighbours dial")->capture_default_str();
  command->callback([coordinator, folder, listen] {
    WorkerOptions options;
    options.folder = *folder;
    options.listen = {*listen};
    options.coordinator = coordinator_access({*coordinator}, options.folder / "identity");
    run_worker(options).take();
  });
}

}  // namespace thinpipe
