// One hash of all payloads that crossed a cut in one direction during a step. Both neighbours compute it, and the
// coordinator compares: if they differ, one of the two lies or is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/sha256.h"
#include "net/packet.h"

namespace thinpipe {

class PayloadDigest {
 public:
  void add(PacketKind kind, int64_t microbatch, std::string_view payload) {
    hashes_[{kind, microbatch}] = sha256_hex(payload);
  }
  // The SHA-256 of the payloads' SHA-256, by kind and microbatch, whatever order they came in. Empty: no payloads.
  std::string hex() const {
    if (hashes_.empty()) return "";
    Sha256 all;
    for (const auto& [which, hash] : hashes_) all.update(hash);
    return all.hex();
  }
  void clear() { hashes_.clear(); }

 private:
  std::map<std::pair<PacketKind, int64_t>, std::string> hashes_;
};

}  // namespace thinpipe
