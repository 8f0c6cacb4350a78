#include "net/invite.h"

#include <arpa/inet.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

namespace thinpipe {
namespace {

constexpr size_t kTokenBytes = 24;
constexpr size_t kMaxNetworkBytes = 64;

// gRPC writes the brackets and the zone's sign of an IPv6 address percent-encoded.
std::string decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = text.substr(i, 3);
    const char letter = code == "%5B" || code == "%5b"   ? '['
                        : code == "%5D" || code == "%5d" ? ']'
                        : code == "%25"                  ? '%'
                                                         : '\0';
    plain += letter == '\0' ? text[i] : letter;
    if (letter != '\0') i += 2;
  }
  return plain;
}

std::optional<std::string> ipv4_network(const std::string& host) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) != 1) return std::nullopt;
  return host;
}

std::optional<std::string> ipv6_network(std::string_view host) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) != 1) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, address.s6_addr + 12, text.data(), text.size());
    return text.data();
  }
  std::memset(address.s6_addr + 8, 0, 8);
  ::inet_ntop(AF_INET6, &address, text.data(), text.size());
  return fmt::format("{}/64", text.data());
}

// Tokens after refilling until now. A clock that was set back refills nothing.
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

std::string new_token() {
  std::array<unsigned char, kTokenBytes> bytes{};
  TP_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "OpenSSL has no random numbers");
  return {bytes.begin(), bytes.end()};
}

Status may_use(const InviteRecord& record, WallTime now) {
  if (record.revoked) return Error{fmt::format("invite {} was revoked: ask for a new one", record.id)};
  if (now >= record.expires) {
    return Error{fmt::format("invite {} expired at {}: ask for a new one", record.id, utc_text(record.expires))};
  }
  if (record.uses_left <= 0) return Error{fmt::format("invite {} is used up: ask for a new one", record.id)};
  return {};
}

std::string caller_network(std::string_view address) {
  std::string plain = decoded(address.substr(0, 256));
  for (const std::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (plain.starts_with(scheme)) plain.erase(0, scheme.size());
  }
  std::optional<std::string> network;
  if (plain.starts_with('[')) {
    network = ipv6_network(std::string_view(plain).substr(1, plain.find(']') - 1));
  } else {
    network = ipv6_network(plain);  // a bare one: its colons are no port's
    if (!network) network = ipv4_network(plain.substr(0, plain.find(':')));
  }
  return network.value_or(std::string(address.substr(0, kMaxNetworkBytes)));
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

// A full bucket is as good as none. If all are in use the fullest goes: it has the least left to forget.
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
