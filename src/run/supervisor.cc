#include "run/supervisor.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <set>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/progress.h"
#include "pipeline/step.h"
#include "pipeline/table_file.h"
#include "run/child_process.h"
#include "run/coordinator/admission.h"
#include "run/coordinator/run_store.h"
#include "run/coordinator/serve.h"
#include "run/coordinator_line.h"
#include "run/sample_child.h"

namespace thinpipe {
namespace {

constexpr int kPollMs = 100;
// How often a process may be restarted without a step in between.
constexpr int kMostRestarts = 10;
constexpr Duration kLook = std::chrono::seconds(1);
constexpr Duration kFarewell = std::chrono::seconds(2);
constexpr Duration kRemoteFarewell = std::chrono::seconds(10);
// Of the invite that the hosts get. A machine that has joined comes back without one.
constexpr auto kHostInviteLife = std::chrono::hours(30 * 24);

// The coordinator's events to show to the person; all events are in the run's store.
const std::set<std::string> kShownEvents = {"evaluated", "rollback",    "skipped", "refused",
                                            "paused",    "turned away", "resumed"};

struct Part {
  std::string name = {};              // "the coordinator", "worker 2"
  std::string peer = {};              // of a worker: its name at the coordinator
  std::filesystem::path folder = {};  // of a worker
  std::vector<std::string> arguments = {};
  std::filesystem::path log = {};
  std::optional<ChildProcess> process = std::nullopt;
  int restarts = 0;
};

class Supervisor {
 public:
  Supervisor(const LocalRun& run, const Clock& clock)
      : run_(run), clock_(clock), events_(run.folder), samples_(run.program, run.folder, run.config.train) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signals_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    make_directories(run_.folder / "logs").take();
    coordinator_ = {.name = "the coordinator",
                    .arguments = {"serve", "--local", "--run", run_.folder.string()},
                    .log = run_.folder / "logs" / "serve.log"};
    if (!run_.remote.hosts.empty()) lead_remote();
  }
  ~Supervisor() { ::close(signals_); }

  RunOutcome run() {
    start(coordinator_);
    while (!tend(coordinator_)) {
      if (wait_for_signals()) return leave_at_once();
      if (!place_) {
        find_coordinator();
        continue;
      }
      const int64_t here = remote_ ? 0 : run_.config.pipeline.stages;
      for (int64_t stage = std::ssize(workers_); stage < here; ++stage) add_worker(stage);
      ask();
      if (remote_) tend_remote();
      if (!dashboard_) dashboard_.emplace(run_.program, run_.folder, run_.dashboard);
      if (const auto text = dashboard_->news()) note(*text);
      if (const auto text = samples_.tend(manifest_step_)) note(*text);
      for (auto& worker : workers_) tend(worker);
      look_for_reason_to_stop();
    }
    samples_.end();
    say_goodbye();
    return result();
  }

 private:
  // The coordinator of other machines listens where these can reach it. The dashboard is this process's own.
  void lead_remote() {
    remote_.emplace(run_.remote, run_.config.pipeline.stages, run_.folder / "logs", clock_);
    coordinator_.arguments = {"serve", "--run", run_.folder.string(), "--dashboard", "off"};
    const auto add = [&](const char* option, const std::vector<std::string>& values) {
      for (const auto& value : values) coordinator_.arguments.insert(coordinator_.arguments.end(), {option, value});
    };
    add("--listen", run_.remote.listen);
    add("--announce", run_.remote.announce);
  }

  void tend_remote() {
    if (!remote_->started()) {
      const auto invite = make_invite(*line_, slots_of(run_.remote.hosts), kHostInviteLife, "train --hosts");
      if (!invite) return;  // it may be restarting
      remote_->start(invite.value());
    }
    for (const auto& text : remote_->tend(stop_asked_)) note(text);
  }

  void start(Part& part) {
    if (!part.peer.empty()) {
      // Done at every start, because the folder may be gone.
      const auto authority = CertificateAuthority::open_or_create(authority_folder(run_.folder), place_->run).take();
      const auto status = make_identity(authority, peer_name(part.peer), part.folder / "identity");
      if (!status) throw UserError(fmt::format("{}: {}", part.name, status.error().message));
    }
    part.process = ChildProcess::start(run_.program, part.arguments, part.log).take();
  }

  void add_worker(int64_t stage) {
    const auto folder = run_.folder / "workers" / fmt::format("{}", stage);
    Part part{.name = fmt::format("worker {}", stage),
              .peer = fmt::format("worker-{}", stage),
              .folder = folder,
              .arguments = {"work", "--coordinator", place_->address, "--folder", folder.string()},
              .log = run_.folder / "logs" / fmt::format("worker-{}.log", stage)};
    lend_table(folder);
    start(part);
    workers_.push_back(std::move(part));
  }

