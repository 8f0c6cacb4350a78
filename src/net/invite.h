// An invite: one text that a person can paste. It holds all a newcomer needs to find a run, to know that it is the
// right one, and to be let in. Also here: the record that the inviting side keeps, and how often strangers may try.
// Values only: nothing here waits or dials.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "net/certificates.h"

namespace thinpipe {

struct Invite {
  std::string run;                     // 1 to 64 bytes
  std::vector<std::string> addresses;  // 1 to 8 of the coordinator, the best first; check_address()
  std::string ca_pem;                  // one certificate
  std::string token;                   // 16 to 64 bytes, secret

  bool operator==(const Invite&) const = default;
};

// "host:port", "192.0.2.7:port" or "[v6]:port" of at most 255 bytes.
Status check_address(std::string_view address);

// "thinpipe-v1-" and base64url of: run, addresses, token (each its length in a byte, then its bytes; the addresses
// behind their count), the certificate's DER behind its length in two bytes (big-endian), and the first 6 bytes of the
// SHA-256 of "thinpipe-v1-" and all that. Throws UserError for an invite that parse_invite() would refuse.
std::string to_text(const Invite& invite);
// White space anywhere is ignored: mail programs break lines. Returns different errors for a text that is not an
// invite, one that is cut off or mistyped, and one of another version.
Result<Invite> parse_invite(std::string_view text);

// 24 random bytes.
std::string new_token();

// What the coordinator keeps of an invite; of the token only its hash.
struct InviteRecord {
  std::string id;
  std::string token_sha256;  // sha256_hex(token)
  WallTime expires;
  int64_t uses_left = 1;
  bool revoked = false;
  std::string note;
};

// An error says why not, for the one who tries to join.
Status may_use(const InviteRecord& record, WallTime now);

// The part of a caller's address that whoever dials cannot change at will: "192.0.2.7" of "ipv4:192.0.2.7:40000",
// "2001:db8:1:2::/64" of "ipv6:[2001:db8:1:2:3:4:5:6]:40000". Also without the scheme and without the port. What is
// neither stays as it is, cut to 64 bytes.
std::string caller_network(std::string_view address);

struct JoinLimits {
  int64_t burst = 60;  // at once, of all callers together
  double per_minute = 60;
  int64_t address_burst = 6;  // of one network
  double address_per_minute = 6;
  size_t max_addresses = 4096;  // remembered; when more are busy at once, the least busy is forgotten
};

// How often strangers may try to join. Time is what admit() is told; one thread at a time.
class JoinLimiter {
 public:
  explicit JoinLimiter(const JoinLimits& limits);

  // Counts only what it lets through: those who are refused take nothing from the others. An error says how long to
  // wait.
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
