// Token shards on disk, in the .bin format of llm.c and modded-nanogpt (docs/data.md): 256 little-endian int32 of
// header (magic, version, token count, zeros), then the tokens, two bytes each, or four if the vocabulary needs it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

inline constexpr size_t kShardHeaderBytes = 1024;

// The contents of a shard's header.
struct ShardLayout {
  size_t width = 0;  // bytes per token: 2 or 4
  uint64_t count = 0;
};

// `header` is the first kShardHeaderBytes of the file, or all of a shorter one. Refuses everything that the format does
// not allow, including a wrong file size. Errors call the file `name`.
Result<ShardLayout> parse_shard_header(std::string_view header, uint64_t file_bytes, const std::string& name);

// A shard file, open for reading. It keeps no tokens in memory: reading a window costs the bytes of that window, and
// the system's file cache does not count as memory of this process. Any number of threads may read.
class TokenShard {
 public:
  static Result<TokenShard> open(const std::filesystem::path& path);

  uint64_t size() const { return layout_.count; }
  size_t token_bytes() const { return layout_.width; }
  // Reads tokens[start .. start + out.size()), which must lie in the shard. An error if the disk fails or the file was
  // truncated after it was opened. Call check_ids_below() first: an id that does not fit an int32 becomes negative.
  Status read(uint64_t start, std::span<int32_t> out) const;
  // An error naming the first position whose id is not below `vocab`. Reads the whole shard.
  Status check_ids_below(int64_t vocab) const;
  // Every token in order, in blocks.
  Status for_each_block(const std::function<Status(uint64_t start, std::span<const uint32_t> tokens)>& use) const;

 private:
  TokenShard(Fd file, ShardLayout layout, std::string name)
      : file_(std::move(file)), layout_(layout), name_(std::move(name)) {}

  Fd file_;
  ShardLayout layout_;
  std::string name_;
};

// Writes one shard. The file appears under its name at finish(), complete; without finish(), the destructor removes it.
// One thread at a time.
class TokenShardWriter {
 public:
  static Result<TokenShardWriter> create(const std::filesystem::path& path, int64_t vocab);

  // Ids must be in [0, vocab).
  Status append(std::span<const int32_t> tokens);
  // Nothing may be appended afterwards.
  Status finish();

  uint64_t tokens() const { return tokens_; }
  // The number of occurrences of each id, (V).
  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  TokenShardWriter(std::string name, AtomicFile file, int64_t vocab);
  Status flush();

  std::string name_;
  AtomicFile file_;
  int64_t vocab_;
  uint64_t tokens_ = 0;
  std::vector<uint64_t> counts_;
  std::string buffer_;  // appended, not written yet
};

}  // namespace thinpipe
