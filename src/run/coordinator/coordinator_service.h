// The coordinator as a gRPC service: turns calls into the core's events and carries out its effects, in order, under
// one lock. What the core wants durable is on the disk before anybody is told.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "net/tunnel_service.h"
#include "pipeline/batches.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator/admission.h"
#include "run/coordinator/refusal_log.h"
#include "run/coordinator/run_logs.h"
#include "run/coordinator/run_store.h"
#include "run/core/coordinator_core.h"
#include "store/checkpoints.h"

namespace thinpipe {

// What a run is, beside what has happened in it.
struct RunIdentity {
  std::string run;  // 32 hex digits
  RunConfig config;
  std::filesystem::path folder;
  std::string corpus_id;
  int64_t vocab = 0;
  std::optional<CheckpointFile> table;  // the frozen token table's file, where the config names one
};

// How others reach this coordinator, and by what they know it.
struct RunDoor {
  CertificateAuthority authority;
  bool open = false;  // strangers may take part
};

class CoordinatorService final : public control::Coordinator::Service {
 public:
  // batches: for GetWindows. All references must outlive it.
  CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, BatchSource& batches, const Clock& clock);
  ~CoordinatorService() override;

  // Reads the store and the checkpoints; nothing may be called before it has succeeded.
  Status start();
  void tick();
  void stop_after_checkpoint();
  // Set when the run is over.
  std::optional<Finish> ended() const;
  // Waits until every worker has hung up, or so long.
  void wait_for_farewells(Duration most);
  // Ends every stream.
  void close_all();
  // All steps are done and their checkpoint is written.
  bool complete() const;
  control::RunStatus status() const;
  Status remember_port(int port);
  // What invites name.
  void announce(std::vector<std::string> addresses);
  // The relay: registered with the same server.
  TunnelService& tunnels() { return tunnels_; }
  // Once complete(): the model's weights as one file.
  Status write_model() const;

  grpc::Status Join(grpc::ServerContext*, const control::JoinRequest*, control::JoinReply*) override;
  grpc::Status Invite(grpc::ServerContext*, const control::InviteRequest*, control::InviteReply*) override;
  grpc::Status GetRun(grpc::ServerContext*, const control::RunRequest*, control::RunDescription*) override;
  grpc::Status Attend(grpc::ServerContext*, grpc::ServerReaderWriter<control::ToWorker, control::FromWorker>*) override;
  grpc::Status PutFile(grpc::ServerContext*, grpc::ServerReader<control::FilePart>*, control::FileTaken*) override;
  grpc::Status GetFile(grpc::ServerContext*, const control::FileRequest*,
                       grpc::ServerWriter<control::FilePart>*) override;
  grpc::Status GetWindows(grpc::ServerContext*, const control::WindowsRequest*, control::Windows*) override;
  grpc::Status GetStatus(grpc::ServerContext*, const control::StatusRequest*, control::RunStatus*) override;
  grpc::Status Control(grpc::ServerContext*, const control::ControlRequest*, control::ControlReply*) override;

 private:
  struct Session {
    grpc::ServerContext* context = nullptr;
    std::deque<control::ToWorker> queue;
    bool closed = false;
    bool hung_up = false;  // by the worker
  };

  // The caller's name among the run's peers; an error, which is logged, for everybody else. With the mutex held.
  Result<std::string> peer_of(const LinkCaller& caller, const char* call);
  Status require_operator(const LinkCaller& caller, const char* call);
  Status require_member(const LinkCaller& caller, const char* call);
  Error refused(const LinkCaller& caller, const char* call, const std::string& reason);
  // Whether that caller may open that end of a tunnel.
  Status may_tunnel(const TunnelHello& hello, const LinkCaller& caller);
  void describe_run(control::RunDescription& run) const;
  // With the mutex held.
  void apply(Effects effects);
  Status carry_out(const Effect& effect, Effects& more);
  // Not of a later step, every byte checked. Why newer ones were passed over is logged.
  Result<std::optional<CheckpointManifest>> newest_checkpoint_of(int64_t committed);
  Status write_manifest(const WriteManifest& manifest);
  Status keep_cuts(const std::vector<int64_t>& cuts);
  RunRules make_rules() const;

  RunIdentity identity_;  // its cuts may be decided when the machines are known
  const std::string seed_numbers_;
  const RunDoor door_;
  RunStore store_;
  Admission admission_;
  std::vector<std::string> addresses_;
  RefusalLog refusals_;
  BatchSource& batches_;
  const Clock& clock_;
  const TimePoint start_;
  CheckpointStore checkpoints_;
  RunLogs logs_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CoordinatorCore> core_;
  std::map<SessionId, Session> sessions_;
  SessionId next_session_ = 0;
  std::optional<Finish> end_;
  std::mutex batches_mutex_;
  TunnelService tunnels_;
};

}  // namespace thinpipe
