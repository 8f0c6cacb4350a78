#include "net/certificates.h"

#include <fmt/chrono.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <climits>
#include <ctime>
#include <utility>

#include "net/openssl_handles.h"

namespace thinpipe {
namespace {

constexpr std::string_view kPeerSuffix = ".peer.thinpipe";
constexpr size_t kMaxPeerIdBytes = 40;

// Without it OpenSSL asks for the password on the terminal.
int no_password(char*, int, int, void*) { return -1; }

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

Result<WallTime> wall_time(const ASN1_TIME* time) {
  std::tm fields{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &fields) != 1) return Error{"the certificate holds no time of validity"};
  const auto since_epoch = std::chrono::seconds(timegm(&fields));
  // system_clock counts nanoseconds in 64 bits: until 2262.
  constexpr auto kEnd = std::chrono::duration_cast<std::chrono::seconds>(WallTime::max().time_since_epoch());
  if (since_epoch > kEnd || since_epoch < -kEnd) return Error{"the certificate's validity is centuries away"};
  return WallTime(since_epoch);
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

std::string openssl_reason() {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
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

bool is_p256(const EVP_PKEY& key) {
  std::array<char, 64> group{};
  if (EVP_PKEY_is_a(&key, "EC") != 1 || EVP_PKEY_get_group_name(&key, group.data(), group.size(), nullptr) != 1) {
    return false;
  }
  int spelled_out = 0;
  EVP_PKEY_get_int_param(&key, OSSL_PKEY_PARAM_EC_DECODED_FROM_EXPLICIT_PARAMS, &spelled_out);
  return std::string_view(group.data()) == SN_X9_62_prime256v1 && spelled_out == 0;
}

std::string new_key_pem() {
  const KeyHandle key(EVP_EC_gen("P-256"));
  TP_CHECK(key != nullptr, "OpenSSL makes no P-256 key: {}", openssl_reason());
  return key_text(*key);
}

Result<std::string> certificate_request(const std::string& key_pem) {
  const auto key = read_key(key_pem, "the key");
  if (!key) return key.error();
  if (!is_p256(*key.value())) return Error{"the key is not one of EC P-256: make one with new_key_pem()"};
  const RequestHandle request(X509_REQ_new());
  const bool done = request && X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) == 1 &&
                    X509_REQ_set_pubkey(request.get(), key.value().get()) == 1 &&
                    X509_REQ_sign(request.get(), key.value().get(), EVP_sha256()) > 0;
  TP_CHECK(done, "OpenSSL makes no certificate request: {}", openssl_reason());
  return pem_of([&](BIO* out) { return PEM_write_bio_X509_REQ(out, request.get()); });
}

Result<CertificateFacts> read_certificate(const std::string& pem) {
  const auto certificate = parse_certificate(pem, "this");
  if (!certificate) return certificate.error();
  const X509& read = *certificate.value();
  const auto not_before = wall_time(X509_get0_notBefore(&read));
  if (!not_before) return not_before.error();
  const auto not_after = wall_time(X509_get0_notAfter(&read));
  if (!not_after) return not_after.error();
  const NumberHandle serial(ASN1_INTEGER_to_BN(X509_get0_serialNumber(&read), nullptr));
  const std::unique_ptr<char, decltype([](char* text) { OPENSSL_free(text); })> hex(serial ? BN_bn2hex(serial.get())
                                                                                           : nullptr);
  if (!hex) return Error{"the certificate's serial number is not a number"};
  return CertificateFacts{dns_names(read), not_before.value(), not_after.value(), hex.get()};
}

}  // namespace thinpipe
