// The certificates of one run. The run's authority signs one per member, and its DNS name says who the member is. They
// never expire, so a wrong clock does not matter. Uses OpenSSL only; tls.h turns an identity into gRPC's credentials,
// invite.h carries the authority's certificate to a newcomer.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// OpenSSL's EVP_PKEY and X509.
struct evp_pkey_st;
struct x509_st;

namespace thinpipe {

// The names in certificates. They are not host names: an address proves nothing about who answers there.
inline constexpr char kCoordinatorName[] = "coordinator.thinpipe";
inline constexpr char kOperatorName[] = "operator.thinpipe";
// 1 to 40 characters of a-z, 0-9 and '-'; '-' may not be the first or the last.
bool is_peer_id(std::string_view id);
// "<peer>.peer.thinpipe"; peer must pass is_peer_id().
std::string peer_name(const std::string& peer);
// The reverse of peer_name(); nullopt if it is not a peer's name.
std::optional<std::string> peer_of_name(std::string_view san);

// Returns `count` unpredictable bytes, for secrets and for names that must not repeat. random_hex() returns them as hex
// digits, 2 * count of them.
std::string random_bytes(size_t count);
std::string random_hex(size_t count);

// A new key (EC P-256), as PKCS#8 PEM.
std::string new_key_pem();
// A certificate request (CSR, as PEM): asks an authority to sign the key's public half, with proof of holding the key.
Result<std::string> certificate_request(const std::string& key_pem);

// Returns the DNS names in a certificate. Does not check who signed it.
Result<std::vector<std::string>> certificate_names(const std::string& pem);
// Converts a certificate to DER and back. The way back accepts only what certificate_der() returns: one certificate and
// nothing after it. `what` begins the error message: "the invite's authority".
Result<std::string> certificate_der(const std::string& pem, const std::string& what);
Result<std::string> certificate_from_der(const std::string& der, const std::string& what);

// The run's authority: whoever holds its key decides who is a member. Moved, not copied. Any thread may call issue().
class CertificateAuthority {
 public:
  // Reads the key and the certificate from the folder's authority.pem; makes both if there is no such file. Returns an
  // error if they do not match, belong to another run, or others may read the file. Call it in one process at a time.
  static Result<CertificateAuthority> open_or_create(const std::filesystem::path& folder, const std::string& run);

  const std::string& certificate_pem() const { return certificate_pem_; }

  // Signs the request's public key and ignores the rest of the request, which may be hostile. san: the coordinator's,
  // the operator's or a peer's name. The certificate is for servers and clients and never expires: the coordinator's
  // list, not a date, decides whether its holder still takes part.
  Result<std::string> issue(const std::string& request_pem, const std::string& san) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
    void operator()(x509_st* certificate) const;
  };
  using Key = std::unique_ptr<evp_pkey_st, Free>;
  using Certificate = std::unique_ptr<x509_st, Free>;

  CertificateAuthority(Key key, Certificate certificate);

  Key key_;
  Certificate certificate_;
  std::string certificate_pem_;
};

// A member's key and certificate, and the authority that it trusts.
struct Identity {
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;
};

// Checks that the key belongs to the certificate and that the authority has signed the certificate.
Status check_identity(const Identity& identity);

// Writes identity.pem (0600): the key, the certificate and the authority's certificate. Replaces the file atomically,
// so that nobody ever reads half an identity.
Status save_identity(const std::filesystem::path& folder, const Identity& identity);
// Returns an error if check_identity() refuses it, or if others may read the file.
Result<Identity> load_identity(const std::filesystem::path& folder);

}  // namespace thinpipe
