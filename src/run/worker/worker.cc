#include "run/worker/worker.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"
#include "model/threads.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/stage_worker.h"
#include "run/core/protocol.h"
#include "run/core/worker_core.h"
#include "run/guest.h"
#include "run/worker/control_client.h"
#include "run/worker/held_stage.h"
#include "run/worker/state_files.h"
#include "run/worker/worker_links.h"

namespace thinpipe {
namespace {

constexpr Duration kRunPatience = std::chrono::seconds(60);
constexpr auto kAskPatience = std::chrono::seconds(10);  // for one call
constexpr Duration kStopping = std::chrono::seconds(2);  // a coordinator that stops still answers for a moment
constexpr Duration kHeartbeat = std::chrono::milliseconds(500);
constexpr size_t kMaxRefusalBytes = 500;
constexpr const char* kOutOfMemory =
    "not enough memory for this stage: lower model.d, model.blocks, train.microbatch or train.seq_len";

std::string new_incarnation() {
  return fmt::format("{}-{}", ::getpid(), SystemClock().now().time_since_epoch().count());
}

// False if the person wants to leave before the time is over.
bool wait_for(Duration time, const std::stop_token& leave) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait_for(lock, leave, time, [] { return false; });
  return !leave.stop_requested();
}

bool is_silence(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// None: the person wants to leave before the coordinator has answered.
std::optional<control::RunDescription> ask_for_run(const WorkerOptions& options) {
  const SystemClock clock;
  const auto patience = options.outlives_stop ? std::max<Duration>(options.patience, kRunPatience) : kRunPatience;
  const auto give_up = clock.now() + patience;
  CoordinatorLine line(options.coordinator);
  for (bool told = false;;) {
    line.hang_up();  // another of its addresses may answer now
    const auto stub = line.stub();
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kAskPatience);
    control::RunRequest request;
    request.set_protocol(kControlProtocol);
    control::RunDescription run;
    const std::stop_callback leaving(options.leave, [&context] { context.TryCancel(); });
    const auto status = stub->GetRun(&context, request, &run);
    if (options.leave.stop_requested()) return std::nullopt;
    if (status.ok()) return run;
    if (!is_silence(status) || clock.now() >= give_up) {
      throw UserError(fmt::format("the coordinator at {}: {}", line.where(), status.error_message()));
    }
    if (!std::exchange(told, true)) {
      log_warn("the coordinator at {} does not answer; waiting for it, up to {}; ctrl-C leaves", line.where(),
               format_duration(patience));
    }
  }
}

// What belongs to one Form, except the stage; the next Form replaces it. A link is null until it is connected, and if
// there is no neighbour.
struct Epoch {
  explicit Epoch(const control::Form& form)
      : number(form.epoch()), previous_peer(form.previous().peer()), next_peer(form.next().peer()) {}

  // Ends every wait of the compute thread.
  void end(uint64_t newer, const std::string& reason) {
    forming.request_stop();
    for (auto* link : {previous.get(), next.get()}) {
      if (link == nullptr) continue;
      link->interrupt(newer, reason);
      link->close(reason);
    }
  }

  const uint64_t number;
  const std::string previous_peer, next_peer;
  std::stop_source forming;
  std::unique_ptr<PacketLink> previous, next;
};

// Carries out what its core decides. Threads: the compute thread does the work; ControlClient's two bring messages and
// time to the core. A decision and its effects are one critical section of mutex_, except for sending: a write to the
// network may take a while.
class Worker {
 public:
  Worker(const WorkerOptions& options, control::RunDescription run, RunConfig config)
      : options_(options),
        run_(std::move(run)),
        config_(std::move(config)),
        client_(options.coordinator),
        links_(links_options()),
        files_({options.coordinator, run_.run(), options.folder / "states", config_.checkpoint.mode,
                [this](const std::string& reason) { act([&] { return core_.failed(reason); }); },
                [this] { ++progress_.saved; },
                [this](uint64_t bytes, uint64_t all) {
                  ++progress_.done;
                  if (options_.on_download) options_.on_download(bytes, all);
                }}),
        core_(facts(), SystemClock().now()) {
    use_threads(threads_for(config_));
  }

