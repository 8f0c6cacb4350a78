#include "base/line.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/say.h"

namespace thinpipe {
namespace {

// A terminal can be rewritten often; a log file should stay readable.
constexpr Duration kLiveEvery = std::chrono::milliseconds(100);
constexpr Duration kPlainEvery = std::chrono::seconds(5);

// One terminal per process: guards what is on it.
std::mutex terminal_mutex;
LiveLine* on_terminal = nullptr;  // the one that was shown last

bool is_control(char character) { return static_cast<unsigned char>(character) < 0x20 || character == 0x7f; }

uint8_t byte_at(std::string_view text, size_t index) { return static_cast<uint8_t>(text[index]); }

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// The length of the well-formed character at the start of `text`; 0 if there is none.
size_t character_length(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(byte_at(text, i))) return 0;
  }
  // The second byte alone shows overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t second = byte_at(text, 1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the optimal string alignment table: two back for the swap of neighbours.
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const size_t length = character_length(text.substr(offset));
    if (length == 0) break;
    offset += length;
  }
  return offset;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    valid += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    valid += '?';
    text.remove_prefix(1);
  }
  return valid;
}

std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text.substr(0, kMaxLineBytes));
  std::replace_if(line.begin(), line.end(), is_control, ' ');
  return line;
}

std::string escaped(std::string_view text, size_t most) {
  std::string out;
  for (const char character : text.substr(0, most)) {
    out += is_control(character) ? fmt::format("\\u{:04x}", character) : std::string(1, character);
  }
  return text.size() > most ? out + "..." : out;
}

std::string in_quotes(std::string_view text, size_t most) {
  std::string plain;
  for (const char character : text.substr(0, most)) {
    if (character == '"' || character == '\\') plain += '\\';
    plain += character;
  }
  return fmt::format("\"{}\"{}", escaped(plain), text.size() > most ? "..." : "");
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string_view first_columns(std::string_view text, size_t columns) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (is_continuation(byte_at(text, end))) continue;
    if (columns == 0) break;
    --columns;
  }
  return text.substr(0, end);
}

LiveLine::~LiveLine() {
  const std::lock_guard lock(terminal_mutex);
  if (on_terminal == this) on_terminal = nullptr;
}

bool LiveLine::is_due() const { return !last_ || clock_.now() - *last_ >= (live_ ? kLiveEvery : kPlainEvery); }

size_t LiveLine::room() const { return live_ ? room_of_terminal(out_) : std::string::npos; }

void LiveLine::show(std::string_view text) {
  const std::lock_guard lock(terminal_mutex);
  last_ = clock_.now();
  erase();
  text_ = first_columns(text, room());
  draw();
}

void LiveLine::note(std::string_view text) {
  const std::lock_guard lock(terminal_mutex);
  erase();
  fmt::print(out_, "{}\n", folded(text, room()));
  std::fflush(out_);
}

void LiveLine::clear() {
  const std::lock_guard lock(terminal_mutex);
  erase();
  std::fflush(out_);
}

void LiveLine::end() {
  const std::lock_guard lock(terminal_mutex);
  if (std::exchange(up_, false)) fmt::print(out_, "\n");
}

void LiveLine::draw() {
  fmt::print(out_, "{}{}", text_, live_ ? "" : "\n");
  std::fflush(out_);
  up_ = live_;
  on_terminal = up_ ? this : nullptr;
}

void LiveLine::erase() {
  if (std::exchange(up_, false)) fmt::print(out_, "\r\033[K");
}

void above_live_line(const std::function<void()>& print) {
  const std::lock_guard lock(terminal_mutex);
  auto* line = on_terminal != nullptr && on_terminal->up_ ? on_terminal : nullptr;
  if (line != nullptr) {
    line->erase();
    std::fflush(line->out_);
  }
  print();
  if (line != nullptr) line->draw();
}

}  // namespace thinpipe
