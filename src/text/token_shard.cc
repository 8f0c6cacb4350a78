#include "text/token_shard.h"

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

constexpr size_t kFlushBytes = 1 << 20;

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
  const auto refuse = [&](std::string_view why) { return Error{fmt::format("{}: not a token shard: {}", name, why)}; };
  if (bytes.size() < kShardHeaderBytes) {
    return refuse(fmt::format("{} bytes, and the header alone has {}", bytes.size(), kShardHeaderBytes));
  }
  const auto field = [&](size_t index) { return load<int32_t>(bytes.data() + index * sizeof(int32_t)); };
  const Format* format = field(0) == kNarrow.magic ? &kNarrow : field(0) == kWide.magic ? &kWide : nullptr;
  if (format == nullptr) return refuse(fmt::format("magic is {}, not {} or {}", field(0), kNarrow.magic, kWide.magic));
  if (field(1) != format->version) {
    return refuse(fmt::format("version is {}; with magic {} only {} is known", field(1), field(0), format->version));
  }
  if (field(2) < 0) return refuse(fmt::format("the header counts {} tokens", field(2)));
  const uint64_t expected = kShardHeaderBytes + static_cast<uint64_t>(field(2)) * format->width;
  if (bytes.size() != expected) {
    return refuse(fmt::format("{} bytes, where the header's {} tokens make {}", bytes.size(), field(2), expected));
  }
  const std::string_view reserved = bytes.substr(12, kShardHeaderBytes - 12);
  if (reserved.find_first_not_of('\0') != std::string_view::npos) return refuse("the header's unused part is not zero");
  return TokenShardView(bytes.substr(kShardHeaderBytes), format->width, name);
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
    if (static_cast<int64_t>(token(i)) >= vocab) {
      return Error{
          fmt::format("{}: token {} at position {} is not below the vocabulary of {}", name_, token(i), i, vocab)};
    }
  }
  return {};
}

Result<TokenShard> TokenShard::open(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto view = TokenShardView::parse(file.value().bytes(), path.string());
  if (!view) return view.error();
  return TokenShard(std::move(file.value()), std::move(view.value()));
}

}  // namespace thinpipe
