// Whether systemd keeps this user's services running while the user is not logged in ("lingering"). Without it, what
// `thinpipe service` has installed starts at the login and ends at the logout.
#pragma once

#include <optional>
#include <string>

namespace thinpipe {

enum class Lingering { kOn, kOff, kUnknown };

// From what `loginctl show-user UID --property=Linger` printed; nothing: there is no such program, or it failed without
// a word about the user.
Lingering lingering_in(const std::optional<std::string>& printed);
// Asks loginctl, if this machine has it.
Lingering lingering_of_this_user();
// False: systemd does not allow it, or there is no loginctl.
bool enable_lingering();

// The one command that a person needs.
std::string command_for_lingering();
// What it means for a service, one line for install and status.
std::string describe(Lingering lingering);

}  // namespace thinpipe
