#include "text/byte_reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "text/decompression.h"

namespace thinpipe {
namespace {

constexpr size_t kReadBytes = 256 << 10;

class PlainReader final : public ByteReader {
 public:
  explicit PlainReader(const std::filesystem::path& path) : path_(path), file_(std::fopen(path.c_str(), "rbe")) {
    if (file_ == nullptr) open_error_ = errno;
  }
  ~PlainReader() override {
    if (file_ != nullptr) std::fclose(file_);
  }
  PlainReader(const PlainReader&) = delete;
  PlainReader& operator=(const PlainReader&) = delete;

  Result<std::string_view> next() override {
    if (file_ == nullptr) return Error{fmt::format("cannot read {}: {}", path_.string(), std::strerror(open_error_))};
    buffer_.resize(kReadBytes);
    buffer_.resize(std::fread(buffer_.data(), 1, buffer_.size(), file_));
    if (buffer_.empty() && std::ferror(file_) != 0) {
      return Error{fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno))};
    }
    return std::string_view(buffer_);
  }

 private:
  std::filesystem::path path_;
  FILE* file_;
  int open_error_ = 0;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<ByteReader> read_bytes_of(const std::filesystem::path& path) {
  auto bytes = std::make_unique<PlainReader>(path);
  const auto compression = compression_of(path);
  if (compression == Compression::kNone) return bytes;
  return decompressed(compression, std::move(bytes), path);
}

}  // namespace thinpipe
