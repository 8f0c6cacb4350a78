#include "run/worker/worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/result.h"
#include "config/config_file.h"
#include "net/shaped_link.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "run/core/coordinator_core.h"
#include "run/worker/control_client.h"
#include "run/worker/remote_batches.h"
#include "run/worker/state_files.h"
#include "run/worker/worker_links.h"
#include "text/prepared.h"

namespace thinpipe {
namespace {

constexpr auto kRunPatience = std::chrono::seconds(60);
constexpr Duration kHeartbeat = std::chrono::seconds(1);
constexpr size_t kMaxRefusalBytes = 500;
constexpr const char* kOutOfMemory =
    "not enough memory for this stage: lower model.d, model.blocks, train.microbatch or train.seq_len";

std::string new_incarnation() {
  return fmt::format("{}-{}", ::getpid(), SystemClock().now().time_since_epoch().count());
}

control::RunDescription ask_for_run(const CoordinatorAccess& coordinator) {
  CoordinatorLine line(coordinator);
  const auto stub = line.stub();
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kRunPatience);
  control::RunRequest request;
  request.set_protocol(kControlProtocol);
  control::RunDescription run;
  const auto status = stub->GetRun(&context, request, &run);
  if (!status.ok()) throw UserError(fmt::format("the coordinator at {}: {}", line.where(), status.error_message()));
  return run;
}

// A prepared corpus with that identity among those this machine has, else windows from the coordinator.
std::unique_ptr<Batches> token_source(const WorkerOptions& options, const control::RunDescription& run,
                                      const RunConfig& config) {
  if (const auto corpus = prepared_with_id(run.corpus_id(), data_dir()))
    return std::make_unique<BatchSource>(*corpus, config.train);
  log_info("no copy of the corpus here: token windows come from the coordinator");
  return std::make_unique<RemoteBatches>(options.coordinator, run.run(), config.train, run.vocab());
}

class Worker {
 public:
  Worker(const WorkerOptions& options, control::RunDescription run)
      : options_(options),
        run_(std::move(run)),
        config_(parse_config(run_.config_toml(), "the coordinator's config")),
        incarnation_(new_incarnation()),
        links_(links_options()),
        files_({options.coordinator, run_.run(), options.folder / "states", config_.checkpoint.mode,
                [this](const std::string& reason) { complain(reason, true); }, options.on_download}) {
    at::set_num_threads(threads_for(config_));
  }

  // The coordinator's run is carried out otherwise than this worker was told when it came: it must ask anew.
  bool outdated() const { return outdated_; }

  Status serve() {
    // Often enough that one that is late does not cost the stage.
    const auto heartbeat = std::min<Duration>(kHeartbeat, std::chrono::seconds(config_.cluster.lease_s) / 3);
    ControlClient client(
        {options_.coordinator, heartbeat}, [this] { return hello(); },
        [this](const control::ToWorker& message) { interrupt_for(message); });
    {
      const std::lock_guard lock(client_mutex_);
      client_ = &client;
    }
    const std::stop_callback leaving(options_.leave, [&] {
      control::FromWorker message;
      message.mutable_leave();
      client.say(message);
    });
    auto status = obey_until_stop(client);
    files_.give_up();  // its thread may complain to the client
    const std::lock_guard lock(client_mutex_);
    client_ = nullptr;
    return status;
  }

 private:
  WorkerLinksOptions links_options() {
    size_t largest = 0;
    for (int64_t cut = 0; cut + 1 < config_.pipeline.stages; ++cut) {
      largest = std::max(largest, packet_rules(config_, run_.vocab(), cut, run_tag(run_.run())).max_payload_bytes);
    }
    const int64_t capacity = queue_capacity(config_.train);
    return {run_.run(),
            options_.coordinator,
            options_.listen,
            options_.announce,
            {capacity, capacity, largest + kPacketHeaderBytes},
            [this](const std::string& reason) {
              log_warn("turned away: {}", reason);
              control::FromWorker message;
              message.mutable_refused()->set_reason(reason.substr(0, kMaxRefusalBytes));
              say(message);
            }};
  }

  // From any thread, also when nobody listens yet or any more.
  void say(const control::FromWorker& message) {
    const std::lock_guard lock(client_mutex_);
    if (client_ != nullptr) client_->say(message);
  }

