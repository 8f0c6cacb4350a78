#include "text/shard_format.h"

#include <bit>
#include <cstring>

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they are");

struct Format {
  int32_t magic;
  int32_t version;
  size_t width;
};
// As llm.c writes them: the first for GPT-2's vocabulary, the second for Llama 3's.
constexpr Format kNarrow{20240520, 1, sizeof(uint16_t)};
constexpr Format kWide{20240801, 7, sizeof(uint32_t)};
constexpr int64_t kNarrowVocab = 65536;

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void append_as(std::string& buffer, std::span<const int32_t> tokens) {
  const size_t start = buffer.size();
  buffer.resize(start + tokens.size() * sizeof(T));
  char* to = buffer.data() + start;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T token = static_cast<T>(tokens[i]);
    std::memcpy(to + i * sizeof(T), &token, sizeof token);
  }
}

template <class T>
void read_as(const char* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(load<T>(from + i * sizeof(T)));
}

const Format& format_for(int64_t vocab) { return vocab <= kNarrowVocab ? kNarrow : kWide; }

}  // namespace

Result<ShardLayout> parse_shard_header(std::string_view header, uint64_t file_bytes, const std::string& name) {
  const auto refuse = [&](std::string_view why) { return Error{fmt::format("{}: not a token shard: {}", name, why)}; };
  if (header.size() < kShardHeaderBytes) {
    return refuse(fmt::format("{} bytes, and the header alone has {}", header.size(), kShardHeaderBytes));
  }
  const auto field = [&](size_t index) { return load<int32_t>(header.data() + index * sizeof(int32_t)); };
  const Format* format = field(0) == kNarrow.magic ? &kNarrow : field(0) == kWide.magic ? &kWide : nullptr;
  if (format == nullptr) return refuse(fmt::format("magic is {}, not {} or {}", field(0), kNarrow.magic, kWide.magic));
  if (field(1) != format->version) {
    return refuse(fmt::format("version is {}; with magic {} only {} is known", field(1), field(0), format->version));
  }
  if (field(2) < 0) return refuse(fmt::format("the header counts {} tokens", field(2)));
  const auto count = static_cast<uint64_t>(field(2));
  const uint64_t expected = kShardHeaderBytes + count * format->width;
  if (file_bytes != expected) {
    return refuse(fmt::format("{} bytes, where the header's {} tokens make {}", file_bytes, count, expected));
  }
  if (header.substr(12).find_first_not_of('\0') != std::string_view::npos) {
    return refuse("the header's unused part is not zero");
  }
  return ShardLayout{format->width, count};
}

size_t shard_token_bytes(int64_t vocab) { return format_for(vocab).width; }

std::string shard_header(int64_t vocab, uint64_t tokens) {
  const Format& format = format_for(vocab);
  const int32_t header[3] = {format.magic, format.version, static_cast<int32_t>(tokens)};
  return {reinterpret_cast<const char*>(header), sizeof header};
}

void append_shard_tokens(std::string& bytes, std::span<const int32_t> tokens, size_t token_bytes) {
  token_bytes == kNarrow.width ? append_as<uint16_t>(bytes, tokens) : append_as<uint32_t>(bytes, tokens);
}

void read_shard_tokens(const char* bytes, size_t token_bytes, std::span<int32_t> out) {
  token_bytes == kNarrow.width ? read_as<uint16_t>(bytes, out) : read_as<uint32_t>(bytes, out);
}

}  // namespace thinpipe