  // Links the token table into the worker's folder, so that it need not be downloaded. If that fails, the worker asks
  // the coordinator for it.
  void lend_table(const std::filesystem::path& folder) {
    const auto& hash = run_.config.model.table;
    if (hash.empty() || !make_directories(table_path(folder, hash).parent_path())) return;
    std::error_code ignored;
    std::filesystem::create_hard_link(table_path(run_.folder, hash), table_path(folder, hash), ignored);
  }

  void find_coordinator() {
    const auto place = read_coordinator_place(run_.folder);
    if (place && place.value().pid == coordinator_.process->pid()) place_ = place.value();
  }

  // Waits a moment for a signal. Returns whether the person wants to leave at once.
  bool wait_for_signals() {
    pollfd wait{signals_, POLLIN, 0};
    ::poll(&wait, 1, kPollMs);
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGCHLD) continue;
      interrupted_ = true;
      if (stop_asked_ || !place_) return true;
      stop_asked_ = true;
      note("stopping: a checkpoint is written first; ctrl-C again stops at once");
    }
    return false;
  }

  void look_for_reason_to_stop() {
    const auto now = clock_.now();
    if (!run_.stop_wanted || stop_asked_ || now - looked_ < kLook) return;
    looked_ = now;
    const auto reason = run_.stop_wanted();
    if (!reason) return;
    stop_asked_ = true;
    note(fmt::format("stopping after a checkpoint: {}", *reason));
  }

  // Asks the coordinator for its status, and passes a stop on. No answer is not an error: it may be restarting.
  void ask() {
    if (!line_) line_ = std::make_unique<CoordinatorLine>(operator_access(run_.folder, place_->address));
    const auto stub = line_->stub();
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(500);
    if (stop_asked_ && !stop_told_) {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      control::ControlRequest request;
      request.set_what(control::ControlRequest::STOP);
      control::ControlReply reply;
      stop_told_ = stub->Control(&context, request, &reply).ok();
    }
    grpc::ClientContext context;
    context.set_deadline(deadline);
    control::StatusRequest request;
    request.set_events_after(events_.last());
    control::RunStatus status;
    if (stub->GetStatus(&context, request, &status).ok()) show(status);
  }

  void show(const control::RunStatus& status) {
    if (!progress_) {
      const auto cuts = link_settings(run_.config);
      progress_.emplace(ProgressPlan{run_.config.train.steps, run_.config.pipeline.stages - 1, run_.config.model.d,
                                     status.step(), cuts.empty() ? 0 : cuts.front().forward.rate_bits_per_s},
                        run_.out, run_.live, clock_);
      shown_step_ = status.step();
    }
    for (const auto& text : events_.of(status)) note(text);
    const auto& train = run_.config.train;
    // Only an epoch that has formed shows that the workers can live. From then on a death is bad luck, and what counts
    // is whether steps follow.
    formed_ = formed_ || (status.phase() != "gathering" && status.phase() != "forming");
    if (status.step() != shown_step_) {
      formed_ = true;
      const int64_t steps = std::max<int64_t>(0, status.step() - shown_step_);
      for (auto* part : parts()) part->restarts = 0;
      if (steps > 0) {
        progress_->step({status.step(), status.loss(), steps * train.microbatches * train.microbatch * train.seq_len,
                         status.step_bytes() * static_cast<uint64_t>(steps)});
      }
      shown_step_ = status.step();
    }
    if (status.windows() > 0) progress_->evaluation(status.step(), status.windows_done(), status.windows());
    manifest_step_ = status.manifest_step();
  }

  std::vector<Part*> parts() {
    std::vector<Part*> all{&coordinator_};
    for (auto& worker : workers_) all.push_back(&worker);
    return all;
  }

  void note(const std::string& text) {
    if (progress_) {
      progress_->note(text);
    } else {
      fmt::print(run_.out, "{}\n", text);
      std::fflush(run_.out);
    }
  }

  // Returns whether the process has ended well. Restarts it if a signal has ended it, unless the run is to stop. An
  // exit code other than 0 is a failure that would come again.
  bool tend(Part& part) {
    const auto end = part.process->poll();
    if (!end) return false;
    if (end->exit_code == 0) return true;
    if (end->signal == 0) fail_with(part, *end);
    // The coordinator notices that a stage is gone and stops at the last checkpoint.
    if (stop_asked_ && !part.peer.empty()) return false;
    start_again(part, *end);
    return false;
  }

  void start_again(Part& part, const ChildEnd& end) {
    const bool is_worker = !part.peer.empty();
    if (is_worker && !formed_ && ++early_deaths_ > run_.config.cluster.max_failures) {
      throw UserError(fmt::format("signal {} ({}) ended workers {} times before all stages were connected{}; see {}",
                                  end.signal, ::strsignal(end.signal), early_deaths_,
                                  end.signal == SIGKILL ? ": did the machine run out of memory?" : "",
                                  part.log.string()));
    }
    if (++part.restarts > kMostRestarts) {
      throw UserError(fmt::format("signal {} ({}) ended {} {} times without a step in between; see {}", end.signal,
                                  ::strsignal(end.signal), part.name, part.restarts, part.log.string()));
    }
    if (!is_worker) stop_told_ = false;  // a new coordinator does not know of a stop that was asked for
    note(fmt::format("{} was ended by signal {} ({}); starting it again", part.name, end.signal,
                     ::strsignal(end.signal)));
    start(part);
  }

  [[noreturn]] void fail_with(const Part& part, const ChildEnd& end) {
    auto reason = last_words(part.log);
    const auto outcome = read_outcome(run_.folder);
    // The coordinator's reason is better: it names the stage.
    if (outcome && outcome.value().failed && !outcome.value().reason.empty()) throw UserError(outcome.value().reason);
    if (reason.empty()) reason = fmt::format("exit code {}; see {}", end.exit_code, part.log.string());
    throw UserError(fmt::format("{}: {}{}", part.name, reason, full_disk_advice(run_.folder)));
  }

  // Waits for the workers to end: the coordinator has told them to stop.
  void say_goodbye() {
    const auto deadline = clock_.now() + (remote_ ? kRemoteFarewell : kFarewell);
    const auto still_here = [&] {
      if (remote_) (void)remote_->tend(true);
      return (remote_ && !remote_->all_ended()) ||
             std::any_of(workers_.begin(), workers_.end(), [](Part& one) { return !one.process->poll(); });
    };
    pollfd wait{signals_, POLLIN, 0};
    while (still_here() && clock_.now() < deadline) {
      ::poll(&wait, 1, kPollMs);
      signalfd_siginfo info{};
      while (::read(signals_, &info, sizeof info) > 0) {
      }
    }
    end_workers();  // those that are left
  }

  void end_workers() {
    workers_.clear();
    if (remote_) remote_->end();
  }

  RunOutcome leave_at_once() {
    end_workers();
    coordinator_.process.reset();
    return {.step = std::max<int64_t>(0, shown_step_),
            .manifest_step = std::max<int64_t>(0, manifest_step_),
            .interrupted = true};
  }

  RunOutcome result() {
    auto outcome = read_outcome(run_.folder).take();
    if (outcome.failed) throw UserError(outcome.reason);
    outcome.interrupted = interrupted_;
    if (progress_ && outcome.step > shown_step_ && outcome.step == run_.config.train.steps) {
      const int64_t steps = outcome.step - shown_step_;
      progress_->step({outcome.step, outcome.loss, steps * tokens_per_step(run_.config.train),
                       outcome.step_bytes * static_cast<uint64_t>(steps)});
    }
    return outcome;
  }

  const LocalRun& run_;
  const Clock& clock_;
  int signals_ = -1;
  Part coordinator_;
  std::vector<Part> workers_;
  std::optional<RemoteWorkers> remote_;  // instead of workers_, if the run is on other machines
  std::optional<CoordinatorPlace> place_;
  std::unique_ptr<CoordinatorLine> line_;
  std::optional<DashboardChild> dashboard_;
  std::optional<Progress> progress_;
  EventNotes events_;
  SampleChild samples_;
  int64_t shown_step_ = 0;
  int64_t manifest_step_ = -1;
  bool formed_ = false;   // an epoch, since this supervisor began
  int early_deaths_ = 0;  // of workers, before that
  bool stop_asked_ = false;
  bool stop_told_ = false;
  bool interrupted_ = false;  // by a signal
  TimePoint looked_{};        // for a reason to stop
};

}  // namespace

EventNotes::EventNotes(const std::filesystem::path& run_folder) {
  const auto path = run_folder / "run.sqlite";
  if (std::error_code ignored; !std::filesystem::exists(path, ignored)) return;
  const auto store = RunStore::open(path);
  if (!store) return;  // the coordinator fails for the same reason and reports it
  const auto newest = store.value().events(0, 1);
  if (newest && !newest.value().empty()) last_ = newest.value().back().number();
}

std::vector<std::string> EventNotes::of(const control::RunStatus& status) {
  std::vector<std::string> texts;
  for (const auto& event : status.events()) {
    if (event.number() <= last_) continue;
    if (kShownEvents.contains(event.kind())) texts.push_back(event.text());
    last_ = event.number();
  }
  return texts;
}

RunOutcome run_locally(const LocalRun& run, const Clock& clock) { return Supervisor(run, clock).run(); }

}  // namespace thinpipe
