// The certificates of one run: its own authority signs one per member, and a member is who its certificate's DNS name
// says. They stay valid for as long as the run exists, whatever a clock says. OpenSSL only; tls.h turns an identity
// into gRPC's credentials, invite.h carries the authority's certificate to a newcomer.
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

// The names in a certificate. None of them is a host's: an address proves nothing about who answers there.
inline constexpr char kCoordinatorName[] = "coordinator.thinpipe";
inline constexpr char kOperatorName[] = "operator.thinpipe";
// 1 to 40 of a-z, 0-9 and '-', which is neither the first nor the last.
bool is_peer_id(std::string_view id);
// "<peer>.peer.thinpipe"; peer: is_peer_id().
std::string peer_name(const std::string& peer);
// The reverse; nullopt if it is not a peer's name.
std::optional<std::string> peer_of_name(std::string_view san);

// `count` bytes that nobody can predict, for secrets and for names that must not repeat; random_hex() returns them as
// 2 * count hex digits.
std::string random_bytes(size_t count);
std::string random_hex(size_t count);

// A new key (EC P-256), as PKCS#8 PEM.
std::string new_key_pem();
// A certificate request (CSR, as PEM): asks an authority to sign the key's public half, with proof of holding the key.
Result<std::string> certificate_request(const std::string& key_pem);

// The DNS names in a certificate. Says nothing about who signed it.
Result<std::vector<std::string>> certificate_names(const std::string& pem);
// A certificate's DER bytes, and the reverse, which accepts only bytes that certificate_der() gives: one certificate
// and nothing behind it. `what` opens the error: "the invite's authority".
Result<std::string> certificate_der(const std::string& pem, const std::string& what);
Result<std::string> certificate_from_der(const std::string& der, const std::string& what);

// The run's authority: whoever holds its key decides who is a member. Moved, not copied; issue() from any thread.
class CertificateAuthority {
 public:
  // The one in the folder's authority.pem, which holds its key and its certificate. Makes both if the file is not
  // there. An error if they do not belong together, belong to another run, or others may read the file. One process at
  // a time.
  static Result<CertificateAuthority> open_or_create(const std::filesystem::path& folder, const std::string& run);

  const std::string& certificate_pem() const { return certificate_pem_; }

  // A certificate for the request's public key and for nothing else that it says; the request may be hostile. san: the
  // coordinator's, the operator's or a peer's name. It serves as server and as client, and no clock makes it invalid:
  // whether its holder still takes part is decided by the coordinator's list, not by a date.
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

// What a member shows and whom it trusts.
struct Identity {
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;
};

// The key belongs to the certificate, and the authority has signed the certificate.
Status check_identity(const Identity& identity);

// As identity.pem (0600): the key, the certificate and the authority's certificate. One file that is replaced at once,
// so that nobody ever reads half of an identity.
Status save_identity(const std::filesystem::path& folder, const Identity& identity);
// An error if check_identity() refuses it, or if others may read the file.
Result<Identity> load_identity(const std::filesystem::path& folder);

}  // namespace thinpipe
