#include "run/guest_run.h"

#include <fmt/format.h>

#include <csignal>

namespace thinpipe {
namespace {

constexpr timespec kEvery{.tv_sec = 1, .tv_nsec = 0};

// False: ctrl-C came first. run_locally() leaves the two signals blocked as well.
bool wait_for_presence(const LocalRun& run, const GuestLimits& limits, const PresenceSources& sources) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  for (bool said = false;; said = true) {
    const auto presence = present_now(limits, sources);
    if (presence.here) return true;
    if (!said) fmt::print(run.out, "waiting: {}\n", presence.why);
    std::fflush(run.out);
    if (::sigtimedwait(&signals, nullptr, &kEvery) > 0) return false;
  }
}

}  // namespace

RunOutcome run_with_breaks(const LocalRun& run, const GuestLimits& limits, const Clock& clock,
                           const PresenceSources& sources) {
  if (!limits.may_leave()) return run_locally(run, clock);
  auto part = run;
  part.stop_wanted = [&]() -> std::optional<std::string> {
    const auto presence = present_now(limits, sources);
    if (presence.here) return std::nullopt;
    return presence.why;
  };
  RunOutcome end;
  while (wait_for_presence(run, limits, sources)) {
    end = run_locally(part, clock);
    if (end.complete || end.interrupted) break;
  }
  return end;
}

void take_part_with_breaks(const GuestLimits& limits, const std::stop_token& person,
                           const std::function<void(const std::stop_token& leave)>& take_part,
                           const std::function<void(const std::string&)>& say, const PresenceSources& sources) {
  const auto waiting = [&](const std::string& why) { say("waiting: " + why); };
  while (wait_until_present(limits, sources, person, waiting)) {
    say(kTakesPart);
    const PresenceWatch watch(limits, sources, person,
                              [&](const std::string& why) { say("leaving after a checkpoint: " + why); });
    take_part(watch.leave());
    if (!watch.is_break()) return;
  }
}

}  // namespace thinpipe
