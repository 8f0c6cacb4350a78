#include "cluster/coordinator_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "boundary/sizes.h"
#include "cluster/run_changes.h"
#include "config/config_file.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/stage_worker.h"
#include "pipeline/step.h"
#include "plan/placement.h"

namespace thinpipe {
namespace {

// A neighbour may be busy for as long as its state takes to download; a new epoch ends the wait.
constexpr auto kPartnerPatience = std::chrono::hours(2);

std::string cuts_text(const std::vector<int64_t>& cuts) { return fmt::format("{}", fmt::join(cuts, " ")); }

// Seconds that a message is under way on the slowest cut, there and back on average.
double hop_seconds(const RunConfig& config, int64_t vocab) {
  double slowest = 0;
  const auto sizes = boundary_sizes(config, vocab);
  for (const auto& cut : link_settings(config)) {
    const auto one_way = [](const DirectionSettings& line, size_t bytes) {
      const double transfer =
          line.rate_bits_per_s > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(line.rate_bits_per_s) : 0;
      return transfer + seconds(line.delay) + seconds(line.jitter);
    };
    slowest = std::max(slowest, (one_way(cut.forward, sizes.forward) + one_way(cut.backward, sizes.backward)) / 2);
  }
  return slowest;
}

// A checkpoint's files as the core knows them.
std::vector<control::StateFile> files_of(const CheckpointManifest& manifest) {
  std::vector<control::StateFile> files;
  for (const auto& file : manifest.files) {
    auto& one = files.emplace_back();
    one.set_step(manifest.id.step);
    one.set_generation(manifest.id.generation);
    one.set_unit(file.unit);
    one.set_bytes(file.bytes);
    one.set_sha256(file.sha256);
    one.set_basis_version(manifest.basis_version);
    one.set_basis_hash(manifest.basis_hash);
  }
  return files;
}

}  // namespace

CoordinatorService::CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, BatchSource& batches,
                                       const Clock& clock)
    : identity_(std::move(identity)),
      seed_numbers_(seed_numbers_sha256(identity_.config, identity_.vocab)),
      door_(std::move(door)),
      store_(std::move(store)),
      admission_(identity_.run, store_, door_.authority),
      batches_(batches),
      clock_(clock),
      start_(clock.now()),
      checkpoints_(identity_.folder / "checkpoints", identity_.run),
      logs_(identity_.folder, {identity_.config.train.steps, identity_.config.train.eval_every}),
      tunnels_([this](const TunnelHello& hello, const LinkCaller& caller) { return may_tunnel(hello, caller); },
               kPartnerPatience) {}

CoordinatorService::~CoordinatorService() = default;

RunRules CoordinatorService::make_rules() const {
  const auto& config = identity_.config;
  const auto& train = config.train;
  RunRules rules;
  rules.run = identity_.run;
  rules.config_sha256 = config_identity(config);
  rules.open = door_.open;
  rules.seat = [this](const std::vector<Seat>& free, uint64_t memory_bytes) {
    return choose_seat(identity_.config, identity_.vocab, free, memory_bytes);
  };
  if (config.pipeline.auto_cuts) {
    rules.place = [this](const std::vector<Machine>& machines) {
      return place(identity_.config, identity_.vocab, machines);
    };
  }
  rules.model = config.model;
  rules.stages = config.pipeline.stages;
  rules.steps = train.steps;
  rules.tokens_per_step = tokens_per_step(train);
  rules.tokens_per_window = train.seq_len;
  rules.clip = config.optim.clip;
  rules.eval_every = train.eval_every;
  rules.eval_windows = std::min(train.eval_sequences, batches_.validation_windows());
  rules.final_windows = batches_.validation_windows();
  rules.checkpoint_every = config.checkpoint.every;
  rules.lease = std::chrono::seconds(config.cluster.lease_s);
  rules.max_failures = config.cluster.max_failures;
  rules.max_skipped = config.cluster.max_skipped;
  if (config.pipeline.schedule == ScheduleKind::k1f1b) {
    rules.microbatches = train.microbatches;
    rules.hop_s = hop_seconds(config, identity_.vocab);
    rules.packet_bytes = boundary_sizes(config, identity_.vocab).forward;
  }
  rules.metrics_line = [this](const CommitRow& row, const std::vector<control::Ready>& reports) {
    return metrics_line(identity_.config, row, reports).dump();
  };
  rules.timing_line = [this](const CommitRow& row, const std::vector<control::Ready>& reports) {
    auto line = timing_line(row.step, seconds(clock_.now() - start_), reports);
    uint64_t socket_bytes = 0, dropped = 0;
    for (const auto& report : reports) {
      socket_bytes += report.socket_bytes();
      dropped += report.dropped_packets();
    }
    line["socket_bytes"] = socket_bytes;
    line["dropped_packets"] = dropped;
    return line.dump();
  };
  return rules;
}

