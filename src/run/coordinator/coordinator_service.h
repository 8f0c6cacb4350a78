// The coordinator as a gRPC service: checks who is calling, turns calls into events of the core and carries out the
// core's effects, in order, under one lock. A durable effect is on the disk before anybody hears of it. Serves token
// ids and files as bytes and makes no tensors.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "net/tls.h"
#include "net/tunnel_service.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator/admission.h"
#include "run/coordinator/call_limits.h"
#include "run/coordinator/run_logs.h"
#include "run/coordinator/run_store.h"
#include "run/core/coordinator_core.h"
#include "store/checkpoints.h"
#include "text/windows.h"

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
};

// Who may take part, and the authority that signs their certificates.
struct RunDoor {
  CertificateAuthority authority;
  bool open = false;         // strangers may join
  std::string operator_pem;  // the operator's certificate; others with that name are of earlier starts and refused
};

class CoordinatorService final : public control::Coordinator::Service {
 public:
  // windows: for GetWindows. All references must outlive it.
  CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, const TokenWindows& windows,
                     const Clock& clock);

  // Reads the store and the checkpoints. Must succeed before anything else is called.
  Status start();
  void tick();
  void stop_after_checkpoint();
  // nullopt until the run is over.
  std::optional<Finish> ended() const;
  // Waits until every worker has hung up, but no longer than `most`.
  void wait_for_farewells(Duration most);
  // Ends every stream.
  void close_all();
  // True if all steps are done and evaluated.
  bool complete() const;
  control::RunStatus status() const;
  Status remember_port(int port);
  // Is told the address and the name of every caller that has proven to be a member. Set it before calls come.
  void on_member(std::function<void(const std::string& address, const std::string& name)> told);
  // Sets the addresses that invites name.
  void announce(std::vector<std::string> addresses);
  // The relay. Register it with the same server.
  TunnelService& tunnels() { return tunnels_; }

  using Stream = grpc::ServerReaderWriter<control::ToWorker, control::FromWorker>;
  grpc::Status Join(grpc::ServerContext*, const control::JoinRequest*, control::JoinReply*) override;
  grpc::Status Invite(grpc::ServerContext*, const control::InviteRequest*, control::InviteReply*) override;
  grpc::Status GetRun(grpc::ServerContext*, const control::RunRequest*, control::RunDescription*) override;
  grpc::Status Attend(grpc::ServerContext*, Stream*) override;
  grpc::Status PutFile(grpc::ServerContext*, grpc::ServerReader<control::FilePart>*, control::FileTaken*) override;
  grpc::Status GetFile(grpc::ServerContext*, const control::FileRequest*,
                       grpc::ServerWriter<control::FilePart>*) override;
  grpc::Status GetWindows(grpc::ServerContext*, const control::WindowsRequest*, control::Windows*) override;
  grpc::Status GetStatus(grpc::ServerContext*, const control::StatusRequest*, control::RunStatus*) override;
  grpc::Status Control(grpc::ServerContext*, const control::ControlRequest*, control::ControlReply*) override;

 private:
  // One open Attend stream.
  struct Session {
    std::string peer;
    TimePoint opened{};
    bool said_hello = false;
    grpc::ServerContext* context = nullptr;
    std::deque<control::ToWorker> queue;
    bool closed = false;   // ignores everything that still comes
    bool hung_up = false;  // by the worker
  };
  // A file that is being uploaded.
  struct Upload {
    std::string peer;
    control::StateFile file;
    TimePoint moved{};  // when its last part came
    grpc::ServerContext* context = nullptr;
  };
  // A caller and the call that they make.
  struct Visit {
    Caller caller;
    const char* call;
  };

  // Who is calling. Lets a caller wait that calls too often, on its own thread: then a flood costs next to nothing.
  // Without the mutex.
  Visit visit_of(const grpc::ServerContext& context, const char* call, double cost = 1);
  // Checks who is calling and whether they may. With the mutex held. Logs errors.
  Result<std::string> peer_of(const Visit& visit);
  bool is_operator(const Caller& caller) const;
  Status require_operator(const Visit& visit);
  Status require_member(const Visit& visit);
  Error refused(const Visit& visit, const std::string& reason);
  // The same without the mutex.
  Status may_tunnel(const wire::Hello& hello, const Caller& caller);
  Status may_fetch(const Visit& visit, const std::string& unit);
  Status may_read_tokens(const Visit& visit);
  grpc::Status other_run(const std::string& run) const;

  // With the mutex held.
  void hear(SessionId id, const Visit& visit, const std::string& peer, const control::FromWorker& message);
  // Ends streams without a Hello and uploads that stand still or that nobody waits for.
  void end_idle_calls();
  std::string invite_of(const std::string& peer);
  // Carries out kick and unkick. Returns what to tell the operator.
  Result<std::string> shut_out_or_pardon(const control::ControlRequest& request);
  void apply(Effects effects);
  Status carry_out(const Effect& effect, Effects& more);
  Status keep_cuts(const std::vector<int64_t>& cuts);
  Status write_manifest(const WriteManifest& manifest);
  // Queues the message; adds the hashes of the step's tokens, which the core does not know, to RunStep.
  Status send(SessionId session, control::ToWorker message);

  RunRules make_rules() const;
  Status read_checkpoints(StoredRun& stored);
  Status forget_other_cuts(StoredRun& stored);
  void write_messages(Session& session, Stream& stream);
  void describe_run(control::RunDescription& run) const;
  void describe_offer(const control::JoinRequest& request, WallTime now, control::JoinReply& reply) const;
  bool has_windows(const control::WindowsRequest& request) const;
  grpc::Status receive_file(const Visit& visit, int64_t upload, const control::FilePart& first,
                            grpc::ServerReader<control::FilePart>& reader);
  // Whether an uploaded file is the state of its unit.
  Status check_content(const std::filesystem::path& path, const control::StateFile& file) const;

  RunIdentity identity_;  // the cuts may be decided later, by the machines
  const RunDoor door_;
  RunStore store_;
  Admission admission_;
  std::vector<std::string> addresses_;
  std::function<void(const std::string&, const std::string&)> on_member_;
  std::mutex budget_mutex_;
  CallBudget budget_;
  RefusalLog door_refusals_;    // at the coordinator's own port
  RefusalLog worker_refusals_;  // at the workers'; apart, so that callers at one door cannot hide those at the other
  const TokenWindows& windows_;
  const Clock& clock_;
  CheckpointStore checkpoints_;
  RunLogs logs_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CoordinatorCore> core_;
  std::map<SessionId, Session> sessions_;
  SessionId next_session_ = 0;
  std::map<int64_t, Upload> uploads_;
  int64_t next_upload_ = 0;
  int64_t hashed_step_ = -1;
  std::vector<std::string> ids_sha256_;  // of its microbatches
  std::optional<Finish> end_;
  TunnelService tunnels_;
};

}  // namespace thinpipe