  control::Hello hello() {
    const std::lock_guard lock(mutex_);
    control::Hello hello;
    hello.set_protocol(kControlProtocol);
    hello.set_peer(options_.coordinator.peer);
    hello.set_incarnation(incarnation_);
    for (const auto& address : links_.addresses()) hello.add_data_addresses(address);
    *hello.mutable_machine() = options_.machine;
    hello.set_leaving(options_.leave.stop_requested());
    if (holding_) *hello.mutable_holding() = *holding_;
    return hello;
  }

  // On the client's thread: what the compute thread may be waiting for will not come any more.
  void interrupt_for(const control::ToWorker& message) {
    if (message.has_probe()) {
      links_.probe(message.probe(), [this](const control::Probed& probed) {
        control::FromWorker answer;
        *answer.mutable_probed() = probed;
        say(answer);
      });
    }
    if (message.has_revoked()) cut_off(message.revoked());
    const bool stop = message.has_stop();
    if (!stop && !message.has_form()) return;
    const std::lock_guard lock(mutex_);
    latest_epoch_ = stop ? UINT64_MAX : message.form().epoch();
    const auto reason =
        stop ? std::string("the run has stopped") : fmt::format("epoch {} has begun", latest_epoch_.load());
    for (const auto& link : {previous_, next_}) {
      if (!link) continue;
      link->interrupt(latest_epoch_, reason);
      link->close(reason);  // every epoch has links of its own; this one's may have no room for a send() that waits
    }
    forming_.request_stop();
  }

  void cut_off(const control::Revoked& revoked) {
    links_.revoke(revoked.peer());
    const std::lock_guard lock(mutex_);
    if (previous_ && previous_peer_ == revoked.peer()) previous_->close(revoked.reason());
    if (next_ && next_peer_ == revoked.peer()) next_->close(revoked.reason());
  }

  Status obey_until_stop(ControlClient& client) {
    while (true) {
      const auto message = TRY(client.next());
      if (message.has_stop()) {
        log_info("stop: {}", message.stop().reason());
        return {};
      }
      if (message.has_form() && message.form().config_sha256() != run_.config_sha256()) {
        log_info("the run goes on with another config: asking for it");
        outdated_ = true;
        return {};
      }
      try {
        obey(message);
      } catch (const std::exception& error) {
        // Not a neighbour's doing: the same would happen again.
        complain(is_out_of_memory(error) ? kOutOfMemory : error.what(), true);
      }
    }
  }

  void obey(const control::ToWorker& message) {
    if (message.has_form()) {
      if (message.form().epoch() >= latest_epoch_) form(message.form());
    } else if (message.has_run_step()) {
      if (message.run_step().epoch() == latest_epoch_) run_step(message.run_step());
    } else if (message.has_commit()) {
      commit(message.commit());
    } else if (message.has_evaluate()) {
      if (message.evaluate().epoch() == latest_epoch_) evaluate(message.evaluate());
    } else if (message.has_save()) {
      save(message.save());
    }
  }

  void complain(const std::string& reason, bool fatal) {
    log_warn("{}", reason);
    control::FromWorker message;
    message.mutable_trouble()->set_epoch(epoch_);
    message.mutable_trouble()->set_reason(reason);
    message.mutable_trouble()->set_fatal(fatal);
    say(message);
  }

  void form(const control::Form& form) {
    epoch_ = form.epoch();
    std::stop_token stop;
    std::shared_ptr<PacketLink> old_previous, old_next;  // closing may take a while: not under the mutex
    {
      const std::lock_guard lock(mutex_);
      forming_ = std::stop_source();
      if (latest_epoch_ > epoch_) return;
      stop = forming_.get_token();
      if (form.restore()) holding_.reset();
      old_previous = std::exchange(previous_, nullptr);
      old_next = std::exchange(next_, nullptr);
    }
    old_previous.reset();
    old_next.reset();
    if (auto status = take_state(form); !status) return complain(status.error().message, false);
    control::FromWorker message;
    message.mutable_formed()->set_epoch(epoch_);
    if (auto status = connect(form, stop, *message.mutable_formed()); !status) {
      if (!stop.stop_requested()) complain(status.error().message, false);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      control::Holding holding;
      holding.set_run(run_.run());
      *holding.mutable_seat() = form.seat();
      holding.set_generation(form.generation());
      holding.set_applied(worker_->applied());
      holding.set_ready_step(-1);
      holding_ = holding;
    }
    say(message);
  }

