// OpenSSL's objects as owned values, and PEM in and out of strings. Inside net/ only.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

#include "net/certificates.h"

namespace thinpipe {

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
using TimeHandle = std::unique_ptr<ASN1_TIME, OpenSslFree<ASN1_TIME_free>>;
using NumberHandle = std::unique_ptr<BIGNUM, OpenSslFree<BN_free>>;

// What is read from outside: more is refused before it is parsed.
inline constexpr size_t kMaxPemBytes = size_t{16} << 10;

// `what` opens the error: a file's name, or "the request". A text that asks for a password is refused, not asked about.
Result<KeyHandle> read_key(std::string_view pem, const std::string& what);
Result<CertificateHandle> parse_certificate(std::string_view pem, const std::string& what);
Result<RequestHandle> parse_request(std::string_view pem, const std::string& what);

std::string key_text(const EVP_PKEY& key);
std::string certificate_text(const X509& certificate);

// P-256, and by name: a curve that spells out its own parameters is not the one it looks like.
bool is_p256(const EVP_PKEY& key);

// The first thing OpenSSL had to say since the last call, which it forgets; for the tail of an error.
std::string openssl_reason();

}  // namespace thinpipe
