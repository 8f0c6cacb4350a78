#include "base/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "base/result.h"

namespace thinpipe {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TP_CHECK(EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::string_view bytes) {
  TP_CHECK(EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size()) == 1, "SHA-256 update failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  TP_CHECK(EVP_DigestFinal_ex(context_->handle, digest.data(), &length) == 1, "SHA-256 final failed");
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

}  // namespace thinpipe
