#include "run/worker/remote_batches.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <vector>

namespace thinpipe {
namespace {

// Longer than a restart of the coordinator takes. No answer by then is trouble.
constexpr auto kPatience = std::chrono::seconds(10);

}  // namespace

RemoteBatches::RemoteBatches(CoordinatorAccess coordinator, std::string run, const TrainConfig& train, int64_t vocab)
    : run_(std::move(run)), train_(train), vocab_(vocab), line_(std::move(coordinator)) {}

Result<TokenBatch> RemoteBatches::ask(const control::WindowsRequest& request, int64_t sequences) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  control::Windows reply;
  const auto stub = line_.stub();
  const auto status = stub->GetWindows(&context, request, &reply);
  if (!status.ok()) return Error{fmt::format("no token windows from the coordinator: {}", status.error_message())};
  const auto wanted = sequences * (train_.seq_len + 1);
  if (reply.ids_size() != wanted) {
    return Error{fmt::format("the coordinator sent {} token ids instead of {}", reply.ids_size(), wanted)};
  }
  for (const uint32_t id : reply.ids()) {
    if (id >= vocab_) return Error{fmt::format("the coordinator sent token id {}; the vocabulary has {}", id, vocab_)};
  }
  return token_batch(std::vector<int32_t>(reply.ids().begin(), reply.ids().end()), train_.seq_len);
}

Result<TokenBatch> RemoteBatches::training(int64_t step, int64_t microbatch) {
  const auto request_of = [&](std::pair<int64_t, int64_t> number) {
    control::WindowsRequest request;
    request.set_run(run_);
    request.set_step(number.first);
    request.set_microbatch(number.second);
    return request;
  };
  const std::pair number{step, microbatch};
  auto batch = ahead_.valid() && ahead_number_ == number ? ahead_.get() : ask(request_of(number), train_.microbatch);
  if (ahead_.valid()) ahead_.wait();
  const bool last = microbatch + 1 == train_.microbatches;
  ahead_number_ = last ? std::pair{step + 1, int64_t{0}} : std::pair{step, microbatch + 1};
  if (batch.ok() && ahead_number_.first < train_.steps) {
    ahead_ = std::async(std::launch::async,
                        [this, request = request_of(ahead_number_)] { return ask(request, train_.microbatch); });
  }
  return batch;
}

Result<TokenBatch> RemoteBatches::validation(int64_t first_window, int64_t count) {
  control::WindowsRequest request;
  request.set_run(run_);
  request.set_validation(true);
  request.set_first(first_window);
  request.set_count(count);
  return ask(request, count);
}

}  // namespace thinpipe