  Status take_state(const control::Form& form) {
    const int64_t stage = form.seat().stage();
    if (stage < 0 || stage >= config_.pipeline.stages || form.seat().replica() != 0) {
      return Error{fmt::format("there is no seat {} of stage {}; the run has {} stages with one each",
                               form.seat().replica(), stage, config_.pipeline.stages)};
    }
    if (!form.restore()) return {};
    TRY(take_cuts(form));
    if (stage == 0 && !batches_) batches_ = token_source(options_, run_, config_);
    if (stage != 0 && !batches_)
      batches_ = std::make_unique<RemoteBatches>(options_.coordinator, run_.run(), config_.train, run_.vocab());
    const std::vector<control::StateFile> wanted(form.files().begin(), form.files().end());
    const auto units = TRY(files_.fetch(wanted));
    const auto table = TRY(token_table());
    stage_ = stage;
    // Made anew also where one is there: the initial weights are part of its making.
    worker_.reset();
    worker_ = std::make_unique<StageWorker>(config_, run_.vocab(), stage_place(config_, static_cast<size_t>(stage)),
                                            *batches_, table);
    if (units.empty()) return {};
    return worker_->restore(units, form.step());
  }

  // T_fixed where the config names a file of it: this worker's own copy, else the coordinator's.
  Result<at::Tensor> token_table() {
    constexpr uint64_t kMostHeaderBytes = 1 << 20;
    const auto& model = config_.model;
    auto mine = table_of_run(options_.folder, config_, run_.vocab());
    if (mine || !run_.has_table()) return mine;
    const auto& file = run_.table();
    const auto rows_bytes = static_cast<uint64_t>(run_.vocab()) * static_cast<uint64_t>(model.d) * sizeof(float);
    if (file.bytes() < rows_bytes || file.bytes() > rows_bytes + kMostHeaderBytes) {
      return Error{fmt::format("the coordinator's token table has {} bytes, where {} x {} numbers are needed",
                               file.bytes(), run_.vocab(), model.d)};
    }
    TRY(files_.fetch_to(file, table_path(options_.folder, model.subspace.table)));
    return table_of_run(options_.folder, config_, run_.vocab());
  }

  // They may have been decided after this worker came.
  Status take_cuts(const control::Form& form) {
    const std::vector<int64_t> cuts(form.cuts().begin(), form.cuts().end());
    const bool positive = std::all_of(cuts.begin(), cuts.end(), [](int64_t blocks) { return blocks >= 1; });
    if (static_cast<int64_t>(cuts.size()) != config_.pipeline.stages || !positive ||
        std::accumulate(cuts.begin(), cuts.end(), int64_t{0}) != config_.model.blocks) {
      return Error{"told cuts that are not of this model"};
    }
    worker_.reset();  // it refers to the config
    config_.pipeline.auto_cuts = false;
    config_.pipeline.cuts = cuts;
    return {};
  }

  Status connect(const control::Form& form, const std::stop_token& stop, control::Formed& formed) {
    auto [previous_link, next_link, next_path] = TRY(links_.connect(form, stop));
    std::shared_ptr<PacketLink> previous, next;
    if (next_link) next = packet_link(std::move(next_link), form.seat().stage(), true, form.next().peer());
    if (previous_link)
      previous = packet_link(std::move(previous_link), form.seat().stage() - 1, false, form.previous().peer());
    if (next_path) *formed.mutable_next() = *next_path;
    const std::lock_guard lock(mutex_);
    previous_ = std::move(previous);
    next_ = std::move(next);
    previous_peer_ = form.previous().peer();
    next_peer_ = form.next().peer();
    if (latest_epoch_ > epoch_) return Error{"a newer epoch has begun"};
    worker_->connect(previous_.get(), next_.get());
    return {};
  }

  std::shared_ptr<PacketLink> packet_link(std::unique_ptr<Link> link, int64_t cut, bool down,
                                          const std::string& neighbour) {
    if (options_.wrap_link) link = options_.wrap_link(std::move(link));
    const auto settings = link_settings(config_)[static_cast<size_t>(cut)];
    const auto& line = down ? settings.forward : settings.backward;
    if (line.shapes()) {
      link = shape_link(std::move(link), {line.rate_bits_per_s, line.delay, line.jitter}, queue_capacity(config_.train),
                        config_.train.seed);
    }
    // Shared with the client's thread, which interrupts it.
    auto rules = packet_rules(config_, run_.vocab(), cut, run_tag(run_.run()));
    rules.neighbour = neighbour;
    return std::make_shared<PacketLink>(std::move(link), std::move(rules), epoch_);
  }

