#include "run/coordinator/run_desk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "boundary/sizes.h"
#include "config/config_file.h"
#include "pipeline/unit_file.h"
#include "run/run_changes.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

// Per peer. A worker has one of each; an old one may not have ended yet.
constexpr int64_t kMostSessions = 4, kMostUploads = 4, kMostDownloads = 4;
constexpr auto kHelloPatience = std::chrono::seconds(20);
// A worker sends parts of 128 KiB. Each costs this process some work, so there must not be many small ones.
constexpr uint64_t kMeanPartBytes = 16 << 10, kMostSmallParts = 16;
constexpr auto kUploadPatience = std::chrono::minutes(1);  // between two parts

template <class... Cases>
struct EffectCases : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
EffectCases(Cases...) -> EffectCases<Cases...>;  // clang before 17 needs it

// How many calls of this kind the peer has open.
template <class Calls>
int64_t count_of(const Calls& calls, const std::string& peer) {
  return std::count_if(calls.begin(), calls.end(), [&](const auto& call) { return call.second.peer == peer; });
}

std::string cuts_text(const std::vector<int64_t>& cuts) { return fmt::format("{}", fmt::join(cuts, " ")); }

// How long a message takes on the slowest emulated cut; mean of both directions.
double hop_seconds(const RunConfig& config, const BoundarySizes& sizes) {
  const auto one_way = [](const LinkShape& line, size_t bytes) {
    const auto rate = static_cast<double>(line.rate_bits_per_s);
    return (rate > 0 ? 8.0 * static_cast<double>(bytes) / rate : 0) + seconds(line.delay) + seconds(line.jitter);
  };
  double slowest = 0;
  for (const auto& cut : link_settings(config)) {
    slowest = std::max(slowest, (one_way(cut.forward, sizes.forward) + one_way(cut.backward, sizes.backward)) / 2);
  }
  return slowest;
}

