// Talking to the coordinator of a run of this machine, as its operator.
#pragma once

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <filesystem>

#include "base/result.h"
#include "run/coordinator/serve.h"
#include "run/coordinator_line.h"
#include "run_folders.h"

namespace thinpipe {

// make(stub, context) makes the call and returns its status. Throws UserError when the run is not served, or with what
// the coordinator said.
template <class Call>
void call_coordinator(const std::filesystem::path& run, const Call& make) {
  const auto place = read_coordinator_place(run);
  if (!place) {
    const auto state = state_of(run);
    if (state == "complete") throw UserError(fmt::format("{}: is not being served: it is complete", run.string()));
    throw UserError(
        fmt::format("{}: this run is not being served ({}); start it with thinpipe train --resume or "
                    "thinpipe serve --run",
                    run.string(), state));
  }
  CoordinatorLine line(operator_access(run, place.value().address));
  grpc::ClientContext context;
  // One that is gone refuses at once; one that trains on a busy machine may take its time.
  constexpr auto kPatience = std::chrono::seconds(30);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const grpc::Status status = make(*line.stub(), &context);
  if (status.ok()) return;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    throw UserError(fmt::format("{}: its coordinator does not answer: {}", run.string(), status.error_message()));
  }
  throw UserError(status.error_message());
}

}  // namespace thinpipe