  void run_step(const control::RunStep& step) {
    if (worker_ == nullptr || worker_->applied() != step.step())
      return complain("told to run a step out of turn", false);
    const std::vector<int64_t> warmup(step.warmup().begin(), step.warmup().end());
    if (!warmup.empty() && !is_warmup(warmup)) return complain("told an impossible warm-up", false);
    worker_->set_warmup(warmup);
    auto report = worker_->run_step(epoch_, step.step());
    if (!report) {
      if (latest_epoch_ == epoch_) complain(report.error().message, false);
      return;
    }
    control::FromWorker message;
    auto& ready = *message.mutable_ready();
    ready = std::move(report.value());
    count_sockets(ready);
    {
      // Before it is said: whoever asks from now on must hear that this step is in doubt.
      const std::lock_guard lock(mutex_);
      holding_->set_ready_step(step.step());
      holding_->set_ready_epoch(epoch_);
    }
    say(message);
  }

  bool is_warmup(const std::vector<int64_t>& warmup) const {
    if (static_cast<int64_t>(warmup.size()) != config_.pipeline.stages) return false;
    for (size_t i = 0; i < warmup.size(); ++i) {
      if (warmup[i] < 0 || (i > 0 && warmup[i] > warmup[i - 1])) return false;
    }
    return true;
  }

  // Sent by this end of its links, as the kernel counts.
  void count_sockets(control::Ready& ready) {
    ready.set_socket_bytes(links_.socket_bytes_sent());
    uint64_t dropped = 0;
    for (const auto& link : {previous_, next_}) {
      if (link) dropped += link->meter().dropped_old + link->meter().dropped_repeated;
    }
    ready.set_dropped_packets(dropped);
  }

  void commit(const control::Commit& commit) {
    const std::lock_guard lock(mutex_);
    if (!holding_ || holding_->ready_step() != commit.step() || holding_->ready_epoch() != commit.epoch()) return;
    worker_->commit(commit);
    holding_->set_applied(worker_->applied());
    holding_->set_ready_step(-1);
    TP_CHECK(worker_->basis_version() == commit.basis_version() || !config_.model.is_subspace(),
             "basis version {} after a commit that names {}", worker_->basis_version(), commit.basis_version());
  }

  void evaluate(const control::Evaluate& evaluate) {
    if (worker_ == nullptr || worker_->applied() != evaluate.step())
      return complain("told to evaluate out of turn", false);
    const auto loss_sum = worker_->evaluate(epoch_, evaluate.step(), evaluate.windows());
    if (!loss_sum) {
      if (latest_epoch_ == epoch_) complain(loss_sum.error().message, false);
      return;
    }
    control::FromWorker message;
    message.mutable_evaluated()->set_epoch(epoch_);
    message.mutable_evaluated()->set_step(evaluate.step());
    message.mutable_evaluated()->set_loss_sum(loss_sum.value());
    say(message);
  }

  void save(const control::Save& save) {
    if (worker_ == nullptr || worker_->applied() != save.step()) return;
    const auto units = saved_units(config_.model, blocks_of_stage(config_, stage_));
    if (auto status = files_.save(*worker_, units, save); !status) complain(status.error().message, true);
  }

  const WorkerOptions options_;
  const control::RunDescription run_;
  RunConfig config_;  // its cuts are the last Form's
  const std::string incarnation_;

  std::mutex client_mutex_;
  ControlClient* client_ = nullptr;
  std::mutex mutex_;  // what other threads read or interrupt; never with client_mutex_: the client calls hello()
  std::atomic<uint64_t> latest_epoch_ = 0;
  std::stop_source forming_;
  std::optional<control::Holding> holding_;
  std::shared_ptr<PacketLink> previous_, next_;
  std::string previous_peer_, next_peer_;

  WorkerLinks links_;
  StateFiles files_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<StageWorker> worker_;
  int64_t stage_ = -1;
  bool outdated_ = false;
  std::atomic<uint64_t> epoch_ = 0;  // written by the compute thread
};

}  // namespace

Status run_worker(const WorkerOptions& options) {
  while (true) {
    auto run = ask_for_run(options.coordinator);
    const auto config = parse_config(run.config_toml(), "the coordinator's config");
    if (auto same = check_seed_numbers(config, run.vocab(), run.seed_numbers_sha256()); !same) {
      return Error{same.error().message + "; use the run's build of thinpipe"};
    }
    std::shared_ptr<void> watched;
    if (options.on_run) watched = options.on_run(config);
    Worker worker(options, std::move(run));
    auto status = worker.serve();
    if (!status || !worker.outdated()) return status;
  }
}

}  // namespace thinpipe
