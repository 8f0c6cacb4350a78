#include "cluster/worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "cluster/control_client.h"
#include "cluster/coordinator_core.h"
#include "cluster/remote_batches.h"
#include "cluster/report_message.h"
#include "cluster/state_files.h"
#include "config/config_file.h"
#include "config/link_settings.h"
#include "net/link_service.h"
#include "net/shaped_link.h"
#include "net/socket_bytes.h"
#include "pipeline/stage_worker.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(5);
constexpr auto kRunPatience = std::chrono::seconds(60);
constexpr Duration kHeartbeat = std::chrono::seconds(1);
constexpr const char* kOutOfMemory =
    "not enough memory for this stage: lower model.d, model.blocks, train.microbatch or train.seq_len";

// std::bad_alloc, or what libtorch throws in its place.
bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

std::string new_incarnation() {
  return fmt::format("{}-{}", ::getpid(), SystemClock().now().time_since_epoch().count());
}

control::RunDescription ask_for_run(const std::string& coordinator) {
  const auto stub = control::Coordinator::NewStub(control_channel(coordinator));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kRunPatience);
  control::RunRequest request;
  request.set_protocol(kControlProtocol);
  control::RunDescription run;
  const auto status = stub->GetRun(&context, request, &run);
  if (!status.ok()) throw UserError(fmt::format("the coordinator at {}: {}", coordinator, status.error_message()));
  return run;
}

