// thinpipe join: holds a stage of somebody's run. thinpipe doctor: checks whether this machine could.
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "commands.h"
#include "config/config_file.h"
#include "keep_model.h"
#include "net/addresses.h"
#include "net/capped_lines.h"
#include "pipeline/progress.h"
#include "pipeline/step.h"
#include "run/guest_run.h"
#include "run/input_watch.h"
#include "run/join.h"
#include "run/presence.h"
#include "run/run_files.h"
#include "run/run_view.h"
#include "run/worker/worker.h"

namespace thinpipe {
namespace {

constexpr auto kNotableSilence = std::chrono::seconds(3);
constexpr auto kRedialEvery = std::chrono::minutes(1);
constexpr auto kKeepEvery = std::chrono::seconds(10);
constexpr auto kMostWait = std::chrono::hours(24 * 365);
constexpr size_t kMostNameColumns = 60;  // the organiser may have called it anything

std::string describe(const RunConfig& config) {
  const auto& model = config.model;
  return fmt::format("a {} model, d = {}, {} blocks in {}", model.is_subspace() ? "subspace" : "dense", model.d,
                     model.blocks, counted(config.pipeline.stages, "stage"));
}

// An argument of "-" reads standard input: other users of the machine can see arguments.
Invite read_invite(const std::string& argument) {
  std::string text = argument;
  if (argument == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  return parse_invite(text).take();
}

// With --leave-with-input, more follows the invite's line.
Invite read_invite(const JoinArguments& arguments) {
  if (!arguments.leave_with_input) return read_invite(arguments.invite);
  if (arguments.invite != "-") {
    throw UserError("--leave-with-input: needs the invite on standard input: thinpipe join - --leave-with-input");
  }
  std::string line;
  std::getline(std::cin, line);
  return parse_invite(line).take();
}

// The program that has started this one is gone, and nobody else would end it. A frozen coordinator must not hold it
// up.
[[noreturn]] void leave_at_once(const std::string& reason) {
  const auto line = fmt::format("thinpipe: left at once: {}\n", reason);
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(130);
}

// Only one `join` may take part in a run from a folder. An earlier one whose connection hangs may still be there, but
// not for long.
Fd lock_for(const std::filesystem::path& folder, bool wait) {
  const SystemClock clock;
  const auto deadline = clock.now() + 2 * kInputSilence;
  while (true) {
    auto lock = lock_folder(folder).take();
    if (lock) return lock;
    if (!wait || clock.now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  throw UserError(fmt::format(
      "another `thinpipe join` takes part in this run from here; to hold two stages on one machine, give the second "
      "one a folder of its own with THINPIPE_DATA_DIR ({} is in use)",
      folder.string()));
}

std::string default_name() {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') return "host";
  return host;
}

std::string name_and_id(const std::string& name, const std::string& run) {
  const auto id = one_line(run.substr(0, 8));
  return name.empty() ? id : fmt::format("{} ({})", first_columns(one_line(name), kMostNameColumns), id);
}

// What this machine has done for a run, this time and before. Kept in joined.json for `thinpipe runs` and for the next
// visit. For one thread at a time.
class Visit {
 public:
  // run: its name, if the coordinator has told it already.
  Visit(std::filesystem::path folder, const Invite& invite, const CoordinatorAccess& access, const std::string& run)
      : folder_(std::move(folder)) {
    if (auto before = read_joined_run(folder_)) before_ = std::move(before).value();
    now_ = before_;
    now_.run = invite.run;
    now_.peer = access.peer;
    now_.addresses = access.addresses;
    now_.ended.clear();
    if (!run.empty()) now_.name = first_columns(one_line(run), kMostNameColumns);
    keep();  // the hours of this machine may begin much later
  }

  WorkerShare& share() { return share_; }
  const JoinedRun& before() const { return before_; }
  const std::string& name() const { return now_.name; }

  void begin(const control::RunDescription& run, const RunConfig& config) {
    now_.name = first_columns(one_line(run.name()), kMostNameColumns);
    now_.stages = config.pipeline.stages;
    now_.steps = config.train.steps;
    tokens_per_step_ = tokens_per_step(config.train);
    keep();
  }
  // What lies between depart() and the next arrive() is a break: no time in the run.
  void arrive() { arrived_ = clock_.now(); }
  void depart() {
    before_breaks_ = spent();
    arrived_.reset();
  }
  // The coordinator does not answer. hear(): it does, and returns whether that is news.
  void miss() { missed_ = true; }
  bool hear() { return std::exchange(missed_, false); }
  // Called often; writes now and then.
  void note_step(int64_t step) {
    now_.step = step;
    const bool moved = share_.stage != kept_stage_;
    if (moved || clock_.now() - kept_at_ >= kKeepEvery) keep();
  }
  void end(const std::string& why) {
    now_.ended = why;
    keep();
  }
  void keep_model(const std::filesystem::path& model) {
    now_.model = model.string();
    keep();
  }

  // Empty if it has done nothing yet.
  std::string summary() const {
    const int64_t steps = share_.steps;
    if (steps == 0) return "";
    const auto whole_seconds = [](Duration time) {
      return format_duration(std::chrono::duration_cast<std::chrono::seconds>(time));
    };
    auto text = fmt::format(
        "this machine took part in {} as stage {}: {} tokens, {} sent, {} received, {}, of which it computed "
        "{}",
        counted(steps, "step"), share_.stage.load(), steps * tokens_per_step_, format_size(share_.bytes_sent),
        format_size(share_.bytes_received), whole_seconds(spent()),
        whole_seconds(std::chrono::microseconds(share_.compute_us)));
    if (before_.steps_here > 0) text += fmt::format("; with earlier visits, in {} steps", before_.steps_here + steps);
    return text;
  }

 private:
  Duration spent() const { return before_breaks_ + (arrived_ ? clock_.now() - *arrived_ : Duration{}); }
  void keep() {
    const int64_t steps = share_.steps;
    kept_stage_ = share_.stage;
    kept_at_ = clock_.now();
    if (kept_stage_ >= 0) now_.stage = kept_stage_;
    now_.steps_here = before_.steps_here + steps;
    now_.tokens_here = before_.tokens_here + steps * tokens_per_step_;
    now_.seconds_here = before_.seconds_here + spent() / std::chrono::seconds(1);
    now_.bytes_sent = before_.bytes_sent + share_.bytes_sent;
    now_.bytes_received = before_.bytes_received + share_.bytes_received;
    if (const auto status = write_joined_run(folder_, now_); !status) log_debug("{}", status.error().message);
  }

  const SystemClock clock_;
  const std::filesystem::path folder_;
  std::optional<TimePoint> arrived_;  // none: not in the run now
  Duration before_breaks_{};          // the time in it until the last break
  JoinedRun before_, now_;
  WorkerShare share_;
  bool missed_ = false;
  int64_t tokens_per_step_ = 0;
  int64_t kept_stage_ = -1;
  TimePoint kept_at_{};
};

// Asks the coordinator for the run's progress now and then, while the worker works. Says so when nobody answers.
class Watcher {
 public:
  Watcher(CoordinatorAccess access, const control::RunDescription& run, const RunConfig& config, Visit& visit)
      : run_(name_and_id(run.name(), run.run())),
        config_(config),
        peer_(access.peer),
        line_(std::move(access)),
        visit_(visit),
        heard_(clock_.now()) {
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
    const int64_t step = std::clamp<int64_t>(status.step(), 0, config_.train.steps);
    if (!view_) begin(step);
    if (visit_.hear()) view_->note("the coordinator answers again");
    heard_ = clock_.now();
    view_->show(status);
    visit_.note_step(step);
  }

  void begin(int64_t step) {
    view_.emplace(config_, step, RunAudience{peer_, "the run waits for the others", "its organiser can continue it"},
                  stdout, ::isatty(STDOUT_FILENO) != 0, clock_);
    view_->note(fmt::format("run {}: {}; {} steps of {} tokens, of which {} are done", run_, describe(config_),
                            config_.train.steps, tokens_per_step(config_.train), step));
  }

  // One lost answer means nothing.
  void miss() {
    const auto silent = clock_.now() - heard_;
    if (silent < kNotableSilence) return;
    if (clock_.now() - dialled_ > kRedialEvery) {
      line_.hang_up();  // another of its addresses may answer now
      dialled_ = clock_.now();
    }
    if (!view_) begin(0);
    visit_.miss();
    view_->silent(silent);
  }

  const std::string run_;
  const RunConfig config_;
  const std::string peer_;
  CoordinatorLine line_;
  const SystemClock clock_;
  Visit& visit_;
  std::optional<RunView> view_;
  TimePoint heard_, dialled_{};
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
  fmt::print("{}", render(checks, room_of(stdout)));
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
  above_live_line([&] { say("{}\n", text); });
  std::fflush(stdout);
}

Duration parse_wait(const std::string& text) {
  const auto wait = parse_duration(text);
  if (wait && wait.value() >= Duration{} && wait.value() <= kMostWait) return wait.value();
  throw UserError(fmt::format("--wait {}: needs a time like 30min, 2h or 1d, of at most {} days; 0: do not wait", text,
                              kMostWait / std::chrono::hours(24)));
}

std::string welcome_back(const JoinedRun& before, const std::string& peer) {
  auto text = fmt::format("back in the run{} as {}", before.name.empty() ? "" : " " + before.name, peer);
  if (before.stage >= 0) {
    text += fmt::format("; this machine held stage {} and took part in {}", before.stage,
                        counted(before.steps_here, "step"));
  }
  return text;
}

// One stay in the run, with the breaks that the owner wants. Says what this machine did and how it ended, whatever the
// end is.
void stay_until_the_end(WorkerOptions options, const GuestLimits& limits, Visit& visit, const std::stop_token& person) {
  const auto conclude = [&](const std::string& end) {
    visit.end(end);
    if (const auto done = visit.summary(); !done.empty()) say("{}\n", done);
    std::fflush(stdout);
  };
  std::string why;
  const auto take_part = [&](const std::stop_token& leave) {
    options.leave = leave;
    visit.arrive();
    why = run_worker(options).take();
    visit.depart();
  };
  try {
    take_part_with_breaks(limits, person, take_part, [&](const std::string& text) { tell(options.folder, text); });
    const auto end = person.stop_requested() ? "left the run" : fmt::format("the run has ended: {}", why);
    conclude(end);
    say("{}; ", end);
  } catch (const UserError& error) {
    conclude(error.what());
    throw;
  }
}

}  // namespace

void join(const JoinArguments& arguments) {
  const auto wait = parse_wait(arguments.wait);
  LeaveOnSignal signals;
  const auto invite = read_invite(arguments);
  std::optional<InputWatch> input;
  if (arguments.leave_with_input) input.emplace(STDIN_FILENO, kInputSilence, leave_at_once);
  for (const auto& address : arguments.announce) check_address(address).take();
  const auto folder = join_folder(invite.run);
  const auto guest = merged_guest_options(folder, arguments.guest).take();
  const auto limits = limits_of(guest).take();
  refuse_to_listen_with_caps(limits, arguments);
  // A mere check may run beside a join.
  const auto lock = arguments.check_only ? Fd() : lock_for(folder, arguments.leave_with_input);
  be_nice(limits.nice);
  auto access = earlier_access(invite);
  const bool returns = access.has_value();
  std::optional<JoinLook> seen;
  JoinChecks checks;
  if (!access || arguments.check_only) {
    seen = look(invite);
    const auto& run = seen->reply.run();
    say("run {}: {}\n", name_and_id(run.name(), invite.run), one_line(seen->reply.why()));
    if (arguments.keep_model) refuse_if_not_kept(run);
    checks = check_machine(*seen, folder, limits);
    refuse_if_unfit(checks.checks);
    if (arguments.check_only) return;
    access = enrol(invite, seen->address, arguments.name.empty() ? default_name() : arguments.name);
  }
  Visit visit(folder, invite, *access, seen ? seen->reply.run().name() : "");
  say("{}\n", returns ? welcome_back(visit.before(), access->peer) : fmt::format("joined as {}", access->peer));
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
  options.share = &visit.share();
  options.outlives_stop = wait > Duration{};
  if (options.outlives_stop) options.patience = wait;
  options.keeps_model = arguments.keep_model;
  KeptModel kept{.wanted = arguments.keep_model, .fetch = {.coordinator = *access, .folder = folder}};
  kept.fetch.stop = signals.token();
  options.on_run = [&](const control::RunDescription& run, const RunConfig& config) {
    refuse_if_no_stage_fits(config, limits);
    if (arguments.keep_model) refuse_if_not_kept(run);
    kept.fetch.run = run;
    kept.fetch.config = config;
    visit.begin(run, config);
    return std::make_shared<Watcher>(*access, run, config, visit);
  };
  stay_until_the_end(std::move(options), limits, visit, signals.token());
  say("this machine's files are in {}\n", folder.string());
  std::fflush(stdout);
  if (kept.wanted && !signals.token().stop_requested()) visit.keep_model(keep_model(kept, visit.before().model));
}

void doctor(const std::string& invite_text, const std::string& config_path) {
  if (!invite_text.empty()) {
    const auto invite = read_invite(invite_text);
    const auto seen = look(invite);
    say("run {}: {}\n", name_and_id(seen.reply.run().name(), invite.run), one_line(seen.reply.why()));
    return refuse_if_unfit(check_machine(seen, join_folder(invite.run)).checks);
  }
  const auto config = config_path.empty() ? parse_config("", "the defaults") : load_config(config_path);
  refuse_if_unfit(check_machine_alone(config, config.data.vocab, data_dir()).checks);
}

}  // namespace thinpipe
