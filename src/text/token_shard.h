// Token shards on disk, read, in the .bin format of llm.c and modded-nanogpt (docs/data.md): 256 little-endian int32 of
// header - magic, version, token count, zeros - and then the tokens, two bytes each, or four when the vocabulary needs
// it. token_shard_writer.h writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/shard_format.h"

namespace thinpipe {

// A shard in memory somebody else owns. Checked whole when parsed: any index below size() can be read.
class TokenShardView {
 public:
  // `name` is what errors call the file.
  static Result<TokenShardView> parse(std::string_view bytes, const std::string& name);

  uint64_t size() const { return count_; }
  // index < size().
  uint32_t token(uint64_t index) const;
  // tokens[start .. start + out.size()), which must lie in the shard. Ids that do not fit an int32 are for
  // check_ids_below() to find first.
  void read(uint64_t start, std::span<int32_t> out) const;
  // An error naming the first position whose id is not below `vocab`. Reads the whole shard.
  Status check_ids_below(int64_t vocab) const;

 private:
  TokenShardView(std::string_view tokens, size_t width, std::string name);

  std::string_view tokens_;
  size_t width_;
  uint64_t count_;
  std::string name_;
};

// A shard file, open for reading. Nothing of it is kept in memory: a window costs the bytes of that window, whatever
// the size of the file, and the system's cache of the file is no part of this process. Any number of threads may read.
class TokenShard {
 public:
  static Result<TokenShard> open(const std::filesystem::path& path);
  ~TokenShard();
  TokenShard(TokenShard&& other) noexcept;
  TokenShard& operator=(TokenShard&& other) noexcept;

  uint64_t size() const { return layout_.count; }
  size_t token_bytes() const { return layout_.width; }
  // tokens[start .. start + out.size()), which must lie in the shard. An error if the disk fails or the file has been
  // cut short since it was opened. Ids that do not fit an int32 are for check_ids_below() to find first.
  Status read(uint64_t start, std::span<int32_t> out) const;
  // An error naming the first position whose id is not below `vocab`. Reads the whole shard.
  Status check_ids_below(int64_t vocab) const;
  // Every token in order, in blocks.
  Status for_each_block(const std::function<Status(uint64_t start, std::span<const uint32_t> tokens)>& use) const;

 private:
  TokenShard(int descriptor, ShardLayout layout, std::string name);
  // Fills `out` (a multiple of the width) with the tokens' bytes.
  Status read_bytes(uint64_t start, std::span<char> out) const;

  int descriptor_;
  ShardLayout layout_;
  std::string name_;
};

}  // namespace thinpipe
