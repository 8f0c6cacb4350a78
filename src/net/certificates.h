// The certificates of one run: its own authority signs one per member, and a member is who its certificate's DNS name
// says. OpenSSL only; tls.h turns an identity into gRPC's credentials, invite.h carries the authority's certificate to
// somebody new.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// Dates of certificates and invites; passed in, so that tests choose it.
using WallTime = std::chrono::system_clock::time_point;

// "2026-11-16 04:30:00 UTC"
std::string utc_text(WallTime time);

// The names in a certificate. None of them is a host's: an address proves nothing about who answers there.
inline constexpr char kCoordinatorName[] = "coordinator.thinpipe";
inline constexpr char kOperatorName[] = "operator.thinpipe";
// 1 to 40 of a-z, 0-9 and '-', which is neither the first nor the last.
bool is_peer_id(std::string_view id);
// "<peer>.peer.thinpipe"; peer: is_peer_id().
std::string peer_name(const std::string& peer);
// The other way; nothing when it is not a peer's name.
std::optional<std::string> peer_of_name(std::string_view san);

// Bytes that nobody can predict, for secrets and for names that must not repeat; random_hex() writes them as 2 * count
// hex digits.
std::string random_bytes(size_t count);
std::string random_hex(size_t count);

// A new key (EC P-256), as PKCS#8 PEM.
std::string new_key_pem();
// Asks an authority to sign that key's public half, with proof that the asker holds the other (a CSR, as PEM).
Result<std::string> certificate_request(const std::string& key_pem);

// The DNS names in a certificate. Says nothing about who signed it.
Result<std::vector<std::string>> certificate_names(const std::string& pem);
// A certificate's DER bytes, and the way back. Only bytes that are written again exactly as they are here: one
// certificate and nothing behind it. `what` opens the error: "the invite's authority".
Result<std::string> certificate_der(const std::string& pem, const std::string& what);
Result<std::string> certificate_from_der(const std::string& der, const std::string& what);

// The run's authority: whoever holds its key decides who is a member. Moved, not copied; issue() from any thread.
class CertificateAuthority {
 public:
  // The one in the folder: ca.key (0600) and ca.pem. Where neither is, makes them, for ten years. An error when only
  // one of them is there, they do not belong together, they are of another run, or others may read the key. By one
  // process at a time.
  static Result<CertificateAuthority> open_or_create(const std::filesystem::path& folder, const std::string& run,
                                                     WallTime now);
  ~CertificateAuthority();
  CertificateAuthority(CertificateAuthority&& other) noexcept;
  CertificateAuthority& operator=(CertificateAuthority&& other) noexcept;

  const std::string& certificate_pem() const;

  // A certificate for the request's public key and for nothing else that it says; the request may be hostile. san: the
  // coordinator's, the operator's or a peer's name. It is valid for as long as the authority itself, as server and as
  // client: whether its holder still takes part is decided by the coordinator's list, not by a date.
  Result<std::string> issue(const std::string& request_pem, const std::string& san) const;

 private:
  struct Signer;
  explicit CertificateAuthority(std::unique_ptr<const Signer> signer);
  static Result<CertificateAuthority> open(const std::filesystem::path& folder, const std::string& run, WallTime now);
  static Result<CertificateAuthority> create(const std::filesystem::path& folder, const std::string& run, WallTime now);

  std::unique_ptr<const Signer> signer_;
};

// What a member shows and whom it trusts.
struct Identity {
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;
};

// The key is the certificate's, and the certificate the authority's. Not whether it has expired.
Status check_identity(const Identity& identity);

// identity.key (0600), ca.pem and identity.pem, each replaced at once and in this order: a crash in between leaves a
// whole identity if the key stays the same, and otherwise one that load_identity() refuses.
Status save_identity(const std::filesystem::path& folder, const Identity& identity);
// Only one that holds together, by check_identity(), and whose key nobody else may read.
Result<Identity> load_identity(const std::filesystem::path& folder);

}  // namespace thinpipe
