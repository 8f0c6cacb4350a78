// The coordinator without its network: the core, what it keeps on the disk, and the rules about who may do what. The
// service (coordinator_service.h) turns gRPC's calls into calls of the desk; tests/sim runs the same desk on a
// simulated network and disk. Every name of a peer that comes in here was proven by a certificate.
//
// One thread at a time, except for receive() and check_content(), which take long and may run beside everything else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "proto/control.pb.h"
#include "run/coordinator/call_limits.h"
#include "run/coordinator/run_logs.h"
#include "run/coordinator/run_store.h"
#include "run/core/coordinator_core.h"
#include "store/checkpoints.h"

namespace thinpipe {

// The facts of a run that do not depend on its progress.
struct RunIdentity {
  std::string run;  // 32 hex digits
  RunConfig config;
  std::filesystem::path folder;
  std::string corpus_id;
  int64_t vocab = 0;
  std::string seed_numbers_sha256;      // seed_numbers_sha256() of the run
  std::optional<CheckpointFile> table;  // the frozen token table's file, if the config names one
  std::filesystem::path table_path;
  bool open = false;  // strangers may join
  int64_t validation_windows = 0;
};

// How the desk reaches the workers.
class Outbox {
 public:
  virtual ~Outbox() = default;
  // Sends it, in order, unless the session has ended. An error ends the run.
  virtual Status send(SessionId session, control::ToWorker message) = 0;
  // Hangs up after what was sent; ignores what still comes.
  virtual void close(SessionId session) = 0;
  // Everything that belongs to earlier epochs may end.
  virtual void epoch_began(uint64_t epoch) = 0;
};

class RunDesk {
 public:
  // The references must outlive it.
  RunDesk(RunIdentity identity, RunStore store, const Clock& clock, Outbox& outbox);

  // Reads the store and the checkpoints. Must succeed before anything else is called. revision: a random number that no
  // other start of a coordinator has.
  Status start(uint64_t revision);
  const RunIdentity& identity() const { return identity_; }
  RunStore& store() { return store_; }
  const CheckpointStore& checkpoints() const { return checkpoints_; }
  const CoordinatorCore& core() const { return *core_; }
  // nullopt until the run is over.
  const std::optional<Finish>& ended() const { return end_; }

  // ---- events ----

  void tick();
  void control(control::ControlRequest::What what) { apply(core_->control(what, clock_.now())); }
  void kick(const std::string& peer) { apply(core_->kick(peer, clock_.now())); }
  void pardon(const std::string& peer) { apply(core_->pardon(peer, clock_.now())); }
  // Writes an event. Refusals are counted: a flood of them does not fill the log.
  void log(const std::string& kind, const std::string& text) { apply({LogEvent{kind, text}}); }

  // ---- a worker's stream ----

  Result<SessionId> open_session(const std::string& peer);
  void hear(SessionId session, const control::FromWorker& message);
  // It sends messages without a pause.
  void end_flood(SessionId session);
  void end_session(SessionId session);

  // ---- uploads: open_upload, may_save, expect_file, receive, check_content, end_file, close_upload ----

  Result<int64_t> open_upload(const std::string& peer);
  Status may_save(int64_t upload, const control::StateFile& file) const;
  // False: nobody needs the file any more, which is not an error.
  Result<bool> expect_file(int64_t upload, const control::StateFile& file);
  Result<IncomingFile> receive(const control::StateFile& file);
  // An error if the file comes in far too many parts.
  Status note_part(int64_t upload);
  // Whether the file is the state of its unit.
  Status check_content(const std::filesystem::path& path, const control::StateFile& file) const;
  // `content`: what check_content() said. The sender may have lost its seat meanwhile; then nothing is taken.
  Status end_file(int64_t upload, const control::StateFile& file, IncomingFile& incoming, const Status& content);
  void close_upload(int64_t upload) { uploads_.erase(upload); }
  // Those that stand still or that nobody waits for.
  std::vector<int64_t> idle_uploads() const;

  // ---- downloads ----

  Status open_download(const std::string& peer);
  void close_download(const std::string& peer);

  // ---- questions ----

  // Whether the peer may call at all.
  Status check_peer(const std::string& peer) const;
  // An empty unit means the token table, which every stage holds.
  Status may_fetch(const std::string& peer, const std::string& unit) const;
  Status may_read_tokens(const std::string& peer) const;
  // All steps are done and evaluated.
  bool is_complete() const { return core_->committed() == identity_.config.train.steps && core_->has_final_loss(); }
  // Whether members may fetch the finished model.
  bool shares_model() const { return identity_.open && identity_.config.cluster.share_model; }

 private:
  struct Session {
    std::string peer;
    TimePoint opened{};
    bool said_hello = false;
  };
  // A file that is being uploaded.
  struct Upload {
    std::string peer;
    control::StateFile file;
    TimePoint moved{};  // when its last part came
    uint64_t parts = 0;
  };

  RunRules make_rules() const;
  Status read_checkpoints(StoredRun& stored);
  Status forget_other_cuts(StoredRun& stored);
  void apply(Effects effects);
  Status carry_out(const Effect& effect, Effects& more);
  Status keep_cuts(const std::vector<int64_t>& cuts);
  Status write_manifest(const WriteManifest& manifest);

  RunIdentity identity_;  // the cuts may be decided later, by the machines
  RunStore store_;
  const Clock& clock_;
  Outbox& outbox_;
  CheckpointStore checkpoints_;
  RunLogs logs_;
  RefusalLog door_refusals_;    // at the coordinator's own port
  RefusalLog worker_refusals_;  // at the workers'; apart, so that callers at one door cannot hide those at the other
  std::optional<CoordinatorCore> core_;
  std::map<SessionId, Session> sessions_;
  SessionId next_session_ = 0;
  std::map<int64_t, Upload> uploads_;
  int64_t next_upload_ = 0;
  std::map<std::string, int64_t> downloads_;  // under way, by peer
  std::optional<Finish> end_;
};

}  // namespace thinpipe
