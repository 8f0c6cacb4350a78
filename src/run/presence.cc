#include "run/presence.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"

namespace thinpipe {
namespace {

constexpr int kAround_min = 24 * 60;

int minute_shown(std::time_t at) {
  std::tm local{};
  ::localtime_r(&at, &local);
  return local.tm_hour * 60 + local.tm_min;
}

// Whether the last mark that the clock has passed is the beginning. Goes back minute by minute: a day has at most 26 h.
bool is_within(std::time_t now, const DailyHours& hours) {
  std::time_t at = now - now % 60;
  int after = minute_shown(at);
  for (int i = 0; i <= 26 * 60; ++i, at -= 60) {
    const int before = minute_shown(at - 60);
    int passed = after - before;  // minutes on the clock: 1, or more or less when it was changed
    if (passed < -kAround_min / 2) passed += kAround_min;
    if (passed > kAround_min / 2) passed -= kAround_min;
    const auto reached = [&](int mark) {  // minutes after `before`; 0: not in this minute
      const int way = (mark - before + kAround_min) % kAround_min;
      return way <= passed ? way : 0;
    };
    const int from = reached(hours.from_min), to = reached(hours.to_min);
    if (from > 0 || to > 0) return from > to;
    after = before;
  }
  return false;
}

std::string clock_text(int minute) { return fmt::format("{:02}:{:02}", minute / 60, minute % 60); }

// The first line of a small file; empty if there is none.
std::string fact(const std::filesystem::path& supply, const char* name) {
  const auto text = read_file(supply / name);
  return text ? text.value().substr(0, text.value().find('\n')) : "";
}

std::filesystem::path presence_file(const std::filesystem::path& folder) { return folder / "presence.json"; }

}  // namespace

Power read_power(const std::filesystem::path& folder) {
  bool has_mains = false, on_mains = false, has_battery = false, discharging = false;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const auto& supply = entry->path();
    const auto type = fact(supply, "type");
    if (fact(supply, "scope") == "Device") continue;
    if (type == "Battery") {
      has_battery = true;
      discharging = discharging || fact(supply, "status") == "Discharging";
    } else if (type == "Mains" || type.starts_with("USB")) {
      has_mains = has_mains || type == "Mains";
      on_mains = on_mains || fact(supply, "online") == "1";
    }
  }
  if (!has_battery || on_mains) return Power::kMains;
  return has_mains || discharging ? Power::kBattery : Power::kMains;
}

Presence decide_presence(std::time_t now, Power power, const GuestLimits& limits) {
  if (limits.leave_on_battery && power == Power::kBattery) {
    return {false, "this machine runs on battery; it comes back when it is plugged in"};
  }
  if (!limits.hours) return {true, "this machine may take part at any time"};
  const auto from = clock_text(limits.hours->from_min), to = clock_text(limits.hours->to_min);
  const auto time = clock_text(minute_shown(now));
  if (is_within(now, *limits.hours)) return {true, fmt::format("it is {}: this machine takes part until {}", time, to)};
  return {false, fmt::format("it is {}: this machine takes part from {} to {}", time, from, to)};
}

std::filesystem::path PresenceSources::power_folder() {
  const char* other = std::getenv("THINPIPE_POWER_SUPPLY");
  return other != nullptr ? other : "/sys/class/power_supply";
}

Presence present_now(const GuestLimits& limits, const PresenceSources& sources) {
  const auto power = limits.leave_on_battery ? read_power(sources.power) : Power::kMains;
  return decide_presence(sources.now(), power, limits);
}

bool wait_until_present(const GuestLimits& limits, const PresenceSources& sources, const std::stop_token& stop,
                        const std::function<void(const std::string&)>& on_wait) {
  std::mutex mutex;
  std::condition_variable_any sleep;
  std::unique_lock lock(mutex);
  for (bool said = false; !stop.stop_requested(); said = true) {
    const auto presence = present_now(limits, sources);
    if (presence.here) return true;
    if (!said) on_wait(presence.why);
    sleep.wait_for(lock, stop, sources.every, [] { return false; });
  }
  return false;
}

PresenceWatch::PresenceWatch(const GuestLimits& limits, PresenceSources sources, const std::stop_token& person,
                             std::function<void(const std::string&)> on_leave)
    : limits_(limits),
      sources_(std::move(sources)),
      on_leave_(std::move(on_leave)),
      person_(person, [this] { leave_.request_stop(); }) {
  if (limits_.may_leave()) thread_ = std::jthread([this](const std::stop_token& stop) { look(stop); });
}

bool PresenceWatch::is_break() const {
  const std::lock_guard lock(mutex_);
  return is_break_;
}

void PresenceWatch::look(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any sleep;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested() && !leave_.stop_requested()) {
    const auto presence = present_now(limits_, sources_);
    if (!presence.here) {
      {
        const std::lock_guard guard(mutex_);
        is_break_ = true;
      }
      on_leave_(presence.why);
      leave_.request_stop();
      return;
    }
    sleep.wait_for(lock, stop, sources_.every, [] { return false; });
  }
}

Status write_presence(const std::filesystem::path& folder, const std::string& text) {
  const nlohmann::ordered_json json = {{"pid", ::getpid()}, {"state", text}};
  return write_file_atomically(presence_file(folder), json.dump() + "\n");
}

std::optional<std::string> read_presence(const std::filesystem::path& folder) {
  const auto text = read_file(presence_file(folder));
  const auto json = text ? nlohmann::json::parse(text.value(), nullptr, false) : nlohmann::json();
  if (!json.is_object() || !json.contains("pid") || !json["pid"].is_number_integer()) return std::nullopt;
  const auto pid = json["pid"].get<pid_t>();
  if (pid <= 1 || (::kill(pid, 0) != 0 && errno == ESRCH)) return std::nullopt;
  return json.contains("state") && json["state"].is_string() ? json["state"].get<std::string>() : "";
}

}  // namespace thinpipe
