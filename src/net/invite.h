// An invite: one line of text that a person can paste. It holds everything that a newcomer needs to find a run, to
// verify it, and to join it. Also here: the record that the inviting side keeps, and the rate limit for join attempts.
// Values only: nothing here waits or dials.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

inline constexpr size_t kMaxInviteAddresses = 8;

struct Invite {
  std::string run;                     // 1 to 64 bytes
  std::vector<std::string> addresses;  // the coordinator's, 1 to kMaxInviteAddresses, best first; check_address()
  std::string ca_pem;                  // one certificate
  std::string token;                   // 16 to 64 bytes, secret

  bool operator==(const Invite&) const = default;
};

// "thinpipe-v1-", a wire.Invite (proto/invite.proto) as URL-safe base64, and a checksum of 6 bytes: the first 12 hex
// digits of the SHA-256 of all text before them. The checksum only detects text that was cut off or mistyped; the token
// decides whether an invite is genuine. Throws UserError for an invite that parse_invite() would refuse.
std::string to_text(const Invite& invite);
// Ignores white space anywhere: mail programs break lines. Returns different errors for a text that is not an invite,
// one that is cut off or mistyped, and one of another version. Checks the checksum before it decodes anything.
Result<Invite> parse_invite(std::string_view text);

// 24 random bytes.
std::string new_token();

// When an invite expires. Functions take `now` as an argument, so that tests can choose it.
using WallTime = std::chrono::system_clock::time_point;
// "2026-11-16 04:30:00 UTC"
std::string utc_text(WallTime time);

// The coordinator's record of an invite. Holds only a hash of the token.
struct InviteRecord {
  std::string id;
  std::string token_sha256;  // sha256_hex(token)
  WallTime expires;          // by the coordinator's clock; no other clock is used
  int64_t uses_left = 1;
  bool revoked = false;
  std::string note;
};

// The error tells the person who tries to join why the invite cannot be used.
Status may_use(const InviteRecord& record, WallTime now);

struct JoinLimits {
  int64_t burst = 60;  // at once, all callers together
  double per_minute = 60;
  int64_t address_burst = 6;  // per caller_network()
  double address_per_minute = 6;
  size_t max_addresses = 4096;  // networks remembered; forgets the least busy one if there are more
};

// Limits how often strangers may try to join. Knows only the time that admit() is given. One thread at a time.
class JoinLimiter {
 public:
  explicit JoinLimiter(const JoinLimits& limits);

  // address: as gRPC writes it. Counts only the calls that it admits: refused calls do not use up the limit of others.
  // The error says how long to wait.
  Status admit(const std::string& address, WallTime now);
  size_t remembered() const { return networks_.size(); }

 private:
  struct Bucket {
    double tokens = 0;
    WallTime at;
  };

  void make_room(WallTime now);

  const JoinLimits limits_;
  Bucket all_;
  bool started_ = false;
  std::map<std::string, Bucket> networks_;
};

}  // namespace thinpipe
