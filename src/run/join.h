// Coming into somebody's run: a look at it with the invite's token, the checks whether this machine can take part, the
// trade of the token for a certificate, and the folder in which all that is kept for the next time.
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

namespace thinpipe {

// The coordinator's answer to a machine that has not joined, and the line to it.
struct JoinLook {
  std::string address;  // the one of the invite that answered
  control::JoinReply reply;
  PreflightRun run;  // without what depends on the config: numbers of the seed, traffic
};

// Throws UserError with the coordinator's reason, or when none of its addresses answers.
JoinLook look(const Invite& invite);

// The facts for preflight(), from the look and from this machine; measures one block unless the memory forbids it.
// folder: where the stage's files would go.
struct JoinChecks {
  RunConfig config;
  control::Machine machine;
  std::vector<Check> checks;
};
JoinChecks check_machine(const JoinLook& look, const std::filesystem::path& folder);
// The same without a run: the default model in its default stages.
JoinChecks check_machine_alone(const RunConfig& config, int64_t vocab, const std::filesystem::path& folder);

// Where this machine keeps what belongs to its part in that run.
std::filesystem::path join_folder(const std::string& run);
// The identity that an earlier join has left there, if it is whole and of this run's authority.
std::optional<CoordinatorAccess> earlier_access(const Invite& invite);
// A use of the invite for a certificate, kept in join_folder(). Throws UserError with the coordinator's reason.
CoordinatorAccess enrol(const Invite& invite, const std::string& address, const std::string& name);

}  // namespace thinpipe
