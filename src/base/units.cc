#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

namespace thinpipe {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double factor;
};

constexpr Unit kRates[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
constexpr Unit kDurations[] = {{"ns", 1},     {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                               {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
constexpr Unit kSizes[] = {{"b", 1},      {"kb", 1e3},      {"mb", 1e6},        {"gb", 1e9},
                           {"kib", 1024}, {"mib", 1048576}, {"gib", 1073741824}};

// The number in the smallest unit, rounded. `bare_unit` is the factor for a number without a unit; if it is 0, only the
// number 0 may stand without a unit.
Result<uint64_t> parse(std::string_view text, std::span<const Unit> units, double bare_unit, std::string_view what,
                       std::string_view example) {
  const auto refuse = [&] {
    return Error{fmt::format("'{}' is not a {}: write a number and a unit, as in \"{}\"", text, what, example)};
  };
  double number = 0;
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (code != std::errc() || !std::isfinite(number) || number < 0) return refuse();
  std::string unit(rest, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });

  double factor = 0;
  if (unit.empty()) {
    if (bare_unit == 0 && number != 0) return refuse();
    factor = bare_unit;
  } else {
    const auto found = std::find_if(units.begin(), units.end(), [&](const Unit& known) { return known.name == unit; });
    if (found == units.end()) return refuse();
    factor = found->factor;
  }
  const double value = std::round(number * factor);
  if (value > 9e18) return Error{fmt::format("'{}' is too large for a {}", text, what)};
  return static_cast<uint64_t>(value);
}

std::string shortest(double value, std::string_view unit) {
  std::string number = fmt::format("{:.3f}", value);
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number + std::string(unit);
}

}  // namespace

Result<uint64_t> parse_rate(std::string_view text) {
  if (text == "unlimited") return uint64_t{0};
  auto rate = parse(text, kRates, 0, "rate", "80mbit");
  // Internally, 0 means unlimited; somebody who writes "0mbit" does not mean that.
  if (rate && rate.value() == 0)
    return Error{fmt::format("'{}' is not a rate; write \"unlimited\" for no limit", text)};
  return rate;
}

Result<Duration> parse_duration(std::string_view text) {
  const uint64_t ns = TRY(parse(text, kDurations, 0, "duration", "25ms"));
  return Duration(static_cast<Duration::rep>(ns));
}

Result<uint64_t> parse_size(std::string_view text) { return parse(text, kSizes, 1, "size", "4KiB"); }

std::string format_rate(uint64_t bits_per_second) {
  const auto value = static_cast<double>(bits_per_second);
  if (bits_per_second == 0) return "unlimited";
  if (value >= 1e9) return shortest(value / 1e9, "gbit");
  if (value >= 1e6) return shortest(value / 1e6, "mbit");
  if (value >= 1e3) return shortest(value / 1e3, "kbit");
  return shortest(value, "bit");
}

std::string format_duration(Duration duration) {
  if (duration.count() == 0) return "0s";
  const auto ns = static_cast<double>(duration.count());
  if (ns >= 3600e9)
    return fmt::format("{}h{:02d}m", duration.count() / 3'600'000'000'000, duration.count() / 60'000'000'000 % 60);
  if (ns >= 60e9)
    return fmt::format("{}m{:02d}s", duration.count() / 60'000'000'000, duration.count() / 1'000'000'000 % 60);
  if (ns >= 1e9) return shortest(ns / 1e9, "s");
  if (ns >= 1e6) return shortest(ns / 1e6, "ms");
  if (ns >= 1e3) return shortest(ns / 1e3, "us");
  return fmt::format("{}ns", duration.count());
}

std::string format_size(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return shortest(value / 1073741824, "GiB");
  if (bytes >= uint64_t{1} << 20) return shortest(value / 1048576, "MiB");
  if (bytes >= uint64_t{1} << 10) return shortest(value / 1024, "KiB");
  return fmt::format("{}B", bytes);
}

}  // namespace thinpipe