Result<std::optional<CheckpointManifest>> CoordinatorService::newest_checkpoint_of(int64_t committed) {
  auto manifest = TRY(checkpoints_.latest(committed));
  for (const auto& reason : checkpoints_.refusals()) {
    log_warn("{}", reason);
    TRY(store_.add_event("refused", reason));
  }
  return manifest;
}

Status CoordinatorService::start() {
  const std::lock_guard lock(mutex_);
  const auto number = [&](const char* name) -> Result<uint64_t> {
    auto text = store_.get(name);
    if (!text) return text.error();
    return text.value() ? std::stoull(*text.value()) : uint64_t{0};
  };
  StoredRun stored;
  auto epoch = number("epoch"), generation = number("generation"), paused = number("paused");
  auto rows = store_.commits();
  auto evaluations = store_.evaluations();
  auto roster = store_.roster();
  auto revoked = store_.revoked_peers();
  for (const auto* result : {&epoch, &generation, &paused}) {
    if (!*result) return result->error();
  }
  if (!rows) return rows.error();
  if (!evaluations) return evaluations.error();
  if (!roster) return roster.error();
  if (!revoked) return revoked.error();
  stored.revoked.insert(revoked.value().begin(), revoked.value().end());
  stored.cuts = identity_.config.pipeline.auto_cuts ? std::vector<int64_t>() : blocks_per_stage(identity_.config);
  stored.epoch = epoch.value();
  stored.generation = generation.value();
  stored.paused = paused.value() != 0;
  stored.roster = std::move(roster.value());
  stored.committed = static_cast<int64_t>(rows.value().size());
  for (const auto& row : rows.value()) {
    if (!row.apply) stored.skipped.insert(row.step);
  }
  if (!rows.value().empty()) stored.last_commit = rows.value().back();
  for (const auto& row : evaluations.value()) {
    stored.evaluations.insert(row.step);
    if (row.is_final) stored.final_loss = row.loss;
  }
  if (auto status = checkpoints_.clean_partials(); !status) return status;
  auto manifest = newest_checkpoint_of(stored.committed);
  if (!manifest) return manifest.error();
  if (const auto& found = manifest.value()) {
    stored.manifest_step = found->id.step;
    stored.manifest_files = files_of(*found);
  }
  if (!manifest.value()) {
    const auto origin = store_.get("begun_from");
    if (!origin) return origin.error();
    if (origin.value()) {
      return Error{fmt::format("{}: this run began from given weights ({}) and none of its checkpoints is whole",
                               identity_.folder.string(), *origin.value())};
    }
  }
  // What workers hold is of the cuts they were told: with others, places are nobody's.
  if (!stored.cuts.empty()) {
    const auto cuts = cuts_text(stored.cuts);
    auto before = store_.get("cuts");
    if (!before) return before.error();
    if (before.value() && *before.value() != cuts) {
      const auto begun = forget_holders(store_);
      if (!begun) return begun.error();
      stored.epoch = stored.generation = begun.value();
      stored.roster.clear();
    }
    if (auto status = store_.set("cuts", cuts); !status) return status;
  }
  if (static_cast<int64_t>(stored.roster.size()) != identity_.config.pipeline.stages) stored.roster.clear();
  if (auto status = logs_.rewrite(store_); !status) return status;
  core_.emplace(make_rules(), std::move(stored), clock_.now());
  return {};
}

void CoordinatorService::apply(Effects effects) {
  // Effects may lead to more (a manifest that was written); they come after all of these.
  while (!effects.empty()) {
    Effects more;
    for (const auto& effect : effects) {
      auto status = carry_out(effect, more);
      if (status.ok()) continue;
      // Nothing after this one may happen: a commit that is not on the disk must not be sent.
      more = core_->fail(status.error().message);
      std::erase_if(more, [](const Effect& one) {
        return !std::holds_alternative<SendTo>(one) && !std::holds_alternative<Finish>(one);
      });
      break;
    }
    effects = std::move(more);
  }
  changed_.notify_all();
}

