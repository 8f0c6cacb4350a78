// A process's way to its coordinator: one of several addresses, mutual TLS with the certificate it has now. Every part
// of a worker that talks to the coordinator has a line of its own, so that none waits behind another's data.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/tls.h"
#include "proto/control.grpc.pb.h"

namespace thinpipe {

// A worker's certificate, renewed while it works; shared by its lines and its own door. Any thread.
class LiveIdentity {
 public:
  // Throws UserError when the folder holds none that is whole.
  explicit LiveIdentity(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  // The peer that the certificate names; empty for an operator.
  const std::string& peer() const { return peer_; }
  Identity current() const;
  uint64_t version() const;
  // Of the same peer. On the disk first.
  Status replace(const std::string& certificate_pem, const std::string& key_pem);
  // For tls_server(); shared with it.
  const std::shared_ptr<RenewableIdentity>& renewable() const { return identity_; }

 private:
  const std::filesystem::path folder_;
  std::shared_ptr<RenewableIdentity> identity_;
  std::string peer_;
};

// Shared: lines of several parts of a process hold the same identity.
struct CoordinatorAccess {
  std::vector<std::string> addresses;
  std::shared_ptr<LiveIdentity> identity;
};

class CoordinatorLine {
 public:
  explicit CoordinatorLine(CoordinatorAccess access) : access_(std::move(access)) {}

  // With the present certificate. Of several addresses the first that answers; of one, that one, connected or not.
  std::shared_ptr<grpc::Channel> channel();
  // Of channel(); shared because it may be replaced while a call uses it.
  std::shared_ptr<control::Coordinator::Stub> stub();
  // The next use dials anew, other addresses too.
  void hang_up();
  // For messages to people.
  std::string where() const;

 private:
  std::shared_ptr<grpc::Channel> dial(const std::string& address, const Identity& identity) const;

  const CoordinatorAccess access_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<control::Coordinator::Stub> stub_;
  uint64_t version_ = 0;  // of the certificate it was made with
};

// A channel to the coordinator of an invite, for Join only: without a certificate of one's own.
std::shared_ptr<grpc::Channel> strangers_channel(const std::string& address, const std::string& ca_pem);

// What the operator of a run on this machine uses: its folder holds the certificate.
CoordinatorAccess operator_access(const std::filesystem::path& run_folder, const std::string& address);
std::filesystem::path operator_folder(const std::filesystem::path& run_folder);
std::filesystem::path authority_folder(const std::filesystem::path& run_folder);

}  // namespace thinpipe
