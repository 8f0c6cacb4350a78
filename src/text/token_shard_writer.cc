#include "text/token_shard_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_system.h"
#include "base/files.h"
#include "text/shard_format.h"

namespace thinpipe {
namespace {

constexpr size_t kFlushBytes = 1 << 20;
constexpr size_t kReadTokens = 64 << 10;

Error system_error(std::string_view action, const std::filesystem::path& path) {
  return Error{fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno))};
}

Error cannot_go_on(const std::filesystem::path& path) {
  return Error{fmt::format("{}: is not what an interrupted preparation has left", path.string())};
}

}  // namespace

TokenShardWriter::TokenShardWriter(std::filesystem::path path, int descriptor, int64_t vocab)
    : path_(std::move(path)), descriptor_(descriptor), vocab_(vocab), counts_(static_cast<size_t>(vocab)) {}

TokenShardWriter::TokenShardWriter(TokenShardWriter&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      vocab_(other.vocab_),
      point_(other.point_),
      counts_(std::move(other.counts_)),
      buffer_(std::move(other.buffer_)) {}

TokenShardWriter::~TokenShardWriter() {
  if (descriptor_ >= 0) file_system().close(descriptor_);
}

Result<TokenShardWriter> TokenShardWriter::create(const std::filesystem::path& path, int64_t vocab) {
  if (auto status = write_file_atomically(path, std::string(kShardHeaderBytes, '\0')); !status) return status.error();
  return resume(path, vocab, {});
}

Result<TokenShardWriter> TokenShardWriter::resume(const std::filesystem::path& path, int64_t vocab,
                                                  const ShardPoint& point) {
  TP_CHECK(vocab > 0, "a shard needs a vocabulary, not {}", vocab);
  TokenShardWriter shard(path, ::open(path.c_str(), O_RDWR | O_CLOEXEC), vocab);
  struct stat status {};
  if (shard.descriptor_ < 0 || ::fstat(shard.descriptor_, &status) != 0) return system_error("read", path);
  if (!S_ISREG(status.st_mode) || point.tokens > kMaxShardTokens) return cannot_go_on(path);
  const uint64_t bytes = kShardHeaderBytes + point.tokens * shard_token_bytes(vocab);
  if (static_cast<uint64_t>(status.st_size) < bytes) return cannot_go_on(path);
  const auto end = static_cast<off_t>(bytes);
  if (::ftruncate(shard.descriptor_, end) != 0) return system_error("write", path);
  if (auto read = shard.count_existing(point.tokens); !read) return read.error();
  if (shard.point_ != point) return cannot_go_on(path);
  if (::lseek(shard.descriptor_, end, SEEK_SET) != end) return system_error("write", path);
  return shard;
}

Status TokenShardWriter::count_existing(uint64_t tokens) {
  if (::lseek(descriptor_, kShardHeaderBytes, SEEK_SET) < 0) return system_error("read", path_);
  const size_t width = shard_token_bytes(vocab_);
  std::string bytes(kReadTokens * width, '\0');
  std::vector<int32_t> block(kReadTokens);
  size_t held = 0;
  while (point_.tokens < tokens) {
    const size_t wanted = std::min<uint64_t>(kReadTokens, tokens - point_.tokens) * width;
    const ssize_t count_read = ::read(descriptor_, bytes.data() + held, wanted - held);
    if (count_read < 0 && errno == EINTR) continue;
    if (count_read < 0) return system_error("read", path_);
    if (count_read == 0) return cannot_go_on(path_);
    held += static_cast<size_t>(count_read);
    if (held < wanted) continue;
    held = 0;
    const auto part = std::span(block).first(wanted / width);
    read_shard_tokens(bytes.data(), width, part);
    if (!std::all_of(part.begin(), part.end(), [&](int32_t token) { return token >= 0 && token < vocab_; })) {
      return cannot_go_on(path_);
    }
    count(part);
  }
  return {};
}

void TokenShardWriter::count(std::span<const int32_t> tokens) {
  constexpr uint64_t kPrime = 0x100000001b3;  // FNV's
  for (const int32_t token : tokens) {
    ++counts_[static_cast<size_t>(token)];
    point_.checksum = (point_.checksum ^ static_cast<uint64_t>(token + 1)) * kPrime;
  }
  point_.tokens += tokens.size();
}

Status TokenShardWriter::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    TP_CHECK(token >= 0 && token < vocab_, "token {} is not below the shard's vocabulary of {}", token, vocab_);
  }
  if (tokens.size() > kMaxShardTokens - point_.tokens) {
    return Error{fmt::format("{}: a shard holds at most {} tokens; split the corpus into several", path_.string(),
                             kMaxShardTokens)};
  }
  count(tokens);
  append_shard_tokens(buffer_, tokens, shard_token_bytes(vocab_));
  return buffer_.size() < kFlushBytes ? Status() : flush();
}

Status TokenShardWriter::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = file_system().write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write", path_);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  buffer_.clear();
  return {};
}

Status TokenShardWriter::sync() {
  if (auto status = flush(); !status) return status;
  if (file_system().fsync(descriptor_) != 0) return system_error("write", path_);
  return {};
}

Status TokenShardWriter::finish() {
  if (auto status = flush(); !status) return status;
  const std::string header = shard_header(vocab_, point_.tokens);
  for (size_t done = 0; done < header.size();) {
    const ssize_t written =
        file_system().pwrite(descriptor_, header.data() + done, header.size() - done, static_cast<int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write", path_);
    done += static_cast<size_t>(written);
  }
  if (file_system().fsync(descriptor_) != 0) return system_error("write", path_);
  return {};
}

}  // namespace thinpipe
