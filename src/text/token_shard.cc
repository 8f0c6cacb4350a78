#include "text/token_shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

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

constexpr size_t kFlushBytes = 1 << 20;
constexpr size_t kBlockBytes = 16 << 10;  // read at once; a window of thousands of tokens fits
constexpr size_t kScanTokens = 64 << 10;

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

// `header`: the file's first bytes, as many of them as it has up to kShardHeaderBytes.
Result<ShardLayout> parse_layout(std::string_view header, uint64_t file_bytes, const std::string& name) {
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

TokenShardWriter::TokenShardWriter(AtomicFile file, std::filesystem::path path, int64_t vocab)
    : file_(std::move(file)), path_(std::move(path)), vocab_(vocab), width_(format_for(vocab).width) {}

Result<TokenShardWriter> TokenShardWriter::create(const std::filesystem::path& path, int64_t vocab) {
  TP_CHECK(vocab > 0, "a shard needs a vocabulary, not {}", vocab);
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  // The count is not known yet; until finish() the header is all zeros, which no reader accepts.
  if (auto status = file.value().append(std::string(kShardHeaderBytes, '\0')); !status) return status.error();
  return TokenShardWriter(std::move(file.value()), path, vocab);
}

Status TokenShardWriter::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    TP_CHECK(token >= 0 && token < vocab_, "token {} is not below the shard's vocabulary of {}", token, vocab_);
  }
  if (tokens.size() > kMaxShardTokens - count_) {
    return Error{fmt::format("{}: a shard holds at most {} tokens; split the corpus into several", path_.string(),
                             kMaxShardTokens)};
  }
  count_ += tokens.size();
  width_ == kNarrow.width ? append_as<uint16_t>(buffer_, tokens) : append_as<uint32_t>(buffer_, tokens);
  return buffer_.size() < kFlushBytes ? Status() : flush();
}

Status TokenShardWriter::flush() {
  auto status = file_.append(buffer_);
  buffer_.clear();
  return status;
}

Status TokenShardWriter::finish() {
  if (auto status = flush(); !status) return status;
  const Format& format = format_for(vocab_);
  const int32_t header[3] = {format.magic, format.version, static_cast<int32_t>(count_)};
  if (auto status = file_.write_at(0, {reinterpret_cast<const char*>(header), sizeof header}); !status) return status;
  return file_.commit();
}

TokenShardView::TokenShardView(std::string_view tokens, size_t width, std::string name)
    : tokens_(tokens), width_(width), count_(tokens.size() / width), name_(std::move(name)) {}

Result<TokenShardView> TokenShardView::parse(std::string_view bytes, const std::string& name) {
  const auto layout = parse_layout(bytes.substr(0, kShardHeaderBytes), bytes.size(), name);
  if (!layout) return layout.error();
  return TokenShardView(bytes.substr(kShardHeaderBytes), layout.value().width, name);
}

uint32_t TokenShardView::token(uint64_t index) const {
  TP_CHECK(index < count_, "token {} of a shard of {}", index, count_);
  const char* from = tokens_.data() + index * width_;
  return width_ == kNarrow.width ? load<uint16_t>(from) : load<uint32_t>(from);
}

void TokenShardView::read(uint64_t start, std::span<int32_t> out) const {
  TP_CHECK(start <= count_ && out.size() <= count_ - start, "tokens {} to {} of a shard of {}", start,
           start + out.size(), count_);
  const char* from = tokens_.data() + start * width_;
  width_ == kNarrow.width ? read_as<uint16_t>(from, out) : read_as<uint32_t>(from, out);
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
  TokenShard shard(::open(path.c_str(), O_RDONLY | O_CLOEXEC), {}, path.string());
  struct stat status {};
  if (shard.descriptor_ < 0 || ::fstat(shard.descriptor_, &status) != 0) return read_error(shard.name_);
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("cannot read {}: it is not a regular file", shard.name_)};
  std::array<char, kShardHeaderBytes> header{};
  const ssize_t count = read_at(shard.descriptor_, 0, header);
  if (count < 0) return read_error(shard.name_);
  const auto layout =
      parse_layout({header.data(), static_cast<size_t>(count)}, static_cast<uint64_t>(status.st_size), shard.name_);
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
    layout_.width == kNarrow.width ? read_as<uint16_t>(block.data(), part) : read_as<uint32_t>(block.data(), part);
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
