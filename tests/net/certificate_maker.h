// Certificates of any kind, also those that a run's authority would never sign. Uses only OpenSSL, so that a fault in
// certificates.cc is not repeated here.
#pragma once

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/certificates.h"

namespace thinpipe::test {

struct MadeCertificate {
  std::string pem;
  std::string key_pem;
};

struct CertificateOrder {
  std::string common_name = "x";
  // Kind (GEN_DNS, GEN_URI, GEN_EMAIL) and bytes.
  std::vector<std::pair<int, std::string>> names = {};
  std::chrono::seconds from_now = std::chrono::hours(-1);
  std::chrono::seconds until = std::chrono::hours(1);
  const char* extended_usage = "clientAuth";  // "" for none
  const char* key_usage = "critical,digitalSignature";
  const char* constraints = "critical,CA:FALSE";
};

inline EVP_PKEY* key_of(const std::string& pem) {
  BIO* bytes = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bytes, nullptr, nullptr, nullptr);
  BIO_free(bytes);
  TP_CHECK(key != nullptr, "not a key");
  return key;
}

inline X509* x509_of(const std::string& pem) {
  BIO* bytes = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* certificate = PEM_read_bio_X509(bytes, nullptr, nullptr, nullptr);
  BIO_free(bytes);
  TP_CHECK(certificate != nullptr, "not a certificate");
  return certificate;
}

inline std::string pem_text(X509* certificate) {
  BIO* bytes = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bytes, certificate);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bytes, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bytes);
  return text;
}

inline void add_names(X509* certificate, const CertificateOrder& order) {
  if (order.names.empty()) return;
  GENERAL_NAMES* names = GENERAL_NAMES_new();
  for (const auto& [kind, bytes] : order.names) {
    ASN1_IA5STRING* text = ASN1_IA5STRING_new();
    ASN1_STRING_set(text, bytes.data(), static_cast<int>(bytes.size()));
    GENERAL_NAME* name = GENERAL_NAME_new();
    GENERAL_NAME_set0_value(name, kind, text);
    sk_GENERAL_NAME_push(names, name);
  }
  X509_add1_ext_i2d(certificate, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT);
  GENERAL_NAMES_free(names);
}

// Signed by `issuer`, or self-signed without one.
inline MadeCertificate make_certificate(const CertificateOrder& order, const MadeCertificate* issuer = nullptr) {
  MadeCertificate made{"", new_key_pem()};
  EVP_PKEY* key = key_of(made.key_pem);
  EVP_PKEY* signing_key = issuer == nullptr ? key : key_of(issuer->key_pem);
  X509* certificate = X509_new();
  X509* signing = issuer == nullptr ? certificate : x509_of(issuer->pem);
  X509_set_version(certificate, X509_VERSION_3);
  BIGNUM* serial = BN_new();
  BN_rand(serial, 64, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY);
  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(certificate));
  BN_free(serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), order.from_now.count());
  X509_gmtime_adj(X509_getm_notAfter(certificate), order.until.count());
  X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate), NID_commonName, MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(order.common_name.data()),
                             static_cast<int>(order.common_name.size()), -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(signing));
  X509_set_pubkey(certificate, key);
  const std::pair<int, const char*> extensions[] = {{NID_basic_constraints, order.constraints},
                                                    {NID_key_usage, order.key_usage},
                                                    {NID_ext_key_usage, order.extended_usage}};
  for (const auto& [nid, value] : extensions) {
    if (*value == '\0') continue;
    X509V3_CTX context{};
    X509V3_set_ctx(&context, signing, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
    TP_CHECK(extension != nullptr, "'{}' is not an extension", value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  add_names(certificate, order);
  TP_CHECK(X509_sign(certificate, signing_key, EVP_sha256()) > 0, "cannot sign");
  made.pem = pem_text(certificate);
  if (issuer != nullptr) {
    X509_free(signing);
    EVP_PKEY_free(signing_key);
  }
  X509_free(certificate);
  EVP_PKEY_free(key);
  return made;
}

inline std::string der_text(const std::string& pem) {
  X509* certificate = x509_of(pem);
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate, &der);
  std::string bytes(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  X509_free(certificate);
  return bytes;
}

// Accepts any bytes.
inline std::string pem_of_der(const std::string& der) {
  BIO* bytes = BIO_new(BIO_s_mem());
  PEM_write_bio(bytes, "CERTIFICATE", "", reinterpret_cast<const unsigned char*>(der.data()),
                static_cast<long>(der.size()));
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bytes, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bytes);
  return text;
}

}  // namespace thinpipe::test