Status CoordinatorService::carry_out(const Effect& effect, Effects& more) {
  const auto append = [&](Effects effects) { std::move(effects.begin(), effects.end(), std::back_inserter(more)); };
  if (const auto* send = std::get_if<SendTo>(&effect)) {
    if (const auto found = sessions_.find(send->session); found != sessions_.end()) {
      found->second.queue.push_back(send->message);
    }
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    if (const auto found = sessions_.find(close->session); found != sessions_.end()) found->second.closed = true;
  } else if (const auto* epoch = std::get_if<PersistEpoch>(&effect)) {
    if (auto status = store_.set_epoch(*epoch); !status) return status;
    tunnels_.drop(epoch->epoch);
    if (epoch->drop_from >= 0) return logs_.rewrite(store_);
  } else if (const auto* commit = std::get_if<PersistCommit>(&effect)) {
    if (auto status = store_.add_commit(commit->row); !status) return status;
    return logs_.catch_up(store_);
  } else if (const auto* evaluation = std::get_if<PersistEvaluation>(&effect)) {
    if (auto status = store_.add_evaluation({evaluation->step, evaluation->loss, evaluation->is_final}); !status) {
      return status;
    }
    return logs_.catch_up(store_);
  } else if (const auto* paused = std::get_if<PersistPaused>(&effect)) {
    return store_.set("paused", paused->paused ? "1" : "0");
  } else if (const auto* revoked = std::get_if<PersistRevoked>(&effect)) {
    return store_.revoke_peer(revoked->peer);
  } else if (const auto* cuts = std::get_if<PersistCuts>(&effect)) {
    return keep_cuts(cuts->cuts);
  } else if (const auto* manifest = std::get_if<WriteManifest>(&effect)) {
    const auto status = write_manifest(*manifest);
    append(status.ok() ? core_->manifest_written(manifest->files, clock_.now())
                       : core_->manifest_failed(status.error().message, clock_.now()));
  } else if (const auto* event = std::get_if<LogEvent>(&effect)) {
    log_info("{}: {}", event->kind, event->text);
    if (auto row = store_.add_event(event->kind, event->text); !row) return row.error();
  } else if (const auto* finish = std::get_if<Finish>(&effect)) {
    end_ = *finish;
  }
  return {};
}

// Into the run's own config, as if a person had written them there.
Status CoordinatorService::keep_cuts(const std::vector<int64_t>& cuts) {
  identity_.config.pipeline.cuts = cuts;
  identity_.config.pipeline.auto_cuts = false;
  if (auto status = store_.set("cuts", cuts_text(cuts)); !status) return status;
  return write_file_atomically(identity_.folder / "config.toml", to_toml(identity_.config));
}

Status CoordinatorService::write_manifest(const WriteManifest& write) {
  const auto& config = identity_.config;
  const auto& first = write.files.front();
  CheckpointManifest manifest{identity_.run,         {first.step(), first.generation()},
                              identity_.corpus_id,   first.basis_hash(),
                              first.basis_version(), {}};
  for (const auto& file : write.files) {
    if (file.basis_hash() != manifest.basis_hash || file.basis_version() != manifest.basis_version) {
      return Error{"the stages saved different bases"};
    }
    manifest.files.push_back({file.unit(), file.bytes(), file.sha256()});
  }
  if (auto status = checkpoints_.commit(manifest); !status) return status;
  return checkpoints_.keep(config.checkpoint.keep_last, config.checkpoint.keep_every);
}

Status CoordinatorService::write_model() const {
  const auto found = checkpoint_of_step(identity_.folder, identity_.config.train.steps);
  if (!found) return found.error();
  return write_model_file(found.value().files, identity_.folder / "model.safetensors");
}

bool CoordinatorService::complete() const {
  const std::lock_guard lock(mutex_);
  return core_->committed() == identity_.config.train.steps && core_->has_final_loss();
}

control::RunStatus CoordinatorService::status() const {
  const std::lock_guard lock(mutex_);
  control::RunStatus status;
  core_->describe(status, clock_.now());
  return status;
}

Status CoordinatorService::remember_port(int port) {
  const std::lock_guard lock(mutex_);
  return store_.set("port", fmt::format("{}", port));
}

void CoordinatorService::tick() {
  const std::lock_guard lock(mutex_);
  apply(core_->tick(clock_.now()));
}

void CoordinatorService::stop_after_checkpoint() {
  const std::lock_guard lock(mutex_);
  apply(core_->control(control::ControlRequest::STOP, clock_.now()));
}

std::optional<Finish> CoordinatorService::ended() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

void CoordinatorService::wait_for_farewells(Duration most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return sessions_.empty(); });
}

void CoordinatorService::close_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, session] : sessions_) {
    session.closed = true;
    session.context->TryCancel();
  }
  changed_.notify_all();
}

}  // namespace thinpipe
