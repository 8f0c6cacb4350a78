#include "base/say.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/line.h"

namespace thinpipe {
namespace {

constexpr size_t kUsualColumns = 80;

size_t width_of(std::string_view text) {
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins));
}

// One line, without its end.
std::string folded_line(std::string_view line, size_t columns, size_t before) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(before + begin + 2, ' ');
  std::string result(line.substr(0, begin));
  line.remove_prefix(begin);
  size_t used = before + begin;
  while (used + width_of(line) > columns) {
    const auto fits = first_columns(line, columns > used ? columns - used : 0).size();
    size_t cut = line.rfind(' ', fits);
    if (cut == std::string_view::npos) cut = line.find(' ');
    if (cut == std::string_view::npos) break;
    const size_t next = line.find_first_not_of(' ', cut);
    if (next == std::string_view::npos) break;
    result += fmt::format("{}\n{}", line.substr(0, line.find_last_not_of(' ', cut) + 1), indent);
    line.remove_prefix(next);
    used = indent.size();
  }
  return result.append(line);
}

}  // namespace

std::string folded(std::string_view text, size_t columns, size_t before) {
  if (columns == std::string::npos) return std::string(text);
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result += folded_line(text.substr(begin, end - begin), columns, before);
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  return result;
}

size_t room_of_terminal(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // Some terminals wrap when the last column is written.
  return known ? size.ws_col - size_t{1} : kUsualColumns - 1;
}

size_t room_of(std::FILE* out) { return ::isatty(::fileno(out)) == 1 ? room_of_terminal(out) : std::string::npos; }

void say_text(std::string_view text) { fmt::print("{}", folded(text, room_of(stdout))); }

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with('s') ? "es" : "s");
}

std::string rate_text(double bits_per_s) {
  if (!(bits_per_s >= 1 && bits_per_s < 1e15)) return "an unknown rate";
  if (bits_per_s >= 1e9) return fmt::format("{:.1f} Gbit/s", bits_per_s / 1e9);
  if (bits_per_s >= 10e6) return fmt::format("{:.0f} Mbit/s", bits_per_s / 1e6);
  if (bits_per_s >= 1e6) return fmt::format("{:.1f} Mbit/s", bits_per_s / 1e6);
  if (bits_per_s >= 1e3) return fmt::format("{:.0f} kbit/s", bits_per_s / 1e3);
  return fmt::format("{:.0f} bit/s", bits_per_s);
}

}  // namespace thinpipe
