// The coordinator as a gRPC service: checks who is calling and turns calls into calls of the desk (run_desk.h), which
// decides and keeps the state, under one lock. Serves token ids and files as bytes and makes no tensors.
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
#include "run/coordinator/given_model.h"
#include "run/coordinator/run_desk.h"
#include "text/windows.h"

namespace thinpipe {

// Who may take part, and the authority that signs their certificates.
struct RunDoor {
  CertificateAuthority authority;
  std::string operator_pem;  // the operator's certificate; others with that name are of earlier starts and refused
};

class CoordinatorService final : public control::Coordinator::Service, private Outbox {
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
  // The finished model, for members that keep it. give_model() when its files are written; members that ask earlier
  // wait.
  bool model_is_wanted() const;
  void give_model(std::vector<CheckpointFile> files);
  // How many have hung up after the end of the run and are still to fetch it.
  size_t keepers();
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
  grpc::Status GetModel(grpc::ServerContext*, const control::ModelRequest*, control::ModelFiles*) override;
  grpc::Status GetWindows(grpc::ServerContext*, const control::WindowsRequest*, control::Windows*) override;
  grpc::Status GetStatus(grpc::ServerContext*, const control::StatusRequest*, control::RunStatus*) override;
  grpc::Status Control(grpc::ServerContext*, const control::ControlRequest*, control::ControlReply*) override;

 private:
  // One open Attend stream.
  struct Session {
    grpc::ServerContext* context = nullptr;
    std::deque<control::ToWorker> queue;
    bool closed = false;   // ignores everything that still comes
    bool hung_up = false;  // by the worker
    bool keeps_model = false;
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
  // Returns the peer; its download is under way until close_download().
  Result<std::string> begin_download(const Visit& visit, const std::string& unit);
  Status may_read_tokens(const Visit& visit);
  Result<std::string> may_keep(const Visit& visit);
  grpc::Status other_run(const std::string& run) const;

  // The outbox of the desk. With the mutex held. send() adds the hashes of the step's tokens, which the core does not
  // know, to RunStep.
  Status send(SessionId session, control::ToWorker message) override;
  void close(SessionId session) override;
  void epoch_began(uint64_t epoch) override { tunnels_.drop(epoch); }
  std::string invite_of(const std::string& peer);
  // Carries out kick and unkick. Returns what to tell the operator.
  Result<std::string> shut_out_or_pardon(const control::ControlRequest& request);

  void write_messages(Session& session, Stream& stream);
  void describe_run(control::RunDescription& run) const;
  void describe_offer(const control::JoinRequest& request, WallTime now, control::JoinReply& reply) const;
  bool has_windows(const control::WindowsRequest& request) const;
  grpc::Status send_unit(const control::FileRequest& request, grpc::ServerWriter<control::FilePart>& writer);
  grpc::Status send_model_file(const std::string& peer, const control::FileRequest& request,
                               grpc::ServerWriter<control::FilePart>& writer);
  grpc::Status receive_file(const Visit& visit, int64_t upload, const control::FilePart& first,
                            grpc::ServerReader<control::FilePart>& reader);

  const RunDoor door_;
  const TokenWindows& windows_;
  const Clock& clock_;
  RunDesk desk_;
  Admission admission_;
  std::vector<std::string> addresses_;
  std::function<void(const std::string&, const std::string&)> on_member_;
  std::mutex budget_mutex_;
  CallBudget budget_;

  mutable std::mutex mutex_;  // guards the desk and everything below
  std::condition_variable changed_;
  std::map<SessionId, Session> sessions_;
  std::map<int64_t, grpc::ServerContext*> uploads_;
  int64_t hashed_step_ = -1;
  std::vector<std::string> ids_sha256_;  // of its microbatches
  TunnelService tunnels_;
  GivenModel model_;
};

}  // namespace thinpipe