  // Returns how the work ended.
  End serve() {
    // Often enough that one late heartbeat does not lose the stage.
    const auto heartbeat = std::min<Duration>(kHeartbeat, std::chrono::seconds(config_.cluster.lease_s) / 3);
    client_.start(heartbeat, callbacks());
    {
      const std::stop_callback leaving(options_.leave,
                                       [this] { act([this] { return core_.leave(SystemClock().now()); }); });
      while (const auto work = next_work()) {
        auto result = perform(*work);
        note_share(result);
        act([&] { return core_.done(std::move(result)); });
      }
    }
    client_.stop();
    files_.give_up();
    return *ended_;
  }

 private:
  // ---- decisions and their effects ----

  template <class Decide>
  void act(Decide decide) {
    std::vector<control::FromWorker> said;
    {
      const std::lock_guard lock(mutex_);
      for (auto& effect : decide()) {
        if (auto* say = std::get_if<Say>(&effect)) {
          said.push_back(std::move(say->message));
        } else {
          std::visit([&](auto& one) { carry_out(one); }, effect);
        }
      }
    }
    for (const auto& message : said) {
      if (message.has_trouble()) log_warn("{}", message.trouble().reason());
      client_.say(message);
    }
  }

  // Call these with mutex_ held.
  void carry_out(const Say&) {}
  void carry_out(Work& work) {
    work_ = std::move(work);
    changed_.notify_all();
  }
  void carry_out(const Interrupt& interrupt) {
    if (epoch_ && epoch_->number < interrupt.epoch) epoch_->end(interrupt.epoch, interrupt.reason);
  }
  void carry_out(const CutOff& cut) {
    links_.revoke(cut.peer);
    if (epoch_ && (epoch_->previous_peer == cut.peer || epoch_->next_peer == cut.peer)) {
      epoch_->end(epoch_->number + 1, cut.reason);
    }
  }
  void carry_out(const AnswerProbe& question) {
    links_.pardon(question.probe.peer());  // the coordinator asks about members only
    links_.probe(question.probe, [this](const control::Probed& probed) {
      control::FromWorker answer;
      *answer.mutable_probed() = probed;
      client_.say(answer);
    });
  }
  void carry_out(const End& end) {
    if (!end.failed && !end.resumable) log_info("stop: {}", end.why);
    ended_ = end;
    changed_.notify_all();
  }

