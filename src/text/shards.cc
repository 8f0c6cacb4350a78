#include "text/shards.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read without conversion");

struct Format {
  int32_t magic;
  int32_t version;
  size_t width;
};
// As llm.c writes them: the first for GPT-2's vocabulary, the second for Llama 3's.
constexpr Format kNarrow{20240520, 1, sizeof(uint16_t)};
constexpr Format kWide{20240801, 7, sizeof(uint32_t)};
constexpr int64_t kNarrowVocab = 65536;
constexpr uint64_t kMaxTokens = INT32_MAX;  // the header's count is an int32

constexpr size_t kBlockBytes = 16 << 10;  // per read; a window of thousands of tokens fits
constexpr size_t kScanTokens = 64 << 10;
constexpr size_t kFlushBytes = 1 << 20;

const Format& format_for(int64_t vocab) { return vocab <= kNarrowVocab ? kNarrow : kWide; }

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void append_as(std::string& bytes, std::span<const int32_t> tokens) {
  const size_t start = bytes.size();
  bytes.resize(start + tokens.size() * sizeof(T));
  char* to = bytes.data() + start;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T token = static_cast<T>(tokens[i]);
    std::memcpy(to + i * sizeof(T), &token, sizeof token);
  }
}

template <class T>
void read_as(const char* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(load<T>(from + i * sizeof(T)));
}

Error read_error(const std::string& name) {
  return Error{fmt::format("cannot read {}: {}", name, std::strerror(errno))};
}

// Fills `out` from `offset` on and returns the number of bytes read; it is less than asked only at the end of the file.
Result<size_t> read_at(const Fd& file, uint64_t offset, std::span<char> out, const std::string& name) {
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count =
        ::pread(file.get(), out.data() + filled, out.size() - filled, static_cast<off_t>(offset + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return read_error(name);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  return filled;
}

}  // namespace

Result<ShardLayout> parse_shard_header(std::string_view header, uint64_t file_bytes, const std::string& name) {
  const auto refuse = [&](std::string_view why) { return Error{fmt::format("{}: not a token shard: {}", name, why)}; };
  if (header.size() < kShardHeaderBytes) {
    return refuse(fmt::format("it has {} bytes, but the header alone needs {}", header.size(), kShardHeaderBytes));
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
    return refuse(fmt::format("it has {} bytes, but the {} tokens of the header make {}", file_bytes, count, expected));
  }
  if (header.substr(12).find_first_not_of('\0') != std::string_view::npos) {
    return refuse("the header's unused part is not zero");
  }
  return ShardLayout{format->width, count};
}

Result<TokenShard> TokenShard::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK: opening a pipe would wait for a writer.
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return read_error(name);
  if (!S_ISREG(status.st_mode)) return Error{fmt::format("cannot read {}: it is not a regular file", name)};
  std::array<char, kShardHeaderBytes> header{};
  const size_t count = TRY(read_at(file, 0, header, name));
  const auto layout = TRY(parse_shard_header({header.data(), count}, static_cast<uint64_t>(status.st_size), name));
  return TokenShard(std::move(file), layout, name);
}

Status TokenShard::read(uint64_t start, std::span<int32_t> out) const {
  TP_CHECK(start <= size() && out.size() <= size() - start, "tokens {} to {} of a shard of {}", start,
           start + out.size(), size());
  std::array<char, kBlockBytes> block;
  while (!out.empty()) {
    const auto part = out.first(std::min(out.size(), block.size() / layout_.width));
    const auto bytes = std::span(block).first(part.size() * layout_.width);
    const size_t count = TRY(read_at(file_, kShardHeaderBytes + start * layout_.width, bytes, name_));
    if (count < bytes.size()) return Error{fmt::format("{}: was truncated after it was opened", name_)};
    layout_.width == kNarrow.width ? read_as<uint16_t>(bytes.data(), part) : read_as<uint32_t>(bytes.data(), part);
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
    TRY(read(start, part));
    // The same 32 bits, as unsigned numbers.
    TRY(use(start, {reinterpret_cast<const uint32_t*>(part.data()), part.size()}));
  }
  return {};
}

Status TokenShard::check_ids_below(int64_t vocab) const {
  return for_each_block([&](uint64_t start, std::span<const uint32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (static_cast<int64_t>(tokens[i]) < vocab) continue;
      return Error{fmt::format("{}: token {} at position {} is not below the vocabulary of {}", name_, tokens[i],
                               start + i, vocab)};
    }
    return {};
  });
}

TokenShardWriter::TokenShardWriter(std::string name, AtomicFile file, int64_t vocab)
    : name_(std::move(name)), file_(std::move(file)), vocab_(vocab), counts_(static_cast<size_t>(vocab)) {}

Result<TokenShardWriter> TokenShardWriter::create(const std::filesystem::path& path, int64_t vocab) {
  TP_CHECK(vocab > 0, "a shard needs a vocabulary, not {}", vocab);
  auto file = TRY(AtomicFile::create(path));
  TRY(file.append(std::string(kShardHeaderBytes, '\0')));  // finish() fills it in
  return TokenShardWriter(path.string(), std::move(file), vocab);
}

Status TokenShardWriter::append(std::span<const int32_t> tokens) {
  if (tokens.size() > kMaxTokens - tokens_) {
    return Error{fmt::format("{}: a shard holds at most {} tokens; split the corpus into several", name_, kMaxTokens)};
  }
  for (const int32_t token : tokens) {
    TP_CHECK(token >= 0 && token < vocab_, "token {} is not below the shard's vocabulary of {}", token, vocab_);
    ++counts_[static_cast<size_t>(token)];
  }
  tokens_ += tokens.size();
  vocab_ <= kNarrowVocab ? append_as<uint16_t>(buffer_, tokens) : append_as<uint32_t>(buffer_, tokens);
  return buffer_.size() < kFlushBytes ? Status() : flush();
}

Status TokenShardWriter::flush() {
  TRY(file_.append(buffer_));
  buffer_.clear();
  return {};
}

Status TokenShardWriter::finish() {
  TRY(flush());
  const Format& format = format_for(vocab_);
  const int32_t header[] = {format.magic, format.version, static_cast<int32_t>(tokens_)};
  TRY(file_.write_at(0, {reinterpret_cast<const char*>(header), sizeof header}));
  return file_.commit();
}

}  // namespace thinpipe
