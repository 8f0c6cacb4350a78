// A certificate that vouches for itself, made on the spot: whoever trusts it as a root trusts its holder.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace thinpipe {

class TestCertificate {
 public:
  // The one name it proves.
  explicit TestCertificate(const std::string& name) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    TP_CHECK(key != nullptr && certificate != nullptr, "OpenSSL makes no key");
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    auto* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1,
                               -1, 0);
    X509_set_issuer_name(certificate, subject);
    auto* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + name).c_str());
    X509_add_ext(certificate, names, -1);
    X509_EXTENSION_free(names);
    TP_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0, "OpenSSL does not sign");
    certificate_ = text([&](BIO* out) { PEM_write_bio_X509(out, certificate); });
    key_ = text([&](BIO* out) { PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); });
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  // Asks for a certificate and takes this one only.
  std::shared_ptr<grpc::ServerCredentials> server_credentials() const {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = certificate_;
    options.pem_key_cert_pairs = {{key_, certificate_}};
    return grpc::SslServerCredentials(options);
  }
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials() const {
    return grpc::SslCredentials({certificate_, key_, certificate_});
  }

 private:
  template <class Write>
  static std::string text(const Write& write) {
    BIO* memory = BIO_new(BIO_s_mem());
    write(memory);
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(memory, &bytes);
    std::string written(bytes, static_cast<size_t>(count));
    BIO_free(memory);
    return written;
  }

  std::string certificate_;
  std::string key_;
};

}  // namespace thinpipe
