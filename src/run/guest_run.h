// Runs with breaks: the hours and the power supply that a machine's owner has chosen (presence.h), for `thinpipe train`
// and `thinpipe join`.
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "run/guest.h"
#include "run/presence.h"
#include "run/supervisor.h"

namespace thinpipe {

// run_locally(), stopped with a checkpoint whenever a break begins and resumed when it is over. Returns when the run
// has ended or the person has stopped it, also during a break.
RunOutcome run_with_breaks(const LocalRun& run, const GuestLimits& limits, const Clock& clock,
                           const PresenceSources& sources = {});

// Calls take_part(leave) outside of breaks; it returns soon after `leave` is requested, or when it is over. Returns
// when it is over, or when the person wants to leave, also during a break. say: gets one line when a break begins and
// when it ends.
void take_part_with_breaks(const GuestLimits& limits, const std::stop_token& person,
                           const std::function<void(const std::stop_token& leave)>& take_part,
                           const std::function<void(const std::string&)>& say, const PresenceSources& sources = {});

}  // namespace thinpipe
