// The machines that a person names for a run, for `train --hosts` and `train --host`. Values only: nothing here
// connects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

struct Host {
  std::string name;   // as ssh takes it: a name of ~/.ssh/config, box, user@box
  int64_t slots = 1;  // how many stages it may hold

  bool operator==(const Host&) const = default;
};

// DeepSpeed's hostfile: a line per host, "box" or "box slots=2"; # begins a comment. An error begins with FILE:LINE.
Result<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file);
// Of --host, once per slot.
Result<std::vector<Host>> named_hosts(const std::vector<std::string>& names);

int64_t slots_of(const std::vector<Host>& hosts);
// "box, user@other (2)"
std::string to_string(const std::vector<Host>& hosts);

}  // namespace thinpipe
