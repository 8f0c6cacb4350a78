#include "text/token_shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace thinpipe {
namespace {

constexpr size_t kBlockBytes = 16 << 10;  // read at once; a window of thousands of tokens fits
constexpr size_t kScanTokens = 64 << 10;

// Fills `out` from `offset` on; fewer bytes only where the file ends. -1 and errno when the disk fails.
ssize_t read_at(int descriptor, uint64_t offset, std::span<char> out) {
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count =
        ::pread(descriptor, out.data() + filled, out.size() - filled, static_cast<off_t>(offset + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(filled);
}

Error read_error(const std::string& name) {
  return Error{fmt::format("cannot read {}: {}", name, std::strerror(errno))};
}

Error beyond_vocabulary(const std::string& name, uint32_t token, uint64_t position, int64_t vocab) {
  return Error{
      fmt::format("{}: token {} at position {} is not below the vocabulary of {}", name, token, position, vocab)};
}

}  // namespace

TokenShardView::TokenShardView(std::string_view tokens, size_t width, std::string name)
    : tokens_(tokens), width_(width), count_(tokens.size() / width), name_(std::move(name)) {}

Result<TokenShardView> TokenShardView::parse(std::string_view bytes, const std::string& name) {
  const auto layout = parse_shard_header(bytes.substr(0, kShardHeaderBytes), bytes.size(), name);
  if (!layout) return layout.error();
  return TokenShardView(bytes.substr(kShardHeaderBytes), layout.value().width, name);
}

uint32_t TokenShardView::token(uint64_t index) const {
  TP_CHECK(index < count_, "token {} of a shard of {}", index, count_);
  int32_t token = 0;
  read_shard_tokens(tokens_.data() + index * width_, width_, {&token, 1});
  return static_cast<uint32_t>(token);
}

void TokenShardView::read(uint64_t start, std::span<int32_t> out) const {
  TP_CHECK(start <= count_ && out.size() <= count_ - start, "tokens {} to {} of a shard of {}", start,
           start + out.size(), count_);
  read_shard_tokens(tokens_.data() + start * width_, width_, out);
}

Status TokenShardView::check_ids_below(int64_t vocab) const {
  for (uint64_t i = 0; i < count_; ++i) {
    if (static_cast<int64_t>(token(i)) >= vocab) return beyond_vocabulary(name_, token(i), i, vocab);
  }
  return {};
}

TokenShard::TokenShard(int descriptor, ShardLayout layout, std::string name)
    : descriptor_(descriptor), layout_(layout), name_(std::move(name)) {}

TokenShard::TokenShard(TokenShard&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), layout_(other.layout_), name_(std::move(other.name_)) {}

TokenShard& TokenShard::operator=(TokenShard&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(layout_, other.layout_);
  std::swap(name_, other.name_);
  return *this;
}

TokenShard::~TokenShard() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<TokenShard> TokenShard::open(const std::filesystem::path& path) {
  // O_NONBLOCK: the open of a pipe would wait for a writer instead of being refused below.
  TokenShard shard(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), {}, path.string());
  struct stat status {};
  if (shard.descriptor_ < 0 || ::fstat(shard.descriptor_, &status) != 0) return read_error(shard.name_);
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("cannot read {}: it is not a regular file", shard.name_)};
  std::array<char, kShardHeaderBytes> header{};
  const ssize_t count = read_at(shard.descriptor_, 0, header);
  if (count < 0) return read_error(shard.name_);
  const auto layout = parse_shard_header({header.data(), static_cast<size_t>(count)},
                                         static_cast<uint64_t>(status.st_size), shard.name_);
  if (!layout) return layout.error();
  shard.layout_ = layout.value();
  return shard;
}

Status TokenShard::read_bytes(uint64_t start, std::span<char> out) const {
  const ssize_t count = read_at(descriptor_, kShardHeaderBytes + start * layout_.width, out);
  if (count < 0) return read_error(name_);
  if (static_cast<size_t>(count) < out.size()) {
    return Error{fmt::format("{}: has been cut short since it was opened", name_)};
  }
  return {};
}

Status TokenShard::read(uint64_t start, std::span<int32_t> out) const {
  TP_CHECK(start <= size() && out.size() <= size() - start, "tokens {} to {} of a shard of {}", start,
           start + out.size(), size());
  std::array<char, kBlockBytes> block;
  while (!out.empty()) {
    const auto part = out.first(std::min(out.size(), block.size() / layout_.width));
    if (auto status = read_bytes(start, std::span(block).first(part.size() * layout_.width)); !status) return status;
    read_shard_tokens(block.data(), layout_.width, part);
    start += part.size();
    out = out.subspan(part.size());
  }
  return {};
}

Status TokenShard::for_each_block(
    const std::function<Status(uint64_t start, std::span<const uint32_t> tokens)>& use) const {
  std::vector<int32_t> block(kScanTokens);
  for (uint64_t start = 0; start < size(); start += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), size() - start));
    if (auto status = read(start, part); !status) return status;
    // The same 32 bits; an id beyond an int32 shows as what it is.
    if (auto status = use(start, {reinterpret_cast<const uint32_t*>(part.data()), part.size()}); !status) return status;
  }
  return {};
}

Status TokenShard::check_ids_below(int64_t vocab) const {
  return for_each_block([&](uint64_t start, std::span<const uint32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (static_cast<int64_t>(tokens[i]) >= vocab) return beyond_vocabulary(name_, tokens[i], start + i, vocab);
    }
    return {};
  });
}

}  // namespace thinpipe
