#include "net/certificates.h"

#include <fmt/chrono.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/files.h"

namespace thinpipe {

// OpenSSL's objects as owned values. Not in the unnamed namespace, because Signer holds some.
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

namespace {

constexpr std::string_view kPeerSuffix = ".peer.thinpipe";
constexpr size_t kMaxPeerIdBytes = 40;
// What is read from outside: more is refused before it is parsed.
constexpr size_t kMaxPemBytes = size_t{16} << 10;
constexpr std::string_view kSubjectStart = "thinpipe run ";
constexpr size_t kMaxCommonName = 64;  // of X.509
constexpr auto kAuthorityLifetime = std::chrono::days(3650);
// A member whose clock is behind must still find the authority valid.
constexpr auto kClockSlack = std::chrono::days(1);

// The first thing OpenSSL had to say since the last call, which it forgets; for the tail of an error.
std::string openssl_reason() {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

// Without it OpenSSL asks for the password on the terminal.
int no_password(char*, int, int, void*) { return -1; }

// `what` opens the error: a file's name, or "the request". A text that asks for a password is refused.
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

// P-256, and by name: a curve that spells out its own parameters is not the one it looks like.
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

std::string utc_text(WallTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::chrono::floor<std::chrono::seconds>(time)));
}

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

// ---- the authority: its two files, and the certificates it signs ----

struct CertificateAuthority::Signer {
  KeyHandle key;
  CertificateHandle certificate;
  std::string certificate_pem;
};

namespace {

std::string subject_of(const std::string& run) { return fmt::format("{}{}", kSubjectStart, run); }

bool set_time(ASN1_TIME* time, WallTime to) {
  return ASN1_TIME_set(time, std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(to))) !=
         nullptr;
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

// value: in the language of OpenSSL's config files, hence never anything from outside.
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

Result<CertificateHandle> sign_own(EVP_PKEY& key, const std::string& run, WallTime now) {
  CertificateHandle made(X509_new());
  const bool done =
      made && X509_set_version(made.get(), X509_VERSION_3) == 1 && set_random_serial(*made) &&
      set_time(X509_getm_notBefore(made.get()), now - kClockSlack) &&
      set_time(X509_getm_notAfter(made.get()), now + kAuthorityLifetime) && set_subject(*made, subject_of(run)) &&
      X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) == 1 &&
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

// The certificate in the file is one that create() makes for this run and key.
Status check_authority(X509& certificate, EVP_PKEY& key, const std::filesystem::path& folder, const std::string& run,
                       WallTime now) {
  const auto file = (folder / "ca.pem").string();
  if (X509_check_private_key(&certificate, &key) != 1 || X509_verify(&certificate, &key) != 1) {
    return Error{fmt::format("{} is not of the key in {}: bring back the two files that belong together", file,
                             (folder / "ca.key").string())};
  }
  if (X509_check_ca(&certificate) != 1) return Error{fmt::format("{} is not an authority's certificate", file)};
  if (const auto name = common_name(certificate); name != subject_of(run)) {
    return Error{fmt::format("{} is of '{}', not of '{}': a run has a folder of its own", file, name, subject_of(run))};
  }
  time_t at = std::chrono::system_clock::to_time_t(now);
  if (X509_cmp_time(X509_get0_notAfter(&certificate), &at) <= 0) {
    return Error{fmt::format("{} has expired: move it and ca.key away, and invite everybody anew", file)};
  }
  return {};
}

}  // namespace

CertificateAuthority::CertificateAuthority(std::unique_ptr<const Signer> signer) : signer_(std::move(signer)) {}
CertificateAuthority::~CertificateAuthority() = default;
CertificateAuthority::CertificateAuthority(CertificateAuthority&& other) noexcept = default;
CertificateAuthority& CertificateAuthority::operator=(CertificateAuthority&& other) noexcept = default;

const std::string& CertificateAuthority::certificate_pem() const { return signer_->certificate_pem; }

Result<CertificateAuthority> CertificateAuthority::open_or_create(const std::filesystem::path& folder,
                                                                  const std::string& run, WallTime now) {
  if (run.empty() || subject_of(run).size() > kMaxCommonName) {
    return Error{fmt::format("a run of {} bytes has no authority: its name has 1 to {}", run.size(),
                             kMaxCommonName - kSubjectStart.size())};
  }
  const auto key_file = folder / "ca.key";
  const auto certificate_file = folder / "ca.pem";
  std::error_code code;
  const bool has_key = std::filesystem::exists(std::filesystem::symlink_status(key_file, code));
  const bool has_certificate = std::filesystem::exists(std::filesystem::symlink_status(certificate_file, code));
  if (has_key && has_certificate) return open(folder, run, now);
  if (has_key) {
    return Error{
        fmt::format("{} is there without {}: bring that one back; if there has never been one, a first start "
                    "was cut short: remove {}",
                    key_file.string(), certificate_file.string(), key_file.string())};
  }
  if (has_certificate) {
    return Error{
        fmt::format("{} is there without its key {}: bring that one back, or remove {} and invite everybody "
                    "anew",
                    certificate_file.string(), key_file.string(), certificate_file.string())};
  }
  return create(folder, run, now);
}

Result<CertificateAuthority> CertificateAuthority::open(const std::filesystem::path& folder, const std::string& run,
                                                        WallTime now) {
  const auto key_pem = TRY(read_private_file(folder / "ca.key"));
  auto key = TRY(read_key(key_pem, (folder / "ca.key").string()));
  const auto pem = TRY(read_file(folder / "ca.pem"));
  auto certificate = TRY(parse_certificate(pem, (folder / "ca.pem").string()));
  TRY(check_authority(*certificate, *key, folder, run, now));
  auto text = certificate_text(*certificate);
  return CertificateAuthority(
      std::unique_ptr<const Signer>(new Signer{std::move(key), std::move(certificate), std::move(text)}));
}

Result<CertificateAuthority> CertificateAuthority::create(const std::filesystem::path& folder, const std::string& run,
                                                          WallTime now) {
  KeyHandle key(EVP_EC_gen("P-256"));
  TP_CHECK(key != nullptr, "OpenSSL makes no P-256 key: {}", openssl_reason());
  auto certificate = TRY(sign_own(*key, run, now));
  auto text = certificate_text(*certificate);
  TRY(make_directories(folder));
  TRY(write_file_atomically(folder / "ca.key", key_text(*key), FileMode::kPrivate));
  TRY(write_file_atomically(folder / "ca.pem", text));
  return CertificateAuthority(
      std::unique_ptr<const Signer>(new Signer{std::move(key), std::move(certificate), std::move(text)}));
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
  X509& authority = *signer_->certificate;
  const bool done = made && X509_set_version(made.get(), X509_VERSION_3) == 1 && set_random_serial(*made) &&
                    X509_set1_notBefore(made.get(), X509_get0_notBefore(&authority)) == 1 &&
                    X509_set1_notAfter(made.get(), X509_get0_notAfter(&authority)) == 1 && set_subject(*made, san) &&
                    X509_set_issuer_name(made.get(), X509_get_subject_name(&authority)) == 1 &&
                    X509_set_pubkey(made.get(), key) == 1 &&
                    add_extension(*made, authority, NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(*made, authority, NID_key_usage, "critical,digitalSignature") &&
                    add_extension(*made, authority, NID_ext_key_usage, "serverAuth,clientAuth") &&
                    add_dns_name(*made, san) && add_extension(*made, authority, NID_subject_key_identifier, "hash") &&
                    add_extension(*made, authority, NID_authority_key_identifier, "keyid:always") &&
                    X509_sign(made.get(), signer_->key.get(), EVP_sha256()) > 0;
  if (!done) return Error{fmt::format("cannot make a certificate for {}: {}", san, openssl_reason())};
  return certificate_text(*made);
}

// ---- identities: on the disk, and whether one holds together ----

namespace {

struct IdentityNames {
  std::string ca, certificate, key;
};

Status check_parts(const Identity& identity, const IdentityNames& names) {
  const auto authority = TRY(parse_certificate(identity.ca_pem, names.ca));
  const auto certificate = TRY(parse_certificate(identity.certificate_pem, names.certificate));
  const auto key = TRY(read_key(identity.key_pem, names.key));
  X509& own = *certificate;
  if (X509_check_private_key(&own, key.get()) != 1) {
    ERR_clear_error();
    return Error{fmt::format("{} is not of the key in {}: bring back the two that belong together, or join again",
                             names.certificate, names.key)};
  }
  EVP_PKEY* const authority_key = X509_get0_pubkey(authority.get());
  if (authority_key == nullptr || X509_check_issued(authority.get(), &own) != X509_V_OK ||
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
  TRY(make_directories(folder));
  TRY(write_file_atomically(folder / "identity.key", identity.key_pem, FileMode::kPrivate));
  TRY(write_file_atomically(folder / "ca.pem", identity.ca_pem));
  return write_file_atomically(folder / "identity.pem", identity.certificate_pem);
}

Result<Identity> load_identity(const std::filesystem::path& folder) {
  Identity identity;
  identity.ca_pem = TRY(read_file(folder / "ca.pem"));
  identity.certificate_pem = TRY(read_file(folder / "identity.pem"));
  identity.key_pem = TRY(read_private_file(folder / "identity.key"));
  const IdentityNames names{(folder / "ca.pem").string(), (folder / "identity.pem").string(),
                            (folder / "identity.key").string()};
  TRY(check_parts(identity, names));
  return identity;
}

}  // namespace thinpipe
