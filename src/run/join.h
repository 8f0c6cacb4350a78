// Joins somebody's run: asks its coordinator about it with the invite's token, checks whether this machine can take
// part, trades the token for a certificate, and keeps the certificate in a folder for the next time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/run_config.h"
#include "net/invite.h"
#include "plan/preflight.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"
#include "run/guest.h"
#include "run/run_files.h"

namespace thinpipe {

// What a machine learns, before it joins, about a run and about the line to its coordinator.
struct JoinLook {
  std::string address;  // the one of the invite's addresses that answered
  control::JoinReply reply;
  PreflightRun run;  // without the fields that depend on the config: seed numbers, traffic
};

// Throws UserError with the coordinator's reason, or if none of its addresses answers.
JoinLook look(const Invite& invite);

// Gathers the facts about the run and this machine and calls preflight(). Measures one block if the memory allows it.
// folder: where the stage's files would go.
struct JoinChecks {
  RunConfig config;
  control::Machine machine;
  std::vector<Check> checks;
};
JoinChecks check_machine(const JoinLook& look, const std::filesystem::path& folder, const GuestLimits& limits = {});
// The same without a run: the default model in its default stages.
JoinChecks check_machine_alone(const RunConfig& config, int64_t vocab, const std::filesystem::path& folder);

// The same machine for the coordinator, with no more memory than its owner allows.
control::Machine within(control::Machine machine, const GuestLimits& limits);
// Throws UserError if no stage fits the memory that the owner allows.
void refuse_if_no_stage_fits(const RunConfig& config, const GuestLimits& limits);

// The identity that an earlier join has saved in join_folder(), if it is whole and this run's authority has signed it.
std::optional<CoordinatorAccess> earlier_access(const Invite& invite);
// Trades a use of the invite for a certificate and saves it in join_folder(). Throws UserError with the coordinator's
// reason.
CoordinatorAccess enrol(const Invite& invite, const std::string& address, const std::string& name);

}  // namespace thinpipe
