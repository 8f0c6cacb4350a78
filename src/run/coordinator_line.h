// A process's way to its coordinator: one of several addresses, mutual TLS. Every part of a worker that talks to the
// coordinator has a line of its own, so that none waits behind another's data.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/tls.h"
#include "proto/control.grpc.pb.h"

namespace thinpipe {

// Where the coordinator is, and who calls it.
struct CoordinatorAccess {
  std::vector<std::string> addresses;
  Identity identity;
  std::string peer;  // that the certificate names; empty for an operator
};
// With the identity in that folder. Throws UserError when the folder holds none that is whole.
CoordinatorAccess coordinator_access(std::vector<std::string> addresses, const std::filesystem::path& identity_folder);

class CoordinatorLine {
 public:
  explicit CoordinatorLine(CoordinatorAccess access) : access_(std::move(access)) {}

  // Of several addresses the first that answers; of one, that one, connected or not.
  std::shared_ptr<grpc::Channel> channel();
  // Of channel(); shared because hang_up() may replace it while a call uses it.
  std::shared_ptr<control::Coordinator::Stub> stub();
  // The next use dials again, other addresses too.
  void hang_up();
  // For messages to people.
  std::string where() const;

 private:
  const CoordinatorAccess access_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<control::Coordinator::Stub> stub_;
};

// A channel to the coordinator of an invite, for Join only: without a certificate of one's own.
std::shared_ptr<grpc::Channel> strangers_channel(const std::string& address, const std::string& ca_pem);

// What the operator of a run on this machine uses: its folder holds the certificate.
CoordinatorAccess operator_access(const std::filesystem::path& run_folder, const std::string& address);
std::filesystem::path operator_folder(const std::filesystem::path& run_folder);
std::filesystem::path authority_folder(const std::filesystem::path& run_folder);

}  // namespace thinpipe
