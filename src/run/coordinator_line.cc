#include "run/coordinator_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "base/result.h"
#include "net/grpc_link.h"

namespace thinpipe {
namespace {

constexpr auto kLinePatience = std::chrono::seconds(2);
constexpr auto kInvitePatience = std::chrono::seconds(10);

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
  // Despite its name, this is the timeout of one connection attempt, including TLS.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  expect_name(arguments, kCoordinatorName);
  return arguments;
}

}  // namespace

CoordinatorAccess coordinator_access(std::vector<std::string> addresses, const std::filesystem::path& identity_folder) {
  CoordinatorAccess access{std::move(addresses), load_identity(identity_folder).take(), ""};
  for (const auto& name : certificate_names(access.identity.certificate_pem).take()) {
    if (auto peer = peer_of_name(name)) access.peer = std::move(*peer);
  }
  return access;
}

std::shared_ptr<grpc::Channel> CoordinatorLine::channel() {
  const std::lock_guard lock(mutex_);
  if (channel_) return channel_;
  stub_.reset();  // stub() may have used a channel that another thread has hung up
  std::vector<std::shared_ptr<grpc::Channel>> candidates;
  for (const auto& address : access_.dialled.empty() ? access_.addresses : access_.dialled) {
    candidates.push_back(grpc::CreateCustomChannel(address, tls_channel(access_.identity), channel_arguments()));
  }
  channel_ = candidates.at(0);
  if (candidates.size() == 1) return channel_;
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

Result<std::string> make_invite(CoordinatorLine& line, int64_t uses, std::chrono::seconds life,
                                const std::string& note) {
  control::InviteRequest request;
  request.set_what(control::InviteRequest::CREATE);
  request.set_uses(uses);
  request.set_lifetime_s(life.count());
  request.set_note(note);
  control::InviteReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kInvitePatience);
  const auto status = line.stub()->Invite(&context, request, &reply);
  if (!status.ok()) return Error{status.error_message()};
  return reply.text();
}

std::shared_ptr<grpc::Channel> strangers_channel(const std::string& address, const std::string& ca_pem) {
  return grpc::CreateCustomChannel(address, tls_channel_without_identity(ca_pem), channel_arguments());
}

std::filesystem::path authority_folder(const std::filesystem::path& run_folder) { return run_folder / "identity"; }
std::filesystem::path operator_folder(const std::filesystem::path& run_folder) {
  return authority_folder(run_folder) / "operator";
}

CoordinatorAccess operator_access(const std::filesystem::path& run_folder, const std::string& address) {
  return coordinator_access({address}, operator_folder(run_folder));
}

}  // namespace thinpipe
