// The run's authority (certificates.h): its two files, and the certificates it signs.
#include <openssl/bn.h>

#include <array>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "net/certificates.h"
#include "net/openssl_handles.h"

namespace thinpipe {

struct CertificateAuthority::Signer {
  KeyHandle key;
  CertificateHandle certificate;
  std::string certificate_pem;
};

namespace {

constexpr std::string_view kSubjectStart = "thinpipe run ";
constexpr size_t kMaxCommonName = 64;  // of X.509
constexpr auto kAuthorityLifetime = std::chrono::days(3650);
// A member whose clock is behind must still find the authority valid.
constexpr auto kClockSlack = std::chrono::days(1);

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

const char* usage_text(CertificateUsage usage) {
  switch (usage) {
    case CertificateUsage::kServer:
      return "serverAuth";
    case CertificateUsage::kClient:
      return "clientAuth";
    case CertificateUsage::kBoth:
      return "serverAuth,clientAuth";
  }
  TP_CHECK(false, "usage {}", static_cast<int>(usage));
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
  const auto key_pem = read_private_file(folder / "ca.key");
  if (!key_pem) return key_pem.error();
  auto key = read_key(key_pem.value(), (folder / "ca.key").string());
  if (!key) return key.error();
  const auto pem = read_file(folder / "ca.pem");
  if (!pem) return pem.error();
  auto certificate = parse_certificate(pem.value(), (folder / "ca.pem").string());
  if (!certificate) return certificate.error();
  if (auto fits = check_authority(*certificate.value(), *key.value(), folder, run, now); !fits) return fits.error();
  auto text = certificate_text(*certificate.value());
  return CertificateAuthority(std::unique_ptr<const Signer>(
      new Signer{std::move(key.value()), std::move(certificate.value()), std::move(text)}));
}

Result<CertificateAuthority> CertificateAuthority::create(const std::filesystem::path& folder, const std::string& run,
                                                          WallTime now) {
  KeyHandle key(EVP_EC_gen("P-256"));
  TP_CHECK(key != nullptr, "OpenSSL makes no P-256 key: {}", openssl_reason());
  auto certificate = sign_own(*key, run, now);
  if (!certificate) return certificate.error();
  auto text = certificate_text(*certificate.value());
  if (auto made = make_directories(folder); !made) return made.error();
  if (auto written = write_file_atomically(folder / "ca.key", key_text(*key), FileMode::kPrivate); !written) {
    return written.error();
  }
  if (auto written = write_file_atomically(folder / "ca.pem", text); !written) return written.error();
  return CertificateAuthority(
      std::unique_ptr<const Signer>(new Signer{std::move(key), std::move(certificate.value()), std::move(text)}));
}

Result<std::string> CertificateAuthority::issue(const std::string& request_pem, const std::string& san,
                                                WallTime not_before, WallTime not_after, CertificateUsage usage) const {
  if (san != kCoordinatorName && san != kOperatorName && !peer_of_name(san)) {
    return Error{fmt::format("'{}' is no name of a run's member: {}, {} or <peer>.peer.thinpipe is", san,
                             kCoordinatorName, kOperatorName)};
  }
  if (not_before >= not_after) return Error{"a certificate must end after it begins"};
  const auto request = parse_request(request_pem, "the request");
  if (!request) return request.error();
  EVP_PKEY* const key = X509_REQ_get0_pubkey(request.value().get());  // owned by the request
  if (key == nullptr || !is_p256(*key)) return Error{"the request's key is not one of EC P-256"};
  if (X509_REQ_verify(request.value().get(), key) != 1) return Error{"the request is not signed by the key it is for"};
  const CertificateHandle made(X509_new());
  X509& authority = *signer_->certificate;
  const bool done = made && X509_set_version(made.get(), X509_VERSION_3) == 1 && set_random_serial(*made) &&
                    set_time(X509_getm_notBefore(made.get()), not_before) &&
                    set_time(X509_getm_notAfter(made.get()), not_after) && set_subject(*made, san) &&
                    X509_set_issuer_name(made.get(), X509_get_subject_name(&authority)) == 1 &&
                    X509_set_pubkey(made.get(), key) == 1 &&
                    add_extension(*made, authority, NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(*made, authority, NID_key_usage, "critical,digitalSignature") &&
                    add_extension(*made, authority, NID_ext_key_usage, usage_text(usage)) && add_dns_name(*made, san) &&
                    add_extension(*made, authority, NID_subject_key_identifier, "hash") &&
                    add_extension(*made, authority, NID_authority_key_identifier, "keyid:always") &&
                    X509_sign(made.get(), signer_->key.get(), EVP_sha256()) > 0;
  if (!done) return Error{fmt::format("cannot make a certificate for {}: {}", san, openssl_reason())};
  return certificate_text(*made);
}

}  // namespace thinpipe
