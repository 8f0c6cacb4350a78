// Token shards on disk, in the .bin format of llm.c and modded-nanogpt (docs/data.md): 256 little-endian int32 of
// header - magic, version, token count, zeros - and then the tokens, two bytes each, or four when the vocabulary needs
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

inline constexpr size_t kShardHeaderBytes = 1024;
inline constexpr uint64_t kMaxShardTokens = INT32_MAX;  // the header's count is an int32

// Writes one shard as a stream; it appears under its name when finish() succeeds, or not at all.
class TokenShardWriter {
 public:
  // `vocab` bounds the ids and decides their width: two bytes up to 65536.
  static Result<TokenShardWriter> create(const std::filesystem::path& path, int64_t vocab);

  // Ids must be in [0, vocab).
  Status append(std::span<const int32_t> tokens);
  Status finish();

  uint64_t size() const { return count_; }

 private:
  TokenShardWriter(AtomicFile file, std::filesystem::path path, int64_t vocab);
  Status flush();

  AtomicFile file_;
  std::filesystem::path path_;
  int64_t vocab_;
  size_t width_;
  uint64_t count_ = 0;
  std::string buffer_;
};

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

// A shard file, memory-mapped: opening it costs nothing, and only what is read is loaded.
class TokenShard {
 public:
  static Result<TokenShard> open(const std::filesystem::path& path);

  uint64_t size() const { return view_.size(); }
  uint32_t token(uint64_t index) const { return view_.token(index); }
  void read(uint64_t start, std::span<int32_t> out) const { view_.read(start, out); }
  Status check_ids_below(int64_t vocab) const { return view_.check_ids_below(vocab); }

 private:
  TokenShard(MappedFile file, TokenShardView view) : file_(std::move(file)), view_(std::move(view)) {}

  MappedFile file_;  // moving it leaves the mapping where it is, so view_ stays valid
  TokenShardView view_;
};

}  // namespace thinpipe
