// Which machines a training runs on: reads what the person named (--hosts, --host) and looks whether they are there.
#pragma once

#include "commands.h"
#include "config/run_config.h"
#include "run/remote_workers.h"

namespace thinpipe {

// Without hosts if the run is to be on this machine. Throws UserError for options that do not fit together.
RemoteRun hosts_in(const HostArguments& arguments);
// Whether the hosts have room for every stage; then connects to each (check_hosts). Does nothing without hosts.
void require_hosts(const RemoteRun& remote, const HostArguments& arguments, const RunConfig& config);
// "4 processes", "4 on a, b (2)": where the stages are.
std::string place_of_stages(const RemoteRun& remote, int64_t stages);
// What a command that resumes the run needs besides: ", with --hosts or --host", or "".
std::string how_to_name(const RemoteRun& remote);

}  // namespace thinpipe