  std::optional<Work> next_work() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_ || ended_; });
    return ended_ ? std::nullopt : std::exchange(work_, std::nullopt);
  }

  ControlCallbacks callbacks() {
    return {.connected =
                [this] {
                  const std::lock_guard lock(mutex_);
                  return core_.connected();
                },
            .disconnected =
                [this] {
                  act([this] { return core_.disconnected(SystemClock().now()); });
                  const std::lock_guard lock(mutex_);
                  return !ended_;
                },
            .received = [this](const control::ToWorker& message) { act([&] { return core_.message(message); }); },
            .tick = [this] { act([this] { return core_.tick(heartbeat()); }); }};
  }

  control::Heartbeat heartbeat() const {
    control::Heartbeat beat;
    beat.set_done(progress_.done);
    beat.set_saved(progress_.saved);
    beat.set_waits(static_cast<control::Heartbeat::Wait>(progress_.waits.load()));
    beat.set_windows_done(windows_done_);
    return beat;
  }

  // ---- work, on the compute thread ----

  WorkDone perform(const Work& work) {
    try {
      return std::visit([&](const auto& one) { return do_work(one); }, work);
    } catch (const std::exception& error) {
      // No neighbour caused this: it would happen again.
      return WorkFailed{is_out_of_memory(error) ? kOutOfMemory : error.what(), true};
    }
  }

  void note_share(const WorkDone& result) {
    if (options_.share == nullptr) return;
    auto& share = *options_.share;
    share.bytes_sent += progress_.bytes_sent.exchange(0);
    share.bytes_received += progress_.bytes_received.exchange(0);
    const auto* ready = std::get_if<control::Ready>(&result);
    if (ready != nullptr) share.compute_us += std::llround(1e6 * (ready->forward_s() + ready->backward_s()));
  }

  WorkDone do_work(const TakeSeat& seat) {
    const auto& form = seat.form;
    std::unique_ptr<Epoch> old;  // destroyed without the mutex: closing its links may take a while
    std::stop_token stop;
    {
      const std::lock_guard lock(mutex_);
      old = std::exchange(epoch_, std::make_unique<Epoch>(form));
      stop = epoch_->forming.get_token();
      if (core_.latest_epoch() > form.epoch()) return WorkFailed{"a newer epoch has begun"};
    }
    old.reset();
    if (form.restore()) {
      held_.reset();  // first, because there may not be memory for two
      auto made =
          HeldStage::make(form, {options_.coordinator, run_, config_, options_.folder, data_dir(), &progress_}, files_);
      if (!made) return WorkFailed{made.error().message};
      held_ = std::move(made).take();
    }
    ++progress_.done;
    for (const auto& peer : {form.previous().peer(), form.next().peer()}) links_.pardon(peer);
    std::optional<WorkerLinks::Side> failed_at;
    const auto neighbour = form.has_previous() ? WorkProgress::Waits::kPrevious : WorkProgress::Waits::kNext;
    const WaitingFor shown(form.has_previous() || form.has_next() ? &progress_ : nullptr, neighbour);
    auto links = links_.connect(form, stop, failed_at);
    if (!links) {
      return WorkFailed{.reason = links.error().message,
                        .from_previous = failed_at == WorkerLinks::Side::kPrevious,
                        .from_next = failed_at == WorkerLinks::Side::kNext};
    }
    auto& [previous, next, next_path] = links.value();
    const std::lock_guard lock(mutex_);
    const int64_t stage = form.seat().stage();
    if (previous) epoch_->previous = packet_link(std::move(previous), stage - 1, false, epoch_->previous_peer);
    if (next) epoch_->next = packet_link(std::move(next), stage, true, epoch_->next_peer);
    if (stop.stop_requested()) return WorkFailed{"the epoch ended before its links were connected"};
    held_->worker().connect(epoch_->previous.get(), epoch_->next.get());
    if (options_.share != nullptr) options_.share->stage = stage;
    control::Formed formed;
    if (next_path) *formed.mutable_next() = *next_path;
    return formed;
  }

  WorkDone do_work(const ComputeStep& work) {
    auto& stage = held_->worker();
    stage.set_warmup({work.step.warmup().begin(), work.step.warmup().end()});
    stage.expect_tokens({work.step.ids_sha256().begin(), work.step.ids_sha256().end()});
    // Counted now, because all stages have received what the steps before sent. After the step, its last packets may
    // still be in an outbox.
    const uint64_t socket_bytes = links_.socket_bytes_sent();
    auto ready = stage.run_step(work.step.epoch(), work.step.step());
    if (!ready) return step_failure(ready.error());
    ready.value().set_socket_bytes(socket_bytes);
    ready.value().set_dropped_packets(dropped_packets());
    return std::move(ready).take();
  }

  // Names the neighbours whose links have failed.
  WorkFailed step_failure(const Error& error) const {
    const auto failed = [](const auto& link) { return link != nullptr && link->failed(); };
    return {.reason = error.message, .from_previous = failed(epoch_->previous), .from_next = failed(epoch_->next)};
  }

  WorkDone do_work(const ApplyCommit& work) {
    auto& stage = held_->worker();
    stage.commit(work.commit);
    if (config_.model.is_subspace() && stage.basis_version() != work.commit.basis_version()) {
      return WorkFailed{fmt::format("the basis has version {} after a commit that names version {}",
                                    stage.basis_version(), work.commit.basis_version()),
                        true};
    }
    if (options_.share != nullptr) ++options_.share->steps;
    return WorkOk{};
  }

  WorkDone do_work(const ComputeLoss& work) {
    const auto& evaluate = work.evaluate;
    const auto loss_sum = held_->worker().evaluate(evaluate.epoch(), evaluate.step(), evaluate.windows(),
                                                   [this](int64_t done) { windows_done_ = done; });
    windows_done_ = 0;
    if (!loss_sum) return step_failure(loss_sum.error());
    control::Evaluated evaluated;
    evaluated.set_loss_sum(loss_sum.value());
    return evaluated;
  }

  WorkDone do_work(const SaveState& work) {
    if (auto status = files_.save(held_->worker(), held_->saved_units(), work.save); !status) {
      return WorkFailed{status.error().message, true};
    }
    return WorkOk{};
  }

  // ---- its parts ----

  WorkerFacts facts() const {
    const auto& coordinator = options_.coordinator;
    return {.run = run_.run(),
            .coordinator = fmt::format("{}", fmt::join(coordinator.addresses, ", ")),
            .config_sha256 = run_.config_sha256(),
            .stages = config_.pipeline.stages,
            .blocks = config_.model.blocks,
            .peer = coordinator.peer,
            .incarnation = new_incarnation(),
            .addresses = links_.addresses(),
            .machine = options_.machine,
            .keeps_model = options_.keeps_model,
            .patience = options_.patience};
  }

  WorkerLinksOptions links_options() {
    return {run_.run(),
            options_.coordinator,
            options_.listen,
            options_.announce,
            max_payload_bytes(config_, run_.vocab()),
            [this](const std::string& reason) {
              log_warn("refused a connection: {}", reason);
              control::FromWorker message;
              message.mutable_refused()->set_reason(reason.substr(0, kMaxRefusalBytes));
              client_.say(message);
            },
            options_.lines};
  }

  std::unique_ptr<PacketLink> packet_link(std::unique_ptr<Link> link, int64_t cut, bool down,
                                          const std::string& neighbour) {
    if (options_.wrap_link) link = options_.wrap_link(std::move(link));
    const auto settings = link_settings(config_)[static_cast<size_t>(cut)];
    auto rules = packet_rules(config_, run_.vocab(), cut);
    rules.neighbour = neighbour;
    return std::make_unique<PacketLink>(std::move(link), std::move(rules), epoch_->number,
                                        down ? settings.forward : settings.backward, config_.train.seed);
  }

  uint64_t dropped_packets() const {
    uint64_t dropped = 0;
    for (const auto* link : {epoch_->previous.get(), epoch_->next.get()}) {
      if (link != nullptr) dropped += link->meter().dropped_old + link->meter().dropped_repeated;
    }
    return dropped;
  }

  const WorkerOptions options_;
  const control::RunDescription run_;
  const RunConfig config_;
  WorkProgress progress_;
  ControlClient client_;  // before every member that may send messages
  WorkerLinks links_;
  StateFiles files_;

  std::mutex mutex_;
  std::condition_variable changed_;
  WorkerCore core_;
  std::optional<Work> work_;  // for the compute thread
  std::optional<End> ended_;
  std::unique_ptr<Epoch> epoch_;  // replaced by the compute thread

  std::atomic<int64_t> windows_done_ = 0;  // of the evaluation under way

  std::unique_ptr<HeldStage> held_;  // compute thread only
};

}  // namespace

