// thinpipe join: holds a stage of somebody's run. thinpipe doctor: checks whether this machine could.
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/units.h"
#include "commands.h"
#include "config/config_file.h"
#include "net/addresses.h"
#include "net/capped_lines.h"
#include "pipeline/progress.h"
#include "run/guest_run.h"
#include "run/join.h"
#include "run/presence.h"
#include "run/worker/worker.h"

namespace thinpipe {
namespace {

constexpr auto kNotableSilence = std::chrono::seconds(3);

std::string describe(const RunConfig& config) {
  const auto& model = config.model;
  return fmt::format("a {} model, d = {}, {} blocks in {} stage(s)", model.is_subspace() ? "subspace" : "dense",
                     model.d, model.blocks, config.pipeline.stages);
}

// An argument of "-" reads standard input: other users of the machine can see arguments.
Invite read_invite(const std::string& argument) {
  std::string text = argument;
  if (argument == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  return parse_invite(text).take();
}

std::string default_name() {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') return "host";
  return host;
}

// Asks the coordinator for the run's progress now and then, while the worker works. Says so when nobody answers.
class Watcher {
 public:
  Watcher(CoordinatorAccess access, std::string run, const RunConfig& config)
      : run_(std::move(run)), config_(config), line_(std::move(access)), heard_(clock_.now()) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any sleep;
      while (!sleep.wait_for(lock, stop, std::chrono::milliseconds(500), [] { return false; }) &&
             !stop.stop_requested()) {
        look();
      }
    });
  }

 private:
  void look() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    control::StatusRequest request;
    request.set_events_after(std::numeric_limits<int64_t>::max());  // none of them
    control::RunStatus status;
    const auto stub = line_.stub();
    if (!stub->GetStatus(&context, request, &status).ok()) return miss();
    if (!progress_) begin(status.step());
    if (std::exchange(missed_, false)) progress_->note("the coordinator answers again");
    heard_ = clock_.now();
    show(status);
  }

  void begin(int64_t step) {
    const auto cuts = link_settings(config_);
    progress_.emplace(ProgressPlan{config_.train.steps, config_.pipeline.stages - 1, config_.model.d, step,
                                   cuts.empty() ? 0 : cuts.front().forward.rate_bits_per_s},
                      stdout, ::isatty(STDOUT_FILENO) != 0, clock_);
    shown_ = step;
    progress_->note(fmt::format("run {}: {}; {} steps, of which {} are done", run_.substr(0, 8), describe(config_),
                                config_.train.steps, step));
  }

  // One lost answer means nothing.
  void miss() {
    const auto silent = std::chrono::duration_cast<std::chrono::seconds>(clock_.now() - heard_);
    if (silent < kNotableSilence) return;
    if (!progress_) begin(0);
    missed_ = true;
    progress_->wait(fmt::format("the coordinator has not answered for {}; still trying", format_duration(silent)));
  }

  void show(const control::RunStatus& status) {
    const auto& train = config_.train;
    if (const auto text = fmt::format("{}: {}", status.phase(), status.why());
        status.phase() == "gathering" && text != said_) {
      progress_->note(text);
      said_ = text;
    }
    const int64_t steps = status.step() - shown_;
    shown_ = status.step();
    if (steps > 0) {
      progress_->step({status.step(), status.loss(), steps * train.microbatches * train.microbatch * train.seq_len,
                       status.step_bytes() * static_cast<uint64_t>(steps)});
    }
  }

  const std::string run_;
  const RunConfig config_;
  CoordinatorLine line_;
  const SystemClock clock_;
  std::optional<Progress> progress_;
  TimePoint heard_;
  bool missed_ = false;
  int64_t shown_ = 0;
  std::string said_;
  std::jthread thread_;
};

// The first ctrl-C leaves after a checkpoint; the second leaves at once.
class LeaveOnSignal {
 public:
  LeaveOnSignal() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // before other threads start, because they inherit it
    thread_ = std::thread([this] {
      int signal = 0;
      while (::sigwait(&signals_, &signal) == 0 && signal != SIGUSR1) {
        if (leave_.stop_requested()) ::_exit(130);
        above_live_line(
            [] { fmt::print(stderr, "\nleaving after a checkpoint; press ctrl-C again to leave at once\n"); });
        leave_.request_stop();
      }
    });
  }
  ~LeaveOnSignal() {
    ::pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  std::stop_token token() const { return leave_.get_token(); }

 private:
  sigset_t signals_{};
  std::stop_source leave_;
  std::thread thread_;
};

void refuse_if_unfit(const std::vector<Check>& checks) {
  fmt::print("{}", render(checks));
  std::fflush(stdout);
  for (const auto& check : checks) {
    if (check.verdict == Verdict::kRefusal)
      throw UserError(fmt::format("{}: {}; {}", check.name, check.text, check.remedy));
  }
}

