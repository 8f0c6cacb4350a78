#include "text/text_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/line.h"
#include "text/not_text.h"

namespace thinpipe {
namespace {

constexpr size_t kMaxTextLineBytes = 64 << 20;

}  // namespace

TextInput::TextInput(const std::filesystem::path& path, TextForm form, bool by_config)
    : path_(path), form_(form), by_config_(by_config), bytes_(read_bytes_of(path)) {}

std::string TextInput::hint(std::string_view settings, std::string_view otherwise) const {
  return by_config_ ? fmt::format("; set {}", settings) : fmt::format("; {}", otherwise);
}

Result<Encoding> TextInput::found_encoding(std::string_view beginning) const {
  if (shown_encoding(beginning) == Encoding::kUtf16) return Encoding::kUtf16;
  // Every byte counts: the first letter that is not ASCII may be the last of the file.
  const auto bytes = read_bytes_of(path_);
  Decoder probe(Encoding::kUtf8, Invalid::kSkip);
  std::string ignored;
  while (probe.invalid_count() == 0) {
    const auto part = TRY(bytes->next());
    ignored.clear();
    probe.decode(part, part.empty(), ignored);
    if (part.empty()) break;
  }
  if (probe.invalid_count() == 0) return Encoding::kUtf8;
  if (beginning.find('\0') != std::string_view::npos) {
    return Error{fmt::format("{}: is neither UTF-8 nor UTF-16 and holds NUL bytes, so it is not text{}", path_.string(),
                             hint("data.encoding = \"latin-1\" to read it all the same"))};
  }
  return Encoding::kLatin1;
}

Status TextInput::begin(std::string_view beginning) {
  if (const auto why = why_not_text(path_, beginning, by_config_); !why.empty()) {
    return Error{fmt::format("{}: {}", path_.string(), why)};
  }
  auto encoding = form_.encoding;
  if (encoding == Encoding::kAuto) encoding = TRY(found_encoding(beginning));
  if (encoding == Encoding::kUtf8 && shown_encoding(beginning) == Encoding::kUtf16) {
    return Error{fmt::format("{}: looks like UTF-16, not UTF-8{}", path_.string(),
                             hint("data.encoding = \"utf-16\", or \"auto\" if files differ"))};
  }
  decoder_.emplace(encoding, form_.invalid);
  return {};
}

Result<std::string_view> TextInput::peek() {
  while (position_ == text_.size() && !ended_) {
    text_.clear();
    position_ = 0;
    const auto bytes = TRY(bytes_->next());
    if (!decoder_) TRY(begin(bytes));
    ended_ = bytes.empty();
    if (!decoder_->decode(bytes, ended_, text_)) {
      return Error{fmt::format("{}: byte {}: invalid UTF-16{}", path_.string(), decoder_->fault_at(),
                               hint("data.invalid = \"replace\" or \"skip\" to read it all the same"))};
    }
  }
  return std::string_view(text_).substr(position_);
}

Result<bool> TextInput::next_line(std::string& line) {
  line.clear();
  for (bool any = false;; any = true) {
    const std::string_view text = TRY(peek());
    if (text.empty()) return any;
    const size_t end = text.find('\n');
    const std::string_view part = text.substr(0, end);
    if (line.size() + part.size() > kMaxTextLineBytes) {
      return fault(0, fmt::format("the line is longer than {} MiB", kMaxTextLineBytes >> 20));
    }
    line += part;
    consume(part.size() + (end == std::string_view::npos ? 0 : 1));
    if (end != std::string_view::npos) return true;
  }
}

void TextInput::passed(std::string_view text) {
  passed_bytes_ += text.size();
  passed_lines_ += static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

Error TextInput::fault(size_t offset, std::string_view what, std::string_view text) const {
  const auto lines = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(offset), '\n');
  return Error{fmt::format("{}: line {} (byte {}): {}", path_.string(),
                           passed_lines_ + static_cast<uint64_t>(lines) + 1, passed_bytes_ + offset, what)};
}

Status TextInput::check_utf8(std::string_view text) const {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return {};
  return fault(valid,
               "invalid UTF-8" + hint("data.encoding = \"auto\" or \"latin-1\" for another encoding, or data.invalid = "
                                      "\"replace\" or \"skip\""),
               text);
}

}  // namespace thinpipe
