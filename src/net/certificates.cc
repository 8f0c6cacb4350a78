#include "net/certificates.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/files.h"

namespace thinpipe {
namespace {

// OpenSSL's objects as owned values.
template <auto Free>
struct OpenSslFree {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

using BioHandle = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;
using KeyHandle = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using CertificateHandle = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using RequestHandle = std::unique_ptr<X509_REQ, OpenSslFree<X509_REQ_free>>;
using ExtensionHandle = std::unique_ptr<X509_EXTENSION, OpenSslFree<X509_EXTENSION_free>>;
using NamesHandle = std::unique_ptr<GENERAL_NAMES, OpenSslFree<GENERAL_NAMES_free>>;
using NumberHandle = std::unique_ptr<BIGNUM, OpenSslFree<BN_free>>;

constexpr std::string_view kPeerSuffix = ".peer.thinpipe";
constexpr size_t kMaxPeerIdBytes = 40;
// Longer texts are refused before parsing.
constexpr size_t kMaxPemBytes = size_t{16} << 10;
constexpr std::string_view kSubjectStart = "thinpipe run ";
constexpr size_t kMaxCommonName = 64;  // the limit of X.509
// Every certificate is valid from the first moment that a clock can show (one without a battery starts there) until the
// date that RFC 5280, 4.1.2.5, reserves for "no expiration". So a wrong clock, on either side, locks nobody out.
constexpr char kNotBefore[] = "19700101000000Z";
constexpr char kNotAfter[] = "99991231235959Z";

// Takes the first error from OpenSSL's queue, as the end of a message.
std::string openssl_reason() {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

// Without this OpenSSL asks for the password on the terminal.
int no_password(char*, int, int, void*) { return -1; }

// `what` begins the error message: a file's name, or "the request". Refuses a text that needs a password.
template <class Handle, class Read>
Result<Handle> read_pem(std::string_view pem, const std::string& what, const char* kind, Read read) {
  if (pem.size() > kMaxPemBytes) {
    return Error{fmt::format("{} has {} bytes; {} has at most {}", what, pem.size(), kind, kMaxPemBytes)};
  }
  const BioHandle bytes(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  TP_CHECK(bytes != nullptr, "no memory for {} bytes", pem.size());
  ERR_clear_error();
  Handle handle(read(bytes.get(), nullptr, no_password, nullptr));
  if (!handle) return Error{fmt::format("{} is not {} as PEM text: {}", what, kind, openssl_reason())};
  return handle;
}

template <class Write>
std::string pem_of(Write write) {
  const BioHandle bytes(BIO_new(BIO_s_mem()));
  TP_CHECK(bytes != nullptr && write(bytes.get()) == 1, "OpenSSL writes no PEM: {}", openssl_reason());
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bytes.get(), &data);
  return {data, static_cast<size_t>(size)};
}

Result<KeyHandle> read_key(std::string_view pem, const std::string& what) {
  return read_pem<KeyHandle>(pem, what, "a private key", PEM_read_bio_PrivateKey);
}

Result<CertificateHandle> parse_certificate(std::string_view pem, const std::string& what) {
  return read_pem<CertificateHandle>(pem, what, "a certificate", PEM_read_bio_X509);
}

Result<RequestHandle> parse_request(std::string_view pem, const std::string& what) {
  return read_pem<RequestHandle>(pem, what, "a certificate request", PEM_read_bio_X509_REQ);
}

std::string key_text(const EVP_PKEY& key) {
  return pem_of(
      [&](BIO* out) { return PEM_write_bio_PKCS8PrivateKey(out, &key, nullptr, nullptr, 0, nullptr, nullptr); });
}

std::string certificate_text(const X509& certificate) {
  return pem_of([&](BIO* out) { return PEM_write_bio_X509(out, &certificate); });
}

// Accepts P-256 by name only: a key with explicit curve parameters may have any curve.
bool is_p256(const EVP_PKEY& key) {
  std::array<char, 64> group{};
  if (EVP_PKEY_is_a(&key, "EC") != 1 || EVP_PKEY_get_group_name(&key, group.data(), group.size(), nullptr) != 1) {
    return false;
  }
  int spelled_out = 0;
  EVP_PKEY_get_int_param(&key, OSSL_PKEY_PARAM_EC_DECODED_FROM_EXPLICIT_PARAMS, &spelled_out);
  return std::string_view(group.data()) == SN_X9_62_prime256v1 && spelled_out == 0;
}

std::vector<std::string> dns_names(const X509& certificate) {
  std::vector<std::string> found;
  const NamesHandle names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const auto* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                       static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return found;
}

}  // namespace

bool is_peer_id(std::string_view id) {
  if (id.empty() || id.size() > kMaxPeerIdBytes || id.front() == '-' || id.back() == '-') return false;
  return id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

std::string peer_name(const std::string& peer) {
  TP_CHECK(is_peer_id(peer), "'{}' is not a peer's id", peer);
  return fmt::format("{}{}", peer, kPeerSuffix);
}

std::optional<std::string> peer_of_name(std::string_view san) {
  if (!san.ends_with(kPeerSuffix)) return std::nullopt;
  san.remove_suffix(kPeerSuffix.size());
  if (!is_peer_id(san)) return std::nullopt;
  return std::string(san);
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  TP_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1,
           "OpenSSL has no random numbers");
  return bytes;
}

std::string random_hex(size_t count) {
  std::string text;
  for (const char byte : random_bytes(count)) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string new_key_pem() {
  const KeyHandle key(EVP_EC_gen("P-256"));
  TP_CHECK(key != nullptr, "OpenSSL makes no P-256 key: {}", openssl_reason());
  return key_text(*key);
}

Result<std::string> certificate_request(const std::string& key_pem) {
  const auto key = TRY(read_key(key_pem, "the key"));
  if (!is_p256(*key)) return Error{"the key is not one of EC P-256: make one with new_key_pem()"};
  const RequestHandle request(X509_REQ_new());
  const bool done = request && X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) == 1 &&
                    X509_REQ_set_pubkey(request.get(), key.get()) == 1 &&
                    X509_REQ_sign(request.get(), key.get(), EVP_sha256()) > 0;
  TP_CHECK(done, "OpenSSL makes no certificate request: {}", openssl_reason());
  return pem_of([&](BIO* out) { return PEM_write_bio_X509_REQ(out, request.get()); });
}

Result<std::vector<std::string>> certificate_names(const std::string& pem) {
  const auto certificate = TRY(parse_certificate(pem, "this"));
  return dns_names(*certificate);
}

Result<std::string> certificate_der(const std::string& pem, const std::string& what) {
  const auto certificate = TRY(parse_certificate(pem, what));
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.get(), &der);
  if (size < 0) return Error{fmt::format("{} cannot be written: {}", what, openssl_reason())};
  std::string bytes(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return bytes;
}

Result<std::string> certificate_from_der(const std::string& der, const std::string& what) {
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  const CertificateHandle certificate(d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  if (!certificate) return Error{fmt::format("{} is not a certificate: {}", what, openssl_reason())};
  auto pem = certificate_text(*certificate);
  const auto again = certificate_der(pem, what);
  if (!again || again.value() != der) return Error{fmt::format("{} is not one certificate in its usual form", what)};
  return pem;
}

// ---- the authority: its file, and the certificates it signs ----

namespace {

std::string subject_of(const std::string& run) { return fmt::format("{}{}", kSubjectStart, run); }

bool set_dates(X509& certificate) {
  return ASN1_TIME_set_string_X509(X509_getm_notBefore(&certificate), kNotBefore) == 1 &&
         ASN1_TIME_set_string_X509(X509_getm_notAfter(&certificate), kNotAfter) == 1;
}

bool set_random_serial(X509& certificate) {
  const NumberHandle number(BN_new());
  return number && BN_rand(number.get(), 128, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(&certificate)) != nullptr;
}

bool set_subject(X509& certificate, const std::string& common_name) {
  return X509_NAME_add_entry_by_NID(X509_get_subject_name(&certificate), NID_commonName, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

// value: in the syntax of OpenSSL's config files, so it must never come from outside.
bool add_extension(X509& certificate, X509& issuer, int nid, const char* value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const ExtensionHandle extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  return extension && X509_add_ext(&certificate, extension.get(), -1) == 1;
}

bool add_dns_name(X509& certificate, const std::string& san) {
  const NamesHandle names(GENERAL_NAMES_new());
  std::unique_ptr<GENERAL_NAME, OpenSslFree<GENERAL_NAME_free>> name(GENERAL_NAME_new());
  std::unique_ptr<ASN1_IA5STRING, OpenSslFree<ASN1_STRING_free>> text(ASN1_IA5STRING_new());
  if (!names || !name || !text) return false;
  if (ASN1_STRING_set(text.get(), san.data(), static_cast<int>(san.size())) != 1) return false;
  GENERAL_NAME_set0_value(name.get(), GEN_DNS, text.release());
  if (sk_GENERAL_NAME_push(names.get(), name.get()) == 0) return false;
  (void)name.release();
  return X509_add1_ext_i2d(&certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1;
}

Result<CertificateHandle> sign_own(EVP_PKEY& key, const std::string& run) {
  CertificateHandle made(X509_new());
  const bool done =
      made && X509_set_version(made.get(), X509_VERSION_3) == 1 && set_random_serial(*made) && set_dates(*made) &&
      set_subject(*made, subject_of(run)) && X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) == 1 &&
      X509_set_pubkey(made.get(), &key) == 1 &&
      add_extension(*made, *made, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(*made, *made, NID_key_usage, "critical,keyCertSign") &&
      add_extension(*made, *made, NID_subject_key_identifier, "hash") && X509_sign(made.get(), &key, EVP_sha256()) > 0;
  if (!done) return Error{fmt::format("cannot make an authority for run '{}': {}", run, openssl_reason())};
  return made;
}

std::string common_name(const X509& certificate) {
  const X509_NAME* subject = X509_get_subject_name(&certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size < 0) return "";
  std::string found(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  OPENSSL_free(text);
  return found;
}

// Checks that sign_own() made the certificate in the file for this run and key.
Status check_authority(X509& certificate, EVP_PKEY& key, const std::string& file, const std::string& run) {
  if (X509_check_private_key(&certificate, &key) != 1 || X509_verify(&certificate, &key) != 1) {
    ERR_clear_error();
    return Error{fmt::format("{}: the key and the certificate in it do not belong together", file)};
  }
  if (X509_check_ca(&certificate) != 1) return Error{fmt::format("{} is not an authority's certificate", file)};
  if (const auto name = common_name(certificate); name != subject_of(run)) {
    return Error{fmt::format("{} is of '{}', not of '{}': a run has a folder of its own", file, name, subject_of(run))};
  }
  return {};
}

}  // namespace

void CertificateAuthority::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }
void CertificateAuthority::Free::operator()(x509_st* certificate) const { X509_free(certificate); }

CertificateAuthority::CertificateAuthority(Key key, Certificate certificate)
    : key_(std::move(key)), certificate_(std::move(certificate)), certificate_pem_(certificate_text(*certificate_)) {}

Result<CertificateAuthority> CertificateAuthority::open_or_create(const std::filesystem::path& folder,
                                                                  const std::string& run) {
  if (run.empty() || subject_of(run).size() > kMaxCommonName) {
    return Error{
        fmt::format("a run's name has 1 to {} bytes, not {}", kMaxCommonName - kSubjectStart.size(), run.size())};
  }
  // One file, so that a process killed here leaves a whole authority or none.
  const auto path = folder / "authority.pem";
  const auto file = path.string();
  KeyHandle key;
  CertificateHandle certificate;
  if (std::error_code ignored; std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    const auto text = TRY(read_private_file(path));
    key = TRY(read_key(text, file));
    certificate = TRY(parse_certificate(text, file));
    TRY(check_authority(*certificate, *key, file, run));
  } else {
    key.reset(EVP_EC_gen("P-256"));
    TP_CHECK(key != nullptr, "OpenSSL makes no P-256 key: {}", openssl_reason());
    certificate = TRY(sign_own(*key, run));
    TRY(make_directories(folder));
    TRY(write_file_atomically(path, key_text(*key) + certificate_text(*certificate), FileMode::kPrivate));
  }
  return CertificateAuthority(Key(key.release()), Certificate(certificate.release()));
}

Result<std::string> CertificateAuthority::issue(const std::string& request_pem, const std::string& san) const {
  if (san != kCoordinatorName && san != kOperatorName && !peer_of_name(san)) {
    return Error{fmt::format("'{}' is no name of a run's member: {}, {} or <peer>.peer.thinpipe is", san,
                             kCoordinatorName, kOperatorName)};
  }
  const auto request = TRY(parse_request(request_pem, "the request"));
  EVP_PKEY* const key = X509_REQ_get0_pubkey(request.get());  // owned by the request
  if (key == nullptr || !is_p256(*key)) return Error{"the request's key is not one of EC P-256"};
  if (X509_REQ_verify(request.get(), key) != 1) return Error{"the request is not signed by the key it is for"};
  const CertificateHandle made(X509_new());
  X509& authority = *certificate_;
  const bool done = made && X509_set_version(made.get(), X509_VERSION_3) == 1 && set_random_serial(*made) &&
                    set_dates(*made) && set_subject(*made, san) &&
                    X509_set_issuer_name(made.get(), X509_get_subject_name(&authority)) == 1 &&
                    X509_set_pubkey(made.get(), key) == 1 &&
                    add_extension(*made, authority, NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(*made, authority, NID_key_usage, "critical,digitalSignature") &&
                    add_extension(*made, authority, NID_ext_key_usage, "serverAuth,clientAuth") &&
                    add_dns_name(*made, san) && add_extension(*made, authority, NID_subject_key_identifier, "hash") &&
                    add_extension(*made, authority, NID_authority_key_identifier, "keyid:always") &&
                    X509_sign(made.get(), key_.get(), EVP_sha256()) > 0;
  if (!done) return Error{fmt::format("cannot make a certificate for {}: {}", san, openssl_reason())};
  return certificate_text(*made);
}

// ---- identities: on the disk, and whether their parts match ----

Status check_identity(const Identity& identity) {
  const auto authority = TRY(parse_certificate(identity.ca_pem, "the authority's certificate"));
  const auto certificate = TRY(parse_certificate(identity.certificate_pem, "the certificate"));
  const auto key = TRY(read_key(identity.key_pem, "the key"));
  X509& own = *certificate;
  const bool own_key = X509_check_private_key(&own, key.get()) == 1;
  EVP_PKEY* const authority_key = X509_get0_pubkey(authority.get());
  const bool is_signed = authority_key != nullptr && X509_check_issued(authority.get(), &own) == X509_V_OK &&
                         X509_verify(&own, authority_key) == 1;
  ERR_clear_error();
  if (!own_key) return Error{"the certificate is not for the key beside it"};
  if (!is_signed) return Error{"the certificate is not signed by the authority beside it"};
  return {};
}

Status save_identity(const std::filesystem::path& folder, const Identity& identity) {
  TRY(make_directories(folder));
  return write_file_atomically(folder / "identity.pem", identity.key_pem + identity.certificate_pem + identity.ca_pem,
                               FileMode::kPrivate);
}

Result<Identity> load_identity(const std::filesystem::path& folder) {
  constexpr std::string_view kCertificateStart = "-----BEGIN CERTIFICATE-----";
  const auto path = folder / "identity.pem";
  const auto text = TRY(read_private_file(path));
  const auto own = std::min(text.find(kCertificateStart), text.size());
  const auto authority = std::min(text.find(kCertificateStart, own + 1), text.size());
  Identity identity{text.substr(authority), text.substr(own, authority - own), text.substr(0, own)};
  if (const auto status = check_identity(identity); !status) {
    return Error{fmt::format("{}: {}; join again, or bring the file back", path.string(), status.error().message)};
  }
  return identity;
}

}  // namespace thinpipe
