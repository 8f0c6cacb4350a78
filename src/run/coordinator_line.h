// A process's connection to its coordinator: one of several addresses, mutual TLS. Every part of a worker that talks to
// the coordinator has a separate line, so that none waits behind another's data.
#pragma once

#include <chrono>
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
  std::string peer;  // as the certificate names it; empty for an operator
  std::vector<std::string> dialled = {};  // where to connect to reach them, if lines are capped; empty: there
};
// Loads the identity from that folder. Throws UserError if the folder holds no whole one.
CoordinatorAccess coordinator_access(std::vector<std::string> addresses, const std::filesystem::path& identity_folder);

class CoordinatorLine {
 public:
  explicit CoordinatorLine(CoordinatorAccess access) : access_(std::move(access)) {}

  // Returns a channel to the first address that answers. A single address is used whether it answers or not.
  std::shared_ptr<grpc::Channel> channel();
  // A stub of channel(). Shared, because hang_up() may replace it while a call uses it.
  std::shared_ptr<control::Coordinator::Stub> stub();
  // Drops the connection. The next use dials all addresses again.
  void hang_up();
  // For messages to people.
  std::string where() const;

 private:
  const CoordinatorAccess access_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<control::Coordinator::Stub> stub_;
};

// Makes an invite and returns its text. The caller is an operator.
Result<std::string> make_invite(CoordinatorLine& line, int64_t uses, std::chrono::seconds life,
                                const std::string& note);

// A channel to the coordinator of an invite, for Join only: the caller shows no certificate.
std::shared_ptr<grpc::Channel> strangers_channel(const std::string& address, const std::string& ca_pem);

// The operator's access to a run on this machine, whose folder holds the certificate.
CoordinatorAccess operator_access(const std::filesystem::path& run_folder, const std::string& address);
std::filesystem::path operator_folder(const std::filesystem::path& run_folder);
std::filesystem::path authority_folder(const std::filesystem::path& run_folder);

}  // namespace thinpipe