// Converts a checkpoint's files to the core's messages.
std::vector<control::StateFile> state_files_of(const CheckpointManifest& manifest) {
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

RunDesk::RunDesk(RunIdentity identity, RunStore store, const Clock& clock, Outbox& outbox)
    : identity_(std::move(identity)),
      store_(std::move(store)),
      clock_(clock),
      outbox_(outbox),
      checkpoints_(identity_.folder / "checkpoints", identity_.run),
      logs_(identity_.folder, identity_.config.train) {}

Status RunDesk::start(uint64_t revision) {
  auto stored = TRY(store_.load());
  stored.steps.revision = revision;
  TRY(read_checkpoints(stored));
  TRY(forget_other_cuts(stored));
  TRY(logs_.rewrite(store_));
  core_.emplace(make_rules(), std::move(stored), clock_.now());
  return {};
}

RunRules RunDesk::make_rules() const {
  const auto& config = identity_.config;
  const auto sizes = boundary_sizes(config, identity_.vocab);
  return {.run = identity_.run,
          .config = config,
          .config_sha256 = config_identity(config),
          .open = identity_.open,
          .vocab = identity_.vocab,
          .validation_windows = identity_.validation_windows,
          .hop_s = hop_seconds(config, sizes),
          .packet_bytes = sizes.forward};
}

// Finds the newest whole checkpoint whose step is not later than the last row.
Status RunDesk::read_checkpoints(StoredRun& stored) {
  TRY(checkpoints_.clean_partials());
  const auto found = TRY(checkpoints_.latest(stored.steps.committed));
  for (const auto& reason : checkpoints_.refusals()) {
    log_warn("{}", reason);
    TRY(store_.add_event("refused", reason));
  }
  const auto origin = TRY(store_.get("begun_from"));
  if (!found && origin) {
    return Error{fmt::format("{}: this run began from given weights ({}) and none of its checkpoints is whole",
                             identity_.folder.string(), *origin)};
  }
  if (found) note_manifest(stored.saving, state_files_of(*found));
  return {};
}

// If the cuts have changed, the workers' state is useless: begins a new generation in which nobody has a seat.
Status RunDesk::forget_other_cuts(StoredRun& stored) {
  if (identity_.config.pipeline.auto_cuts) return {};
  const auto cuts = cuts_text(blocks_per_stage(identity_.config));
  const auto before = TRY(store_.get("cuts"));
  if (before && *before != cuts) {
    stored.steps.epoch = stored.steps.generation = TRY(store_.forget_holders());
    stored.roster.clear();
  }
  return store_.set("cuts", cuts);
}

// ---- events ----

void RunDesk::tick() {
  apply(core_->tick(clock_.now()));
  for (const auto& [id, session] : sessions_) {
    if (!session.said_hello && clock_.now() - session.opened > kHelloPatience) outbox_.close(id);
  }
}

Result<SessionId> RunDesk::open_session(const std::string& peer) {
  if (count_of(sessions_, peer) >= kMostSessions) {
    return Error{fmt::format("{} has {} connections already", peer, kMostSessions)};
  }
  sessions_[next_session_] = {peer, clock_.now()};
  return next_session_++;
}

void RunDesk::hear(SessionId id, const control::FromWorker& message) {
  auto& session = sessions_.at(id);
  session.said_hello = session.said_hello || message.has_hello();
  if (message.has_hello() && message.hello().peer() != session.peer) {
    const auto why = fmt::format("calls itself {} with the certificate of {}", message.hello().peer(), session.peer);
    control::ToWorker answer;
    answer.mutable_refuse()->set_reason(why);
    return apply({LogEvent{"refused", why}, SendTo{id, answer}, CloseSession{id, why}});
  }
  if (!message.has_refused()) return apply(core_->message(id, message, clock_.now()));
  const auto line = worker_refusals_.note(message.refused().reason(), clock_.now());
  if (!line) return;
  auto counted = message;
  counted.mutable_refused()->set_reason(*line);
  apply(core_->message(id, counted, clock_.now()));
}

void RunDesk::end_flood(SessionId id) { apply(core_->flooded(id, sessions_.at(id).peer, clock_.now())); }

void RunDesk::end_session(SessionId id) {
  sessions_.erase(id);
  apply(core_->session_ended(id, clock_.now()));
}

// ---- uploads ----

Result<int64_t> RunDesk::open_upload(const std::string& peer) {
  if (count_of(uploads_, peer) >= kMostUploads) {
    return Error{fmt::format("{} has {} uploads under way already", peer, kMostUploads)};
  }
  uploads_[next_upload_] = {peer, {}, clock_.now()};
  return next_upload_++;
}

Status RunDesk::may_save(int64_t upload, const control::StateFile& file) const {
  const auto& peer = uploads_.at(upload).peer;
  if (core_->saves_unit(peer, file.unit())) return {};
  return Error{fmt::format("{} does not save '{}'", peer, one_line(file.unit()))};
}

Result<bool> RunDesk::expect_file(int64_t upload, const control::StateFile& file) {
  if (!core_->wants(file)) return false;
  auto& expected = uploads_.at(upload);
  expected.file = file;
  const uint64_t most = most_unit_bytes(identity_.config, identity_.vocab, file.unit());
  if (file.bytes() <= most) return true;
  const auto why = fmt::format("{}: {} bytes, and it has at most {}", file.unit(), file.bytes(), most);
  apply(core_->file_refused(expected.peer, why, clock_.now()));
  return Error{why};
}

Result<IncomingFile> RunDesk::receive(const control::StateFile& file) {
  return checkpoints_.receive_file({file.step(), file.generation()}, {file.unit(), file.bytes(), file.sha256()});
}

Status RunDesk::note_part(int64_t number) {
  auto& upload = uploads_.at(number);
  upload.moved = clock_.now();
  const uint64_t most = upload.file.bytes() / kMeanPartBytes + kMostSmallParts;
  if (++upload.parts <= most) return {};
  const auto why = fmt::format("{}: comes in more than {} parts", upload.file.unit(), most);
  apply(core_->file_refused(std::string(upload.peer), why, clock_.now()));
  return Error{why};
}

Status RunDesk::end_file(int64_t upload, const control::StateFile& file, IncomingFile& incoming,
                         const Status& content) {
  const auto& peer = uploads_.at(upload).peer;
  if (!content) {
    apply(core_->file_refused(peer, content.error().message, clock_.now()));
    return content;
  }
  if (!core_->saves_unit(peer, file.unit()) || !core_->wants(file)) return {};
  TRY(incoming.finish());
  apply(core_->file_arrived(file, clock_.now()));
  return {};
}

std::vector<int64_t> RunDesk::idle_uploads() const {
  std::vector<int64_t> idle;
  for (const auto& [number, upload] : uploads_) {
    const bool named = !upload.file.unit().empty();
    if (clock_.now() - upload.moved > kUploadPatience || (named && !core_->wants(upload.file))) idle.push_back(number);
  }
  return idle;
}

Status RunDesk::check_content(const std::filesystem::path& path, const control::StateFile& file) const {
  const auto opened = SafetensorsFile::open(path);
  if (!opened) return Error{fmt::format("{}: it is not a safetensors file", file.unit())};
  const auto status = check_unit_file(identity_.config, identity_.vocab, file.unit(), file.step(), opened.value());
  if (!status) return Error{fmt::format("{}: {}", file.unit(), status.error().message)};
  const auto version = TRY(basis_version_of(opened.value()));
  if (version == file.basis_version()) return {};
  return Error{
      fmt::format("{}: has basis version {}, was announced with {}", file.unit(), version, file.basis_version())};
}

// ---- downloads ----

Status RunDesk::open_download(const std::string& peer) {
  auto& open = downloads_[peer];
  if (open >= kMostDownloads) return Error{fmt::format("{} has {} downloads under way already", peer, kMostDownloads)};
  ++open;
  return {};
}

void RunDesk::close_download(const std::string& peer) {
  if (const auto found = downloads_.find(peer); --found->second == 0) downloads_.erase(found);
}

// ---- questions ----

Status RunDesk::check_peer(const std::string& peer) const {
  if (!core_->is_revoked(peer)) return {};
  return Error{fmt::format("{} was removed from this run", peer)};
}

Status RunDesk::may_fetch(const std::string& peer, const std::string& unit) const {
  if (unit.empty() ? core_->seat_of(peer).has_value() : core_->holds_unit(peer, unit)) return {};
  return Error{fmt::format("{} does not hold '{}'", peer, unit.empty() ? "the token table" : one_line(unit))};
}

Status RunDesk::may_read_tokens(const std::string& peer) const {
  const auto seat = core_->seat_of(peer);
  if (seat && seat->stage == 0) return {};
  return Error{fmt::format("{} does not hold the first stage", peer)};
}

// ---- effects ----

void RunDesk::apply(Effects effects) {
  // Effects may lead to more (a manifest that was written); those come after all of these.
  while (!effects.empty()) {
    Effects more;
    for (const auto& effect : effects) {
      const auto status = carry_out(effect, more);
      if (status.ok()) continue;
      // Skip all later effects: a commit that is not on the disk must not be sent.
      const auto reason = status.error().message + full_disk_advice(identity_.folder);
      more = core_->fail(reason);
      std::erase_if(more, [](const Effect& one) {
        return !std::holds_alternative<SendTo>(one) && !std::holds_alternative<Finish>(one);
      });
      if (!end_ && more.empty()) more.push_back(Finish{true, reason});  // the run was over, but that is not on the disk
      break;
    }
    effects = std::move(more);
  }
}

Status RunDesk::carry_out(const Effect& effect, Effects& more) {
  return std::visit(
      EffectCases{
          [&](const SendTo& one) { return outbox_.send(one.session, one.message); },
          [&](const CloseSession& close) {
            outbox_.close(close.session);
            return Status();
          },
          [&](const PersistEpoch& epoch) -> Status {
            TRY(store_.set_epoch(epoch));
            outbox_.epoch_began(epoch.epoch);
            return epoch.drop_from >= 0 ? logs_.rewrite(store_) : Status();
          },
          [&](const PersistCommit& commit) -> Status {
            TRY(store_.add_commit(commit.row));
            return logs_.catch_up(store_);
          },
          [&](const PersistEvaluation& evaluation) -> Status {
            TRY(store_.add_evaluation(evaluation));
            return logs_.catch_up(store_);
          },
          [&](const PersistPaused& paused) { return store_.set("paused", paused.paused ? "1" : "0"); },
          [&](const PersistRevoked& change) {
            return change.revoked ? store_.revoke_peer(change.peer) : store_.pardon_peer(change.peer);
          },
          [&](const PersistCuts& cuts) { return keep_cuts(cuts.cuts); },
          [&](const WriteManifest& manifest) {
            const auto status = write_manifest(manifest);
            auto effects = status.ok() ? core_->manifest_written(manifest.files, clock_.now())
                                       : core_->manifest_failed(
                                             status.error().message + full_disk_advice(identity_.folder), clock_.now());
            std::move(effects.begin(), effects.end(), std::back_inserter(more));
            return Status();
          },
          [&](const LogEvent& event) {
            const auto line =
                event.kind == "refused" ? door_refusals_.note(event.text, clock_.now()) : std::optional(event.text);
            if (!line) return Status();
            log_info("{}: {}", event.kind, *line);
            return store_.add_event(event.kind, *line);
          },
          [&](const Finish& finish) {
            end_ = finish;
            return Status();
          },
      },
      effect);
}

// Writes the cuts into the run's config, as if a person had set them.
Status RunDesk::keep_cuts(const std::vector<int64_t>& cuts) {
  identity_.config.pipeline.cuts = cuts;
  identity_.config.pipeline.auto_cuts = false;
  TRY(store_.set("cuts", cuts_text(cuts)));
  return write_file_atomically(identity_.folder / "config.toml", to_toml(identity_.config));
}

Status RunDesk::write_manifest(const WriteManifest& write) {
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
  TRY(checkpoints_.commit(manifest));
  const auto& keep = identity_.config.checkpoint;
  return checkpoints_.keep(keep.keep_last, keep.keep_every);
}

}  // namespace thinpipe
