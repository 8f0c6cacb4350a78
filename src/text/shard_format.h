// The bytes of a token shard (docs/data.md): what token_shard.h reads and token_shard_writer.h writes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

inline constexpr size_t kShardHeaderBytes = 1024;
inline constexpr uint64_t kMaxShardTokens = INT32_MAX;  // the header's count is an int32

// What a shard's header says.
struct ShardLayout {
  size_t width = 0;  // bytes of a token: 2 or 4
  uint64_t count = 0;
};

// `header`: the file's first bytes, as many of them as it has up to kShardHeaderBytes. `name` is what errors call the
// file.
Result<ShardLayout> parse_shard_header(std::string_view header, uint64_t file_bytes, const std::string& name);

// Two bytes up to a vocabulary of 65536, else four.
size_t shard_token_bytes(int64_t vocab);
// The part of the header that is not zero.
std::string shard_header(int64_t vocab, uint64_t tokens);
// Adds the tokens as the file has them.
void append_shard_tokens(std::string& bytes, std::span<const int32_t> tokens, size_t token_bytes);
// The reverse: out.size() tokens from as many times token_bytes.
void read_shard_tokens(const char* bytes, size_t token_bytes, std::span<int32_t> out);

}  // namespace thinpipe
