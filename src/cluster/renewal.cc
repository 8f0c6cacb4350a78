#include "cluster/renewal.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>

#include "base/log.h"

namespace thinpipe {
namespace {

using std::chrono::system_clock;

constexpr system_clock::duration kShortestWait = std::chrono::milliseconds(200);
constexpr system_clock::duration kLongestWait = std::chrono::minutes(10);  // a clock may be set
constexpr system_clock::duration kAfterFailure = std::chrono::seconds(2);

}  // namespace

Renewal::Renewal(CoordinatorAccess access)
    : access_(access), line_(std::move(access)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Renewal::run(const std::stop_token& stop) {
  auto obtained = system_clock::now();
  while (!stop.stop_requested()) {
    const auto facts = read_certificate(access_.identity->current().certificate_pem);
    const auto ends = facts ? facts.value().not_after : obtained;
    const auto left = obtained + (ends - obtained) / 2 - system_clock::now();
    auto wait = std::clamp(left, kShortestWait, kLongestWait);
    if (left <= system_clock::duration::zero()) {
      if (const auto status = renew(); status.ok()) {
        obtained = system_clock::now();
      } else {
        log_warn("the certificate is not renewed yet: {}", status.error().message);
        wait = kAfterFailure;
      }
    }
    std::unique_lock lock(mutex_);
    sleep_.wait_for(lock, stop, wait, [] { return false; });
  }
}

Status Renewal::renew() {
  const auto key = new_key_pem();
  const auto request_pem = certificate_request(key);
  if (!request_pem) return request_pem.error();
  control::RenewRequest request;
  request.set_certificate_request(request_pem.value());
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + std::chrono::seconds(10));
  control::RenewReply reply;
  const auto stub = line_.stub();
  if (const auto status = stub->Renew(&context, request, &reply); !status.ok()) return Error{status.error_message()};
  return access_.identity->replace(reply.certificate(), key);
}

}  // namespace thinpipe
