// SHA-256, computed by OpenSSL. It identifies corpora, configs and checkpoint files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace thinpipe {

// Streaming; one thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::string_view bytes);
  // 64 lower-case hex digits. Ends the hash: do not call update() afterwards.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace thinpipe