Result<std::string> run_worker(const WorkerOptions& options) {
  std::shared_ptr<void> watched;
  while (true) {
    auto answer = ask_for_run(options);
    if (!answer) return std::string();
    auto run = std::move(*answer);
    auto config = parse_config(run.config_toml(), "the coordinator's config");
    config.train.threads = threads_within(config.train.threads, options.most_threads);
    if (auto same = check_seed_numbers(config, run.vocab(), run.seed_numbers_sha256()); !same) {
      return Error{same.error().message + "; use the run's build of thinpipe"};
    }
    watched.reset();
    if (options.on_run) watched = options.on_run(run, config);
    End end;
    {
      Worker worker(options, std::move(run), std::move(config));
      end = worker.serve();
    }
    if (end.retry_after > Duration{}) {
      log_warn("{}; waiting", end.why);
      if (!wait_for(end.retry_after, options.leave)) return std::string();
    } else if (end.failed) {
      return Error{end.why};
    } else if (end.resumable && options.outlives_stop) {
      log_warn("{}; waiting up to {} until the run is served again; ctrl-C leaves", end.why,
               format_duration(options.patience));
      if (!wait_for(kStopping, options.leave)) return std::string();
    } else if (!end.outdated) {
      return end.why;
    }
  }
}

}  // namespace thinpipe
