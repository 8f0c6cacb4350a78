// When a guest machine takes part: the hours of the day and the power supply that its owner has chosen (guest.h).
// decide_presence() is the rule; PresenceWatch asks it every second while a machine takes part or waits.
#pragma once

#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "run/guest.h"

namespace thinpipe {

enum class Power { kMains, kBattery };  // a machine that does not say, or that has no battery, is on mains

// Reads a folder like /sys/class/power_supply. Ignores the batteries of mice and the like.
Power read_power(const std::filesystem::path& folder);

struct Presence {
  bool here = true;
  std::string why;  // one sentence
};

// Pure, but for the time zone (TZ). The hours are those of the clock on the wall: the last time it has passed one of
// the two marks decides. So a mark that a change to summer time skips takes effect at the change, and hours that are
// over stay over when the clock is set back.
Presence decide_presence(std::time_t now, Power power, const GuestLimits& limits);

// Where the facts come from; tests pass their own.
struct PresenceSources {
  std::function<std::time_t()> now = [] { return std::time(nullptr); };
  // $THINPIPE_POWER_SUPPLY, for tests, else /sys/class/power_supply.
  std::filesystem::path power = power_folder();
  Duration every = std::chrono::seconds(1);

  static std::filesystem::path power_folder();
};

// The decision of this moment.
Presence present_now(const GuestLimits& limits, const PresenceSources& sources);

// Waits until the machine may take part. Calls `on_wait` with the reason, once, if it has to wait. Returns false if
// stop is requested first.
bool wait_until_present(const GuestLimits& limits, const PresenceSources& sources, const std::stop_token& stop,
                        const std::function<void(const std::string&)>& on_wait);

// While it exists, a thread asks whether the machine may still take part, unless the limits never end that.
class PresenceWatch {
 public:
  // person: leaves as well when this is requested. on_leave: called once with the reason, if it is the rule's.
  PresenceWatch(const GuestLimits& limits, PresenceSources sources, const std::stop_token& person,
                std::function<void(const std::string&)> on_leave);
  // Requested when the machine must leave, for either reason.
  std::stop_token leave() const { return leave_.get_token(); }
  // True if the rule wanted it to leave, not the person.
  bool is_break() const;

 private:
  void look(const std::stop_token& stop);

  const GuestLimits limits_;
  const PresenceSources sources_;
  const std::function<void(const std::string&)> on_leave_;
  std::stop_source leave_;
  mutable std::mutex mutex_;
  bool is_break_ = false;
  std::stop_callback<std::function<void()>> person_;
  std::jthread thread_;
};

inline constexpr const char* kTakesPart = "takes part";

// What a joined machine's folder says about the process that takes part, for `thinpipe status`.
Status write_presence(const std::filesystem::path& folder, const std::string& text);
// None: nobody takes part from that folder now.
std::optional<std::string> read_presence(const std::filesystem::path& folder);

}  // namespace thinpipe
