// A token shard on its way to the disk that survives its process: written in place, with points up to which it is
// durable, from which another process can go on. Until finish() its header is all zeros, which no reader accepts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// A place in the shard, and what the tokens before it must be.
struct ShardPoint {
  uint64_t tokens = 0;
  uint64_t checksum = 0;

  bool operator==(const ShardPoint&) const = default;
};

// One process and one thread at a time. An unfinished file stays where it is: removing it is for the owner of the
// folder.
class TokenShardWriter {
 public:
  // A new shard in place of whatever has that name.
  static Result<TokenShardWriter> create(const std::filesystem::path& path, int64_t vocab);
  // Goes on after `point`, which an earlier process made durable with sync(); what the file holds beyond it is dropped.
  // An error when the file does not hold those tokens.
  static Result<TokenShardWriter> resume(const std::filesystem::path& path, int64_t vocab, const ShardPoint& point);
  ~TokenShardWriter();
  TokenShardWriter(TokenShardWriter&& other) noexcept;
  TokenShardWriter& operator=(TokenShardWriter&&) = delete;

  // Ids must be in [0, vocab).
  Status append(std::span<const int32_t> tokens);
  // All that was appended is on the disk when it returns; point() may then be written down.
  Status sync();
  // The header too: from now on it is a shard. Nothing may be appended after it.
  Status finish();

  const ShardPoint& point() const { return point_; }
  // How often each id occurs, (V).
  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  TokenShardWriter(std::filesystem::path path, int descriptor, int64_t vocab);
  Status flush();
  Status count_existing(uint64_t tokens);
  void count(std::span<const int32_t> tokens);

  std::filesystem::path path_;
  int descriptor_;
  int64_t vocab_;
  ShardPoint point_;
  std::vector<uint64_t> counts_;
  std::string buffer_;  // appended and not yet handed to the system
};

}  // namespace thinpipe