// A prepared corpus with that identity among those this machine has, else windows from the coordinator.
std::unique_ptr<Batches> token_source(const WorkerOptions& options, const control::RunDescription& run,
                                      const RunConfig& config) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(data_dir() / "prepared", ignored)) {
    if (!entry.is_directory(ignored)) continue;
    const auto corpus = open_prepared(entry.path());
    if (corpus && corpus.value().id == run.corpus_id())
      return std::make_unique<BatchSource>(corpus.value(), config.train);
  }
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
        files_({options.coordinator, run_.run(), options.folder / "states", config_.checkpoint.mode,
                [this](const std::string& reason) { complain(reason, true); }}) {
    at::set_num_threads(threads_for(config_));
    size_t largest = 0;
    for (int64_t cut = 0; cut + 1 < config_.pipeline.stages; ++cut) {
      largest = std::max(largest, packet_rules(config_, run_.vocab(), cut, run_tag(run_.run())).max_payload_bytes);
    }
    limits_ = {config_.train.microbatches + 1, config_.train.microbatches + 1, largest + kPacketHeaderBytes};
    server_ =
        LinkServer::start(options.listen + ":0", limits_.max_message_bytes,
                          [this](const LinkHello& hello, const LinkCaller&) {
                            return hello.run == run_.run() ? Status() : Status(Error{"that is a link of another run"});
                          })
            .take();
  }

  Status serve() {
    // Often enough that one that is late does not cost the stage.
    const auto heartbeat = std::min<Duration>(kHeartbeat, std::chrono::seconds(config_.cluster.lease_s) / 3);
    ControlClient client(
        {options_.coordinator, heartbeat}, [this] { return hello(); },
        [this](const control::ToWorker& message) { interrupt_for(message); });
    client_ = &client;
    auto status = obey_until_stop(client);
    files_.give_up();  // its thread may complain to the client
    return status;
  }

 private:
  control::Hello hello() {
    const std::lock_guard lock(mutex_);
    control::Hello hello;
    hello.set_protocol(kControlProtocol);
    hello.set_peer(options_.name);
    hello.set_incarnation(incarnation_);
    hello.set_data_address(fmt::format("{}:{}", options_.listen, server_->port()));
    if (holding_) *hello.mutable_holding() = *holding_;
    return hello;
  }

  // On the client's thread: what the compute thread may be waiting for will not come any more.
  void interrupt_for(const control::ToWorker& message) {
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

  Status obey_until_stop(ControlClient& client) {
    while (true) {
      auto message = client.next();
      if (!message) return message.error();
      if (message.value().has_stop()) {
        log_info("stop: {}", message.value().stop().reason());
        return {};
      }
      try {
        obey(message.value());
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
    client_->say(message);
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
    if (auto status = connect(form, stop); !status) {
      if (!stop.stop_requested()) complain(status.error().message, false);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      control::Holding holding;
      holding.set_run(run_.run());
      holding.set_stage(form.stage());
      holding.set_generation(form.generation());
      holding.set_applied(worker_->applied());
      holding.set_ready_step(-1);
      holding_ = holding;
    }
    control::FromWorker message;
    message.mutable_formed()->set_epoch(epoch_);
    client_->say(message);
  }

  Status take_state(const control::Form& form) {
    const auto stage = static_cast<size_t>(form.stage());
    if (form.stage() < 0 || form.stage() >= config_.pipeline.stages) {
      return Error{fmt::format("there is no stage {} of {}", form.stage(), config_.pipeline.stages)};
    }
    if (!form.restore()) return {};
    if (form.stage() == 0 && !batches_) batches_ = token_source(options_, run_, config_);
    if (form.stage() != 0 && !batches_)
      batches_ = std::make_unique<RemoteBatches>(options_.coordinator, run_.run(), config_.train, run_.vocab());
    std::optional<std::filesystem::path> path;
    if (form.has_file()) {
      auto fetched = files_.fetch(form.file());
      if (!fetched) return fetched.error();
      path = fetched.value();
    }
    stage_ = form.stage();
    // Made anew also where one is there: the initial weights are part of its making.
    worker_.reset();
    worker_ = std::make_unique<StageWorker>(config_, run_.vocab(), stage_place(config_, stage), *batches_);
    if (!path) return {};
    auto file = SafetensorsFile::open(*path);
    if (!file) return file.error();
    if (auto status = worker_->restore(file.value(), form.step()); !status) {
      return Error{fmt::format("{}: {}", path->string(), status.error().message)};
    }
    return {};
  }

  // Dials the next stage and takes the previous one's call.
  Status connect(const control::Form& form, const std::stop_token& stop) {
    const bool last = form.stage() + 1 == config_.pipeline.stages;
    std::shared_ptr<PacketLink> previous, next;
    if (!last) {
      auto link =
          dial_link(form.next_address(), {run_.run(), options_.name, form.stage(), epoch_}, limits_, kDialPatience);
      if (!link) return link.error();
      next = packet_link(std::move(link.value()), form.stage(), true);
      next_port_ = std::atoi(form.next_address().substr(form.next_address().rfind(':') + 1).c_str());
    }
    if (form.stage() > 0) {
      auto link = server_->service().wait_for(form.stage() - 1, epoch_, limits_, stop);
      if (!link) return link.error();
      previous = packet_link(std::move(link.value()), form.stage() - 1, false);
    }
    const std::lock_guard lock(mutex_);
    previous_ = std::move(previous);
    next_ = std::move(next);
    if (latest_epoch_ > epoch_) return Error{"a newer epoch has begun"};
    worker_->connect(previous_.get(), next_.get());
    return {};
  }

  std::shared_ptr<PacketLink> packet_link(std::unique_ptr<Link> link, int64_t cut, bool down) {
    const auto settings = link_settings(config_)[static_cast<size_t>(cut)];
    const auto& line = down ? settings.forward : settings.backward;
    if (line.shapes()) {
      link = shape_link(std::move(link), {line.rate_bits_per_s, line.delay, line.jitter},
                        config_.train.microbatches + 1, config_.train.seed);
    }
    // Shared with the client's thread, which interrupts it.
    return std::make_shared<PacketLink>(std::move(link), packet_rules(config_, run_.vocab(), cut, run_tag(run_.run())),
                                        epoch_);
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
    ready = to_message(report.value());
    ready.set_epoch(epoch_);
    ready.set_step(step.step());
    count_sockets(ready);
    {
      // Before it is said: whoever asks from now on must hear that this step is in doubt.
      const std::lock_guard lock(mutex_);
      holding_->set_ready_step(step.step());
      holding_->set_ready_epoch(epoch_);
    }
    client_->say(message);
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
    uint64_t sent = tcp_bytes_of_port(server_->port()).sent;
    if (next_port_ > 0) sent += tcp_bytes_of_port(next_port_).sent;
    ready.set_socket_bytes(sent);
    uint64_t dropped = 0;
    for (const auto& link : {previous_, next_}) {
      if (link) dropped += link->meter().dropped_old + link->meter().dropped_repeated;
    }
    ready.set_dropped_packets(dropped);
  }

  void commit(const control::Commit& commit) {
    const std::lock_guard lock(mutex_);
    if (!holding_ || holding_->ready_step() != commit.step() || holding_->ready_epoch() != commit.epoch()) return;
    worker_->commit({commit.step(), commit.apply(), commit.grad_factor()});
    holding_->set_applied(worker_->applied());
    holding_->set_ready_step(-1);
    TP_CHECK(worker_->basis_version() == commit.basis_version() || !config_.model.is_subspace(),
             "basis version {} after a commit that names {}", worker_->basis_version(), commit.basis_version());
  }

  void evaluate(const control::Evaluate& evaluate) {
    if (worker_ == nullptr || worker_->applied() != evaluate.step())
      return complain("told to evaluate out of turn", false);
    auto report = worker_->evaluate(epoch_, evaluate.step(), evaluate.windows());
    if (!report) {
      if (latest_epoch_ == epoch_) complain(report.error().message, false);
      return;
    }
    control::FromWorker message;
    message.mutable_evaluated()->set_epoch(epoch_);
    message.mutable_evaluated()->set_step(evaluate.step());
    message.mutable_evaluated()->set_loss_sum(report.value().loss_sum);
    client_->say(message);
  }

  void save(const control::Save& save) {
    if (worker_ == nullptr || worker_->applied() != save.step()) return;
    if (auto status = files_.save(*worker_, stage_, save); !status) complain(status.error().message, true);
  }

  const WorkerOptions options_;
  const control::RunDescription run_;
  const RunConfig config_;
  const std::string incarnation_;
  LinkLimits limits_;
  std::unique_ptr<LinkServer> server_;
  StateFiles files_;
  ControlClient* client_ = nullptr;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<StageWorker> worker_;
  int64_t stage_ = -1;
  std::atomic<uint64_t> epoch_ = 0;  // written by the compute thread
  int next_port_ = 0;

  std::mutex mutex_;  // what the client's thread reads or interrupts
  std::atomic<uint64_t> latest_epoch_ = 0;
  std::stop_source forming_;
  std::optional<control::Holding> holding_;
  std::shared_ptr<PacketLink> previous_, next_;
};

}  // namespace

Status run_worker(const WorkerOptions& options) {
  auto run = ask_for_run(options.coordinator);
  return Worker(options, std::move(run)).serve();
}

}  // namespace thinpipe
