#include "cluster/coordinator_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "base/result.h"
#include "net/grpc_link.h"

namespace thinpipe {
namespace {

constexpr auto kLinePatience = std::chrono::seconds(2);

grpc::ChannelArguments channel_arguments() {
  prepare_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // The coordinator may be back within milliseconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Whatever its name says: so long may one attempt take, TLS included.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  expect_name(arguments, kCoordinatorName);
  return arguments;
}

std::string peer_in(const std::string& certificate_pem) {
  const auto facts = read_certificate(certificate_pem);
  if (!facts) return "";
  for (const auto& name : facts.value().names) {
    if (const auto peer = peer_of_name(name)) return *peer;
  }
  return "";
}

}  // namespace

LiveIdentity::LiveIdentity(std::filesystem::path folder)
    : folder_(std::move(folder)), identity_(std::make_shared<RenewableIdentity>(load_identity(folder_).take())) {
  peer_ = peer_in(current().certificate_pem);
}

Identity LiveIdentity::current() const { return identity_->current().first; }
uint64_t LiveIdentity::version() const { return identity_->current().second; }

Status LiveIdentity::replace(const std::string& certificate_pem, const std::string& key_pem) {
  if (peer_in(certificate_pem) != peer_) return Error{"the new certificate is another peer's"};
  const Identity fresh{current().ca_pem, certificate_pem, key_pem};
  if (auto status = check_identity(fresh); !status) return status;
  if (auto status = save_identity(folder_, fresh); !status) return status;
  return identity_->renew(fresh);
}

std::shared_ptr<grpc::Channel> CoordinatorLine::dial(const std::string& address, const Identity& identity) const {
  return grpc::CreateCustomChannel(address, tls_channel(identity), channel_arguments());
}

std::shared_ptr<grpc::Channel> CoordinatorLine::channel() {
  const std::lock_guard lock(mutex_);
  if (channel_ && version_ == access_.identity->version()) return channel_;
  version_ = access_.identity->version();
  const auto identity = access_.identity->current();
  stub_.reset();
  channel_ = dial(access_.addresses.at(0), identity);
  if (access_.addresses.size() == 1) return channel_;
  std::vector<std::shared_ptr<grpc::Channel>> candidates{channel_};
  for (size_t i = 1; i < access_.addresses.size(); ++i) candidates.push_back(dial(access_.addresses[i], identity));
  for (const auto& candidate : candidates) candidate->GetState(true);  // all at once
  for (const auto& candidate : candidates) {
    if (!candidate->WaitForConnected(std::chrono::system_clock::now() + kLinePatience)) continue;
    channel_ = candidate;
    break;
  }
  return channel_;
}

std::shared_ptr<control::Coordinator::Stub> CoordinatorLine::stub() {
  const auto present = channel();
  const std::lock_guard lock(mutex_);
  if (!stub_) stub_ = control::Coordinator::NewStub(present);
  return stub_;
}

void CoordinatorLine::hang_up() {
  const std::lock_guard lock(mutex_);
  channel_.reset();
  stub_.reset();
}

std::string CoordinatorLine::where() const { return fmt::format("{}", fmt::join(access_.addresses, " or ")); }

std::shared_ptr<grpc::Channel> strangers_channel(const std::string& address, const std::string& ca_pem) {
  return grpc::CreateCustomChannel(address, tls_channel_without_identity(ca_pem), channel_arguments());
}

std::filesystem::path authority_folder(const std::filesystem::path& run_folder) { return run_folder / "identity"; }
std::filesystem::path operator_folder(const std::filesystem::path& run_folder) {
  return authority_folder(run_folder) / "operator";
}

CoordinatorAccess operator_access(const std::filesystem::path& run_folder, const std::string& address) {
  return {{address}, std::make_shared<LiveIdentity>(operator_folder(run_folder))};
}

}  // namespace thinpipe
