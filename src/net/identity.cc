// Identities on disk (certificates.h), and whether one holds together.
#include <openssl/err.h>

#include "base/files.h"
#include "net/certificates.h"
#include "net/openssl_handles.h"

namespace thinpipe {
namespace {

struct IdentityNames {
  std::string ca, certificate, key;
};

Status check_parts(const Identity& identity, const IdentityNames& names) {
  const auto authority = parse_certificate(identity.ca_pem, names.ca);
  if (!authority) return authority.error();
  const auto certificate = parse_certificate(identity.certificate_pem, names.certificate);
  if (!certificate) return certificate.error();
  const auto key = read_key(identity.key_pem, names.key);
  if (!key) return key.error();
  X509& own = *certificate.value();
  if (X509_check_private_key(&own, key.value().get()) != 1) {
    ERR_clear_error();
    return Error{fmt::format("{} is not of the key in {}: bring back the two that belong together, or join again",
                             names.certificate, names.key)};
  }
  EVP_PKEY* const authority_key = X509_get0_pubkey(authority.value().get());
  if (authority_key == nullptr || X509_check_issued(authority.value().get(), &own) != X509_V_OK ||
      X509_verify(&own, authority_key) != 1) {
    ERR_clear_error();
    return Error{
        fmt::format("{} is not signed by the authority in {}: bring back the two that belong together, or join "
                    "again",
                    names.certificate, names.ca)};
  }
  return {};
}

}  // namespace

Status check_identity(const Identity& identity) {
  return check_parts(identity, {"the authority's certificate", "the certificate", "the key"});
}

Status save_identity(const std::filesystem::path& folder, const Identity& identity) {
  if (auto made = make_directories(folder); !made) return made;
  if (auto status = write_file_atomically(folder / "identity.key", identity.key_pem, FileMode::kPrivate); !status) {
    return status;
  }
  if (auto status = write_file_atomically(folder / "ca.pem", identity.ca_pem); !status) return status;
  return write_file_atomically(folder / "identity.pem", identity.certificate_pem);
}

Result<Identity> load_identity(const std::filesystem::path& folder) {
  const auto authority = read_file(folder / "ca.pem");
  if (!authority) return authority.error();
  const auto certificate = read_file(folder / "identity.pem");
  if (!certificate) return certificate.error();
  const auto key = read_private_file(folder / "identity.key");
  if (!key) return key.error();
  Identity identity{authority.value(), certificate.value(), key.value()};
  const IdentityNames names{(folder / "ca.pem").string(), (folder / "identity.pem").string(),
                            (folder / "identity.key").string()};
  if (auto whole = check_parts(identity, names); !whole) return whole.error();
  return identity;
}

}  // namespace thinpipe