void show_download(uint64_t have, uint64_t all) {
  if (have != all && ::isatty(STDOUT_FILENO) == 0) return;
  fmt::print("\rdownloading the stage: {} of {}{}", format_size(have), format_size(all), have == all ? "\n" : "");
  std::fflush(stdout);
}

void refuse_to_listen_with_caps(const GuestLimits& limits, const JoinArguments& arguments) {
  if (!limits.caps_the_line() || (arguments.listen.empty() && arguments.announce.empty())) return;
  throw UserError(
      "--max-upload, --max-download: a machine with a cap dials its neighbours and is not dialled; leave out --listen "
      "and --announce");
}

// The lines of a machine whose owner caps them, and the ways through them to the coordinator.
class CappedJoin {
 public:
  CappedJoin(const GuestLimits& limits, CoordinatorAccess& access) {
    if (!limits.caps_the_line()) return;
    lines_ = std::make_unique<CappedLines>(LineCaps{limits.max_upload_bits_per_s, limits.max_download_bits_per_s});
    for (const auto& address : access.addresses) {
      ways_.push_back(lines_->way_to(address).take());
      access.dialled.push_back(ways_.back()->address());
    }
  }
  CappedLines* lines() const { return lines_.get(); }

 private:
  std::unique_ptr<CappedLines> lines_;
  std::vector<std::unique_ptr<CappedLines::Way>> ways_;  // of the coordinator's addresses; before the lines end
};

// For the person, and for `thinpipe status`.
void tell(const std::filesystem::path& folder, const std::string& text) {
  (void)write_presence(folder, text);
  if (text == kTakesPart) return;
  above_live_line([&] { fmt::print("{}\n", text); });
  std::fflush(stdout);
}

}  // namespace

void join(const JoinArguments& arguments) {
  LeaveOnSignal signals;
  const auto invite = read_invite(arguments.invite);
  for (const auto& address : arguments.announce) check_address(address).take();
  const auto folder = join_folder(invite.run);
  const auto guest = merged_guest_options(folder, arguments.guest).take();
  const auto limits = limits_of(guest).take();
  refuse_to_listen_with_caps(limits, arguments);
  // A mere check may run beside a join.
  const auto lock = arguments.check_only ? Fd() : lock_folder(folder).take();
  if (!lock && !arguments.check_only) {
    throw UserError(fmt::format(
        "{}: another `thinpipe join` takes part in this run from here; to hold two stages on one machine, give the "
        "second one a folder of its own with THINPIPE_DATA_DIR",
        folder.string()));
  }
  be_nice(limits.nice);
  auto access = earlier_access(invite);
  std::optional<JoinLook> seen;
  JoinChecks checks;
  if (!access || arguments.check_only) {
    seen = look(invite);
    fmt::print("run {}: {}\n", invite.run.substr(0, 8), seen->reply.why());
    checks = check_machine(*seen, folder, limits);
    refuse_if_unfit(checks.checks);
    if (arguments.check_only) return;
    access = enrol(invite, seen->address, arguments.name.empty() ? default_name() : arguments.name);
  }
  fmt::print("joined as {}\n", access->peer);
  std::fflush(stdout);
  keep_guest_options(folder, guest).take();
  CappedJoin capped(limits, *access);
  WorkerOptions options;
  options.coordinator = *access;
  options.lines = capped.lines();
  options.most_threads = limits.threads;
  options.folder = folder;
  options.listen = arguments.listen;
  if (options.listen.empty()) options.listen = {options.lines != nullptr ? "127.0.0.1" : any_address()};
  options.announce = arguments.announce;
  options.machine = within(checks.machine, limits);
  options.on_download = show_download;
  options.on_run = [&](const std::string& run, const RunConfig& config) {
    refuse_if_no_stage_fits(config, limits);
    return std::make_shared<Watcher>(*access, run, config);
  };
  const auto take_part = [&](const std::stop_token& leave) {
    options.leave = leave;
    run_worker(options).take();
  };
  take_part_with_breaks(limits, signals.token(), take_part, [&](const std::string& text) { tell(folder, text); });
  fmt::print("left the run; this machine's files are in {}\n", folder.string());
}

void doctor(const std::string& invite_text, const std::string& config_path) {
  if (!invite_text.empty()) {
    const auto invite = read_invite(invite_text);
    const auto seen = look(invite);
    fmt::print("run {}: {}\n", invite.run.substr(0, 8), seen.reply.why());
    return refuse_if_unfit(check_machine(seen, join_folder(invite.run)).checks);
  }
  const auto config = config_path.empty() ? parse_config("", "the defaults") : load_config(config_path);
  refuse_if_unfit(check_machine_alone(config, config.data.vocab, data_dir()).checks);
}

}  // namespace thinpipe
