#include "net/invite.h"

#include <absl/strings/escaping.h>
#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>

#include "base/sha256.h"
#include "net/addresses.h"
#include "net/certificates.h"
#include "proto/invite.pb.h"

namespace thinpipe {
namespace {

constexpr std::string_view kPrefix = "thinpipe-v1-";
constexpr std::string_view kAnyVersion = "thinpipe-v";
constexpr std::string_view kSpaces = " \t\r\n\v\f";
constexpr size_t kMaxTextBytes = size_t{32} << 10;  // white space included
constexpr size_t kMaxRunBytes = 64;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 64;
constexpr size_t kMaxDerBytes = 4096;
constexpr size_t kChecksumDigits = 12;
constexpr size_t kTokenBytes = 24;
constexpr char kWhoseCertificate[] = "the invite's authority";

Error not_whole() { return Error{"this invite is cut off or mistyped: copy the whole line"}; }

std::string checksum(std::string_view text) { return sha256_hex(text).substr(0, kChecksumDigits); }

Status check_invite(const wire::Invite& invite) {
  const auto count = static_cast<size_t>(invite.addresses_size());
  if (invite.run().empty() || invite.run().size() > kMaxRunBytes) {
    return Error{fmt::format("an invite's run has a name of 1 to {} bytes, not {}", kMaxRunBytes, invite.run().size())};
  }
  if (count == 0 || count > kMaxInviteAddresses) {
    return Error{fmt::format("an invite holds 1 to {} addresses, not {}", kMaxInviteAddresses, count)};
  }
  for (const auto& address : invite.addresses()) TRY(check_address(address));
  if (invite.token().size() < kMinTokenBytes || invite.token().size() > kMaxTokenBytes) {
    return Error{fmt::format("an invite's token has {} to {} bytes, not {}", kMinTokenBytes, kMaxTokenBytes,
                             invite.token().size())};
  }
  if (invite.authority_der().size() > kMaxDerBytes) {
    return Error{
        fmt::format("an invite's authority has at most {} bytes, not {}", kMaxDerBytes, invite.authority_der().size())};
  }
  return {};
}

}  // namespace

std::string to_text(const Invite& invite) {
  wire::Invite message;
  message.set_run(invite.run);
  for (const auto& address : invite.addresses) message.add_addresses(address);
  message.set_token(invite.token);
  message.set_authority_der(certificate_der(invite.ca_pem, kWhoseCertificate).take());
  check_invite(message).take();
  const auto text = std::string(kPrefix) + absl::WebSafeBase64Escape(message.SerializeAsString());
  return text + checksum(text);
}

Result<Invite> parse_invite(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return Error{fmt::format("this is not an invite: it has {} bytes, and an invite has fewer than {}", text.size(),
                             kMaxTextBytes)};
  }
  std::string dense;
  std::copy_if(text.begin(), text.end(), std::back_inserter(dense),
               [](char c) { return kSpaces.find(c) == std::string_view::npos; });
  if (!dense.empty() && kPrefix.starts_with(dense)) return not_whole();
  if (dense.starts_with(kAnyVersion) && !dense.starts_with(kPrefix)) {
    return Error{
        fmt::format("this invite does not begin with {}, the version that this program reads: both sides need "
                    "the same thinpipe",
                    kPrefix)};
  }
  if (!dense.starts_with(kPrefix)) {
    return Error{fmt::format("this is not an invite: an invite begins with {}", kPrefix)};
  }
  if (dense.size() < kPrefix.size() + kChecksumDigits) return not_whole();
  const auto sum = dense.substr(dense.size() - kChecksumDigits);
  dense.resize(dense.size() - kChecksumDigits);
  if (sum != checksum(dense)) return not_whole();
  std::string bytes;
  wire::Invite message;
  if (!absl::WebSafeBase64Unescape(dense.substr(kPrefix.size()), &bytes) || !message.ParseFromString(bytes)) {
    return Error{"this text looks like an invite and holds something else: ask for a new one"};
  }
  TRY(check_invite(message));
  auto ca_pem = TRY(certificate_from_der(message.authority_der(), kWhoseCertificate));
  return Invite{
      message.run(), {message.addresses().begin(), message.addresses().end()}, std::move(ca_pem), message.token()};
}

// ---- the inviting side's record and rate limit ----

namespace {

// Refills the bucket up to now. A clock that was set back refills nothing.
template <class Bucket>
void refill(Bucket& bucket, int64_t burst, double per_minute, WallTime now) {
  const std::chrono::duration<double> passed = now - bucket.at;
  if (passed.count() > 0) {
    bucket.tokens = std::min(static_cast<double>(burst), bucket.tokens + passed.count() * per_minute / 60);
  }
  bucket.at = now;
}

int64_t seconds_until_one(double tokens, double per_minute) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil((1 - tokens) * 60 / per_minute)));
}

}  // namespace

std::string new_token() { return random_bytes(kTokenBytes); }

std::string utc_text(WallTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::chrono::floor<std::chrono::seconds>(time)));
}

Status may_use(const InviteRecord& record, WallTime now) {
  if (record.revoked) return Error{fmt::format("invite {} was revoked: ask for a new one", record.id)};
  if (now >= record.expires) {
    return Error{fmt::format("invite {} expired at {}: ask for a new one", record.id, utc_text(record.expires))};
  }
  if (record.uses_left <= 0) return Error{fmt::format("invite {} is used up: ask for a new one", record.id)};
  return {};
}

JoinLimiter::JoinLimiter(const JoinLimits& limits) : limits_(limits) {
  TP_CHECK(limits.burst > 0 && limits.per_minute > 0 && limits.address_burst > 0 && limits.address_per_minute > 0 &&
               limits.max_addresses > 0,
           "a limit of joins that lets nobody in");
}

Status JoinLimiter::admit(const std::string& address, WallTime now) {
  if (!started_) all_ = {static_cast<double>(limits_.burst), now};
  started_ = true;
  refill(all_, limits_.burst, limits_.per_minute, now);
  const auto network = caller_network(address);
  const auto known = networks_.find(network);
  if (known != networks_.end()) {
    refill(known->second, limits_.address_burst, limits_.address_per_minute, now);
    if (known->second.tokens < 1) {
      return Error{fmt::format("too many tries to join from {}: wait {} s", network,
                               seconds_until_one(known->second.tokens, limits_.address_per_minute))};
    }
  }
  if (all_.tokens < 1) {
    return Error{
        fmt::format("too many are trying to join: wait {} s", seconds_until_one(all_.tokens, limits_.per_minute))};
  }
  all_.tokens -= 1;
  if (known != networks_.end()) {
    known->second.tokens -= 1;
    return {};
  }
  if (networks_.size() >= limits_.max_addresses) make_room(now);
  networks_[network] = {static_cast<double>(limits_.address_burst) - 1, now};
  return {};
}

// Drops full buckets: they limit nothing. If none is full, drops the fullest: it loses the least.
void JoinLimiter::make_room(WallTime now) {
  for (auto& [network, bucket] : networks_) refill(bucket, limits_.address_burst, limits_.address_per_minute, now);
  std::erase_if(networks_,
                [&](const auto& entry) { return entry.second.tokens >= static_cast<double>(limits_.address_burst); });
  if (networks_.size() < limits_.max_addresses) return;
  networks_.erase(std::max_element(networks_.begin(), networks_.end(), [](const auto& one, const auto& other) {
    return one.second.tokens < other.second.tokens;
  }));
}

}  // namespace thinpipe
