#include "text/decompression.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <new>
#include <span>

namespace thinpipe {
namespace {

using namespace std::string_view_literals;

// What one call of a library did. A member or frame is complete when all of its bytes were written.
struct Step {
  size_t read = 0;
  size_t written = 0;
  bool complete = false;
};

class Gzip {
 public:
  static constexpr std::string_view kName = "gzip";
  static constexpr std::string_view kEnding = ".gz";

  Gzip() {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  // Whether a file may begin so, or be cut off there.
  static bool may_begin(std::string_view file) { return "\x1F\x8B"sv.starts_with(file.substr(0, 2)); }

  Result<Step> step(std::string_view in, std::span<char> out) {
    if (complete_) ::inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: there was nothing to do
      return Error{fmt::format("is damaged ({})", stream_.msg == nullptr ? "invalid" : stream_.msg)};
    }
    complete_ = code == Z_STREAM_END;
    return Step{in.size() - stream_.avail_in, out.size() - stream_.avail_out, complete_};
  }

 private:
  z_stream stream_{};
  bool complete_ = false;
};

class Zstd {
 public:
  static constexpr std::string_view kName = "zstd";
  static constexpr std::string_view kEnding = ".zst";

  Zstd() : context_(::ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
    ::ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kMostZstdWindowLog);
  }
  ~Zstd() { ::ZSTD_freeDCtx(context_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  // The first frame may be one to skip, as pzstd writes it.
  static bool may_begin(std::string_view file) {
    return "\x28\xB5\x2F\xFD"sv.starts_with(file.substr(0, 4)) ||
           ((file[0] & 0xF0) == 0x50 && "\x2A\x4D\x18"sv.starts_with(file.substr(1, 3)));
  }

  // The library begins the next frame by itself.
  Result<Step> step(std::string_view in, std::span<char> out) {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t left = ::ZSTD_decompressStream(context_, &output, &input);
    if (::ZSTD_isError(left) == 0) return Step{input.pos, output.pos, left == 0};
    const auto code = ::ZSTD_getErrorCode(left);
    if (code == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (code == ZSTD_error_frameParameter_windowTooLarge) {
      return Error{fmt::format("needs a window above {} MiB; compress the text again without --long",
                               (size_t{1} << kMostZstdWindowLog) >> 20)};
    }
    return Error{fmt::format("is damaged ({})", ::ZSTD_getErrorString(code))};
  }

 private:
  ZSTD_DCtx* context_;
};

uint64_t most_bytes_in(const std::filesystem::path& path) {
  std::error_code code;
  const uintmax_t size = std::filesystem::file_size(path, code);
  return kCompressedAllowanceBytes + (code ? 0 : kMostTimesCompressed * size);
}

template <class Codec>
class Decompressor final : public ByteReader {
 public:
  Decompressor(std::unique_ptr<ByteReader> compressed, const std::filesystem::path& path)
      : path_(path), compressed_(std::move(compressed)), most_bytes_(most_bytes_in(path)) {}

  Result<std::string_view> next() override {
    constexpr size_t kPieceBytes = 256 << 10;
    piece_.resize(kPieceBytes);
    size_t filled = 0;
    while (filled < piece_.size()) {
      if (rest_.empty() && !ended_) TRY(read_on());
      if (ended_ && complete_) break;
      const auto step = codec_.step(rest_, std::span(piece_).subspan(filled));
      if (!step) return fault(step.error().message);
      const auto [read, written, complete] = step.value();
      if (ended_ && read + written == 0) return fault("is cut short; copy or download the file again");
      complete_ = complete;
      rest_.remove_prefix(read);
      read_bytes_ += read;
      filled += written;
      written_bytes_ += written;
      if (written_bytes_ > most_bytes_) {
        return fault(
            fmt::format("holds more than {} times the size of the file, as a decompression bomb does; if it "
                        "is meant, unpack it with `{} -d` first",
                        kMostTimesCompressed, Codec::kName));
      }
    }
    piece_.resize(filled);
    return std::string_view(piece_);
  }

 private:
  Status read_on() {
    rest_ = TRY(compressed_->next());
    ended_ = rest_.empty();
    if (ended_ || read_bytes_ > 0 || Codec::may_begin(rest_)) return {};
    return Error{fmt::format("{}: is named {} but is not compressed by {}; if it is text, rename it without {}",
                             path_.string(), Codec::kEnding, Codec::kName, Codec::kEnding)};
  }
  Error fault(std::string_view what) const {
    return Error{fmt::format("{}: byte {}, after {} bytes of text: the {} data {}", path_.string(), read_bytes_,
                             written_bytes_, Codec::kName, what)};
  }

  std::filesystem::path path_;
  std::unique_ptr<ByteReader> compressed_;
  uint64_t most_bytes_;
  Codec codec_;
  std::string_view rest_;  // read from the file, not yet by the codec
  bool ended_ = false;     // the file
  bool complete_ = false;  // the last member or frame
  uint64_t read_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  std::string piece_;
};

}  // namespace

Compression compression_of(const std::filesystem::path& path) {
  const auto ending = path.extension();
  if (ending == Gzip::kEnding) return Compression::kGzip;
  return ending == Zstd::kEnding ? Compression::kZstd : Compression::kNone;
}

std::filesystem::path plain_name(const std::filesystem::path& path) {
  return compression_of(path) == Compression::kNone ? path : path.stem();
}

std::unique_ptr<ByteReader> decompressed(Compression compression, std::unique_ptr<ByteReader> compressed,
                                         const std::filesystem::path& path) {
  TP_CHECK(compression != Compression::kNone, "{} is not compressed", path.string());
  if (compression == Compression::kGzip) return std::make_unique<Decompressor<Gzip>>(std::move(compressed), path);
  return std::make_unique<Decompressor<Zstd>>(std::move(compressed), path);
}

}  // namespace thinpipe
