// thinpipe serve: the coordinator of a run. thinpipe work: a worker of one, started by `thinpipe train`.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/say.h"
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
#include "run/host_child.h"
#include "run/run_changes.h"
#include "run/run_files.h"
#include "run/run_view.h"
#include "run/sample_child.h"
#include "run/worker/worker.h"
#include "run_folders.h"
#include "text_argument.h"

namespace thinpipe {
namespace {

// What the organiser sees besides the log: addresses, who is missing, the step line, and in the end how to go on.
class ServeScreen {
 public:
  ServeScreen(std::filesystem::path folder, const ServeArguments& arguments, const DashboardWish& wish)
      : folder_(std::move(folder)), arguments_(arguments), wish_(wish) {}

  void ready(const std::vector<std::string>& addresses) {
    say("serving at {}\nto let machines join: thinpipe invite {}\n", fmt::join(addresses, ", "), name_);
    std::fflush(stdout);
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    dashboard_.emplace(program, folder_, wish_);
    if (arguments_.join) host_ = HostChild::start(program, folder_, arguments_.listen).take();
  }

  void tick(const control::RunStatus& status) {
    if (!view_) {
      const RunAudience audience{
          "", fmt::format("for the others: thinpipe invite {} prints a line, and they run: thinpipe join LINE", name_),
          fmt::format("to continue: thinpipe resume {}", name_)};
      const auto config = load_config(folder_ / "config.toml");
      view_.emplace(config, status.step(), audience, stdout, ::isatty(STDOUT_FILENO) != 0, clock_);
      samples_.emplace(std::filesystem::read_symlink("/proc/self/exe"), folder_, config.train);
    }
    if (const auto text = dashboard_ ? dashboard_->news() : std::nullopt) view_->note(*text);
    if (const auto text = host_ ? host_->news() : std::nullopt) view_->note(*text);
    if (const auto text = samples_->tend(status.manifest_step())) view_->note(*text);
    view_->show(status);
  }

  void keepers(size_t count) {
    if (count == 0) return;
    view_.reset();
    say("all steps are done; waiting for {} to fetch the model; ctrl-C ends that\n", counted(count, "machine"));
    std::fflush(stdout);
  }

  void stopping() { tell("stopping: a checkpoint is written first; ctrl-C again stops at once"); }

  void ended() {
    samples_.reset();
    const auto outcome = read_outcome(folder_);
    const bool ok = outcome && !outcome.value().failed;
    if (ok && outcome.value().complete) {
      const auto& end = outcome.value();
      // In the place of the last line, which may be about the validation pass.
      tell(fmt::format("all {} steps are done; validation loss {:.4f}; try: thinpipe generate {}", end.step,
                       end.validation_loss, name_));
    }
    view_.reset();  // ends the step line
    if (ok && !outcome.value().complete) {
      const auto& end = outcome.value();
      say("stopped after step {}; machines that have joined wait for it; to go on from the checkpoint of step {}:\n",
          end.step, end.manifest_step);
      fmt::print("  thinpipe serve --run {}{}\n", name_, arguments_.join ? " --join" : "");
    }
  }

 private:
  void tell(const std::string& text) {
    if (view_) return view_->note(text);
    say("{}\n", text);
    std::fflush(stdout);
  }

  const std::filesystem::path folder_;
  const ServeArguments& arguments_;
  const DashboardWish& wish_;
  const std::string name_ = argument_of(folder_);
  const SystemClock clock_;
  std::optional<DashboardChild> dashboard_;
  std::optional<HostChild> host_;
  std::optional<SampleChild> samples_;
  std::optional<RunView> view_;
};

// The run that --run names, with what --set changes of it.
std::filesystem::path resumed_run(const ServeArguments& arguments) {
  if (!arguments.config.empty() || !arguments.run_dir.empty() || !arguments.name.empty()) {
    throw UserError("--run uses the run's own config: leave out CONFIG, --run-dir and --name");
  }
  const auto folder = find_run_to_resume(arguments.run).take();
  if (arguments.overrides.empty()) return folder;
  // Checks that the changed run can be served before it is changed.
  const auto wanted = load_resumed_config(folder / "config.toml", arguments.overrides);
  (void)corpus_of_run(folder, wanted.data, data_dir());
  if (const auto changed = change_run(folder, arguments.overrides); !changed.note.empty()) say("{}\n", changed.note);
  return folder;
}

NewRunFolder new_run(ServeArguments& arguments) {
  // Machines have real links between them, so none is emulated by default.
  const std::vector<std::string> defaults{"link.rate=unlimited"};
  if (is_text(arguments.config)) {
    take_text_argument(arguments.config, arguments.overrides);
    fit_vocabulary(arguments.overrides, arguments.overrides, ::isatty(STDOUT_FILENO) == 1);
  }
  const auto config = arguments.config.empty() ? parse_config("", "the command line", arguments.overrides, defaults)
                                               : load_config(arguments.config, arguments.overrides, defaults);
  check_boundary(config);
  auto made = NewRunFolder::create(folder_for_new_run(arguments.name, arguments.run_dir).take(), config).take();
  bring_table(made.path(), config, std::filesystem::path(arguments.config).parent_path()).take();
  if (const auto limit = export_limit(config); !limit.empty()) say("note: {}\n", limit);
  say("run: {}\n", made.path().string());
  std::fflush(stdout);
  return made;
}

}  // namespace

void serve(const ServeArguments& given) {
  auto arguments = given;
  // With a heap per thread, what strangers make it hold for a moment would stay in every one of them.
  ::mallopt(M_ARENA_MAX, 2);
  // Before any thread is started, because threads inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const DashboardWish wish{arguments.dashboard, arguments.open};
  check(wish).take();
  for (const auto& address : arguments.announce) check_address(address).take();
  std::optional<NewRunFolder> made;  // until it is served: a start that fails leaves no run behind
  if (arguments.run.empty()) made.emplace(new_run(arguments));
  const auto folder = made ? made->path() : resumed_run(arguments);
  ServeOptions options;
  options.folder = folder;
  options.listen = arguments.listen;
  options.announce = arguments.announce;
  options.open = !arguments.local;
  if (arguments.local && options.listen.empty()) options.listen = {"127.0.0.1"};
  ServeScreen screen(folder, arguments, wish);
  options.on_ready = [&](const std::vector<std::string>& addresses) {
    if (made) made->keep();
    if (!arguments.local) screen.ready(addresses);
  };
  if (!arguments.local) {
    options.on_tick = [&](const control::RunStatus& status) { screen.tick(status); };
    options.on_stop = [&] { screen.stopping(); };
    options.on_keepers = [&](size_t count) { screen.keepers(count); };
  }
  const auto end = serve_run(options);
  if (!arguments.local) screen.ended();
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
