// The coordinator's door: who is calling, and may they? Joining, renewing and inviting are here; every other call
// (coordinator_calls.cc) asks here first. A certificate proves a name; what the name may do, the roster says.
#include <fmt/format.h>

#include "base/log.h"
#include "cluster/build_name.h"
#include "cluster/coordinator_service.h"
#include "cluster/run_changes.h"
#include "config/config_file.h"
#include "net/tls.h"

namespace thinpipe {
namespace {

constexpr uint32_t kMaxPadding = 1 << 20;
constexpr size_t kMostKeptHandshakes = 100;

grpc::Status door_denial(const Error& error) { return {grpc::StatusCode::PERMISSION_DENIED, error.message}; }

WallTime wall_now() { return WallTime::clock::now(); }

// One name and no other: the run's authority gives no certificate more.
bool is_named(const LinkCaller& caller, std::string_view name) {
  return caller.authenticated && caller.names.size() == 1 && caller.names.front() == name;
}

}  // namespace

Error CoordinatorService::refused(const LinkCaller& caller, const char* call, const std::string& reason) {
  const auto text = fmt::format("{} from {}: {}", call, caller.address, reason);
  if (const auto line = refusals_.note(text, clock_.now())) apply({LogEvent{"refused", *line}});
  return Error{reason};
}

void CoordinatorService::note_refused_handshake(const std::string& reason) {
  const std::lock_guard lock(handshakes_mutex_);
  if (refused_handshakes_.size() < kMostKeptHandshakes) refused_handshakes_.push_back(reason);
}

void CoordinatorService::log_refused_handshakes() {
  std::vector<std::string> reasons;
  {
    const std::lock_guard lock(handshakes_mutex_);
    reasons.swap(refused_handshakes_);
  }
  for (const auto& reason : reasons) {
    const auto text = fmt::format("a caller without a good certificate, or without TLS: {}", reason);
    // A budget of their own: strangers must not keep what members do out of the log.
    if (const auto line = handshake_refusals_.note(text, clock_.now())) apply({LogEvent{"refused", *line}});
  }
}

Result<std::string> CoordinatorService::peer_of(const LinkCaller& caller, const char* call) {
  if (!caller.authenticated) return refused(caller, call, "without a certificate; only Join works without one");
  const auto peer = caller.names.size() == 1 ? peer_of_name(caller.names.front()) : std::nullopt;
  if (!peer) return refused(caller, call, "the certificate is not that of a worker");
  if (core_->is_revoked(*peer)) return refused(caller, call, fmt::format("{} was removed from this run", *peer));
  return *peer;
}

Status CoordinatorService::require_operator(const LinkCaller& caller, const char* call) {
  if (is_named(caller, kOperatorName)) return {};
  return refused(caller, call, "only the run's operator may, with the certificate in the run's folder");
}

Status CoordinatorService::require_member(const LinkCaller& caller, const char* call) {
  if (is_named(caller, kOperatorName)) return {};
  const auto peer = peer_of(caller, call);
  return peer.ok() ? Status() : Status(peer.error());
}

void CoordinatorService::announce(std::vector<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

void CoordinatorService::describe_run(control::RunDescription& run) const {
  run.set_build(build_name());
  run.set_run(identity_.run);
  run.set_config_toml(to_toml(identity_.config));
  run.set_vocab(identity_.vocab);
  run.set_corpus_id(identity_.corpus_id);
  run.set_config_sha256(config_identity(identity_.config));
  run.set_seed_numbers_sha256(seed_numbers_);
  if (const auto& table = identity_.table) {
    run.mutable_table()->set_bytes(table->bytes);
    run.mutable_table()->set_sha256(table->sha256);
  }
}

grpc::Status CoordinatorService::Join(grpc::ServerContext* context, const control::JoinRequest* request,
                                      control::JoinReply* reply) {
  const std::lock_guard lock(mutex_);
  const auto now = wall_now();
  const auto no = [&](const std::string& reason) { return door_denial(refused(caller_of(*context), "Join", reason)); };
  if (auto status = admission_.admit_call(context->peer(), now); !status) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, refused(caller_of(*context), "Join", status.error().message).message};
  }
  const auto invite = admission_.check(*request, now);
  if (!invite) return no(invite.error().message);
  if (request->padding_wanted() > kMaxPadding) return no(fmt::format("at most {} bytes to measure with", kMaxPadding));
  const auto offer = core_->offer();
  describe_run(*reply->mutable_run());
  reply->set_protocol(kControlProtocol);
  reply->set_unix_time_us(std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
  if (offer.stage >= 0) reply->mutable_seat()->set_stage(offer.stage);
  reply->set_why(offer.why);
  reply->set_state_bytes(offer.state_bytes + (identity_.table ? identity_.table->bytes : 0));
  reply->set_step_s(core_->step_seconds());
  reply->set_padding(std::string(request->padding_wanted(), '\0'));
  if (!request->enrol()) return grpc::Status::OK;
  if (request->protocol() != kControlProtocol) {
    return no(fmt::format("speaks protocol {} and this run needs {}; install the same version of thinpipe",
                          request->protocol(), kControlProtocol));
  }
  const auto enrolled = admission_.enrol(invite.value(), *request, now);
  if (!enrolled) return no(enrolled.error().message);
  if (core_->is_revoked(enrolled.value().peer)) return no("was removed from this run");
  reply->set_peer(enrolled.value().peer);
  reply->set_certificate(enrolled.value().certificate_pem);
  apply({LogEvent{"enrolled",
                  fmt::format("{} from {}, by invite {}", enrolled.value().peer, context->peer(), invite.value().id)}});
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Renew(grpc::ServerContext* context, const control::RenewRequest* request,
                                       control::RenewReply* reply) {
  const std::lock_guard lock(mutex_);
  const auto peer = peer_of(caller_of(*context), "Renew");
  if (!peer) return door_denial(peer.error());
  const auto certificate = admission_.renew(peer.value(), request->certificate_request(), wall_now());
  if (!certificate) return door_denial(refused(caller_of(*context), "Renew", certificate.error().message));
  reply->set_certificate(certificate.value());
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Invite(grpc::ServerContext* context, const control::InviteRequest* request,
                                        control::InviteReply* reply) {
  const std::lock_guard lock(mutex_);
  if (auto status = require_operator(caller_of(*context), "Invite"); !status) return door_denial(status.error());
  auto answer = admission_.manage(*request, addresses_, wall_now());
  if (!answer) return {grpc::StatusCode::INVALID_ARGUMENT, answer.error().message};
  *reply = std::move(answer.value());
  return grpc::Status::OK;
}

Status CoordinatorService::may_tunnel(const TunnelHello& hello, const LinkCaller& caller) {
  const std::lock_guard lock(mutex_);
  const auto peer = peer_of(caller, "Tunnel");
  if (!peer) return peer.error();
  if (hello.run != identity_.run) return refused(caller, "Tunnel", "of another run");
  const auto allowed = core_->may_tunnel(peer.value(), hello.boundary, hello.epoch, hello.dials);
  return allowed.ok() ? Status() : Status(refused(caller, "Tunnel", allowed.error().message));
}

}  // namespace thinpipe
