#include "run/guest.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "base/line.h"
#include "base/units.h"

namespace thinpipe {
namespace {

constexpr int kMostThreads = 1024, kMostNice = 19;
constexpr uint64_t kLeastMemory = uint64_t{16} << 20;
// With less, pings between neighbours wait behind data for longer than they may (kKeepaliveMs).
constexpr uint64_t kLeastRate = 256'000;
constexpr int kDay_min = 24 * 60;

constexpr std::array<GuestOption, 7> kOptions{{
    {"threads", &GuestOptions::threads, "N", "most compute threads; 0: one per core", true},
    {"nice", &GuestOptions::nice, "N", "priority, from 0 (normal) to 19 (others go first)", true},
    {"max-memory", &GuestOptions::max_memory, "SIZE", "most memory of a stage here; 0: what is free", true},
    {"max-upload", &GuestOptions::max_upload, "RATE",
     "most that this machine sends, for example 5mbit; unlimited: no cap", false},
    {"max-download", &GuestOptions::max_download, "RATE", "most that this machine receives; unlimited: no cap", false},
    {"hours", &GuestOptions::hours, "FROM-TO", "local time in which to compute, for example 22:00-07:00; or always",
     true},
    {"on-battery", &GuestOptions::on_battery, "leave|stay", "what to do while this machine runs on battery", true},
}};

Error wrong(const char* option, const std::string& value, const std::string& right) {
  return Error{fmt::format("--{} {}: {}", option, in_quotes(value, 40), right)};
}

// A whole number from 0 to `most`; an empty text is 0.
Result<int> number(const char* option, const std::string& text, int most) {
  int value = 0;
  if (text.empty()) return value;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc{} || end != text.data() + text.size() || value < 0 || value > most) {
    return wrong(option, text, fmt::format("needs a whole number from 0 to {}", most));
  }
  return value;
}

Result<uint64_t> rate(const char* option, const std::string& text) {
  if (text.empty()) return uint64_t{0};
  const auto value = parse_rate(text);
  if (!value) return wrong(option, text, "needs a rate like 5mbit or 800kbit, or unlimited");
  if (value.value() != 0 && value.value() < kLeastRate) {
    return wrong(
        option, text,
        fmt::format("needs at least {}, or neighbours would think that this machine is gone", format_rate(kLeastRate)));
  }
  return value.value();
}

// "7:05" or "07:05"; 24:00 is midnight.
std::optional<int> minute_of_day(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || colon < 1 || colon > 2 || text.size() != colon + 3) return std::nullopt;
  if (text.find_first_not_of("0123456789:") != std::string_view::npos || text.rfind(':') != colon) return std::nullopt;
  int hour = 0, minute = 0;
  std::from_chars(text.data(), text.data() + colon, hour);
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), minute);
  if (minute > 59 || hour * 60 + minute > kDay_min) return std::nullopt;
  return (hour * 60 + minute) % kDay_min;
}

Result<std::optional<DailyHours>> hours_in(const std::string& text) {
  if (text.empty() || text == "always") return std::optional<DailyHours>();
  const auto dash = text.find('-');
  const auto from = minute_of_day(std::string_view(text).substr(0, dash));
  const auto to = dash == std::string::npos ? std::nullopt : minute_of_day(std::string_view(text).substr(dash + 1));
  if (!from || !to) return wrong("hours", text, "needs two times of the day like 22:00-07:00, or always");
  if (*from == *to) return wrong("hours", text, "begins when it ends; write always for the whole day");
  return std::optional(DailyHours{*from, *to});
}

std::filesystem::path file_in(const std::filesystem::path& folder) { return folder / "guest.json"; }

}  // namespace

std::span<const GuestOption> guest_options() { return kOptions; }

Result<GuestLimits> limits_of(const GuestOptions& options) {
  GuestLimits limits;
  limits.threads = TRY(number("threads", options.threads, kMostThreads));
  limits.nice = TRY(number("nice", options.nice, kMostNice));
  if (!options.max_memory.empty()) {
    const auto bytes = parse_size(options.max_memory);
    if (!bytes || (bytes.value() != 0 && bytes.value() < kLeastMemory)) {
      return wrong("max-memory", options.max_memory, "needs a size of at least 16MiB, like 2GB or 1500MiB, or 0");
    }
    limits.max_memory_bytes = bytes.value();
  }
  limits.max_upload_bits_per_s = TRY(rate("max-upload", options.max_upload));
  limits.max_download_bits_per_s = TRY(rate("max-download", options.max_download));
  limits.hours = TRY(hours_in(options.hours));
  if (!options.on_battery.empty() && options.on_battery != "leave" && options.on_battery != "stay") {
    return wrong("on-battery", options.on_battery, "is not one of leave, stay");
  }
  limits.leave_on_battery = options.on_battery == "leave";
  return limits;
}

std::string describe(const GuestOptions& options) {
  std::string text;
  for (const auto& option : kOptions) {
    const auto& value = options.*option.text;
    if (!value.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", option.name, value);
  }
  return text;
}

Result<GuestOptions> kept_guest_options(const std::filesystem::path& folder) {
  GuestOptions options;
  std::error_code ignored;
  if (!std::filesystem::exists(file_in(folder), ignored)) return options;
  const auto text = TRY(read_file(file_in(folder)));
  try {
    const auto json = nlohmann::json::parse(text);
    for (const auto& option : kOptions) options.*option.text = json.value(option.name, "");
  } catch (const nlohmann::json::exception&) {
    return Error{
        fmt::format("{} is not what thinpipe writes; remove it and give the options again", file_in(folder).string())};
  }
  if (const auto limits = limits_of(options); !limits) {
    return Error{fmt::format("{}: {}", file_in(folder).string(), limits.error().message)};
  }
  return options;
}

Result<GuestOptions> merged_guest_options(const std::filesystem::path& folder, const GuestOptions& given) {
  TRY(limits_of(given));
  auto options = TRY(kept_guest_options(folder));
  for (const auto& option : kOptions) {
    if (!(given.*option.text).empty()) options.*option.text = given.*option.text;
  }
  return options;
}

Status keep_guest_options(const std::filesystem::path& folder, const GuestOptions& options) {
  nlohmann::ordered_json json;
  for (const auto& option : kOptions) {
    if (!(options.*option.text).empty()) json[option.name] = options.*option.text;
  }
  if (json.empty()) return {};
  TRY(make_directories(folder));
  return write_file_atomically(file_in(folder), json.dump(2) + "\n");
}

void be_nice(int nice) {
  if (nice > ::getpriority(PRIO_PROCESS, 0)) (void)::setpriority(PRIO_PROCESS, 0, nice);
}

void use_cores(int count) {
  cpu_set_t allowed;
  if (count <= 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  // From the end: the first core serves most of a machine's interrupts.
  int left = count;
  for (int core = CPU_SETSIZE - 1; core >= 0; --core) {
    if (CPU_ISSET(core, &allowed) && left-- <= 0) CPU_CLR(core, &allowed);
  }
  (void)::sched_setaffinity(0, sizeof allowed, &allowed);
}

int64_t threads_within(int64_t wanted, int most) {
  if (most == 0) return wanted;
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min<int64_t>(wanted > 0 ? wanted : cores, most);
}

}  // namespace thinpipe
