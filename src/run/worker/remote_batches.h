// Token windows from the coordinator, for a first stage that has no copy of the corpus. Asks for the next microbatch
// while the current one is computed.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "config/run_config.h"
#include "pipeline/batches.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

class RemoteBatches final : public Batches {
 public:
  RemoteBatches(CoordinatorAccess coordinator, std::string run, const TrainConfig& train, int64_t vocab);

  Result<TokenBatch> training(int64_t step, int64_t microbatch) override;
  Result<TokenBatch> validation(int64_t first_window, int64_t count) override;

 private:
  Result<TokenBatch> ask(const control::WindowsRequest& request, int64_t sequences);

  std::string run_;
  TrainConfig train_;
  int64_t vocab_;
  CoordinatorLine line_;
  std::pair<int64_t, int64_t> ahead_number_{-1, -1};  // step and microbatch
  std::future<Result<TokenBatch>> ahead_;
};

}  // namespace thinpipe
