#include "pipeline/in_process.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "base/result.h"
#include "net/memory_link.h"
#include "pipeline/schedule.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

// One run, one epoch: nothing is ever aborted in here.
constexpr uint64_t kEpoch = 1;

}  // namespace

struct InProcessParts {
  RunConfig config;
  StepBarrier barrier;
  std::vector<std::unique_ptr<PacketLink>> down, up;  // per cut: the earlier stage's end, the later one's
  std::vector<std::unique_ptr<StageWorker>> workers;
  std::vector<std::thread> threads;
  std::mutex fault_mutex;
  std::exception_ptr fault;  // the first exception of a stage's thread

  InProcessParts(const RunConfig& run, int64_t vocab, Batches& batches, const at::Tensor& table)
      : config(run), barrier(static_cast<size_t>(run.pipeline.stages)) {
    const auto schedule = schedule_for(run, {});
    const size_t count = schedule.stages.size();
    for (size_t i = 0; i + 1 < count; ++i) {
      // One more upstream than the schedule needs: the next basis may follow the last gradient.
      auto [earlier, later] =
          make_memory_link(schedule.stages[i].forward_capacity, schedule.stages[i + 1].backward_capacity + 1);
      const auto rules = packet_rules(run, vocab, static_cast<int64_t>(i), run_tag("in process"));
      down.push_back(std::make_unique<PacketLink>(std::move(earlier), rules, kEpoch));
      up.push_back(std::make_unique<PacketLink>(std::move(later), rules, kEpoch));
    }
    for (size_t i = 0; i < count; ++i) {
      workers.push_back(std::make_unique<StageWorker>(config, vocab, stage_place(run, i), batches, table));
      workers[i]->connect(i > 0 ? up[i - 1].get() : nullptr, i + 1 < count ? down[i].get() : nullptr);
    }
    for (auto& worker : workers) {
      threads.emplace_back([this, &worker, number = threads.size()] { serve(*worker, number); });
    }
  }

  // A stage's thread. Whatever ends it early ends the others too, with its reason.
  void serve(StageWorker& worker, size_t number) {
    at::set_num_threads(threads_for(config));
    std::string reason;
    try {
      const auto status = run_commands(worker, number);
      if (status.ok()) return;
      reason = status.error().message;
    } catch (const std::exception& error) {
      reason = error.what();
      const std::lock_guard lock(fault_mutex);
      if (!fault) fault = std::current_exception();
    }
    reason = fmt::format("stage {}: {}", number, reason);
    end_all(reason);
  }

  // Serves commands until Stop, or until a link or a peer fails.
  Status run_commands(StageWorker& worker, size_t number) {
    while (true) {
      auto command = barrier.next(number);
      if (!command) return command.error();
      if (std::holds_alternative<Stop>(command.value())) return {};
      if (const auto* commit = std::get_if<CommitStep>(&command.value())) {
        worker.commit(*commit);
        continue;
      }
      const auto* step = std::get_if<RunStep>(&command.value());
      auto report = step != nullptr
                        ? worker.run_step(kEpoch, step->step)
                        : worker.evaluate(kEpoch, worker.applied(), std::get<Evaluate>(command.value()).windows);
      if (!report) return report.error();
      barrier.report(number, std::move(report.value()));
    }
  }

  void end_all(const std::string& reason) {
    barrier.fail(reason);
    for (auto& link : down) link->interrupt(kEpoch + 1, reason);
    for (auto& link : up) link->interrupt(kEpoch + 1, reason);
  }

  // One report of every stage. A stage's exception comes out here as what it was, a peer's or link's error as
  // UserError.
  std::vector<StageReport> gather() {
    auto reports = barrier.gather();
    if (!reports) {
      const std::lock_guard lock(fault_mutex);
      if (fault) std::rethrow_exception(fault);
    }
    return std::move(reports).take();
  }

  void stop() {
    barrier.give(Stop{});
    for (auto& thread : threads) {
      if (thread.joinable()) thread.join();
    }
  }
};

InProcessPipeline::InProcessPipeline(const RunConfig& config, int64_t vocab, Batches& batches, const at::Tensor& table)
    : parts_(std::make_unique<InProcessParts>(config, vocab, batches, table)) {}

InProcessPipeline::~InProcessPipeline() {
  if (!parts_) return;
  parts_->end_all("the run has ended");
  parts_->stop();
}

StepResult InProcessPipeline::step(int64_t number) {
  const auto& train = parts_->config.train;
  parts_->barrier.give(RunStep{number});
  StepResult result{number, 0, 0, false, parts_->gather()};
  double squared_norm = 0;
  for (const auto& report : result.stages) {  // in stage order: the same sum whoever was first
    result.loss += report.loss_sum;
    squared_norm += report.squared_norm;
    if (report.basis_hash != result.stages.front().basis_hash) throw UserError("the stages disagree on the next basis");
  }
  result.loss /= static_cast<double>(train.microbatches * train.microbatch * train.seq_len);
  result.norm = std::sqrt(squared_norm);
  result.applied = std::isfinite(squared_norm) && std::isfinite(result.loss);
  parts_->barrier.give(CommitStep{number, result.applied, clip_factor(squared_norm, parts_->config.optim.clip)});
  return result;
}

double InProcessPipeline::validate(int64_t windows) {
  parts_->barrier.give(Evaluate{windows});
  const auto reports = parts_->gather();
  return reports.back().loss_sum / static_cast<double>(windows * parts_->config.train.seq_len);
}

StageWorker& InProcessPipeline::worker(size_t stage) { return *parts_->workers[stage]; }

std::vector<std::pair<std::string, at::Tensor>> InProcessPipeline::finish() {
  parts_->stop();
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& worker : parts_->workers) {
    for (const auto& parameter : worker->stage().parameters().all())
      tensors.emplace_back(parameter.name, parameter.value);
  }
  if (auto* side = parts_->workers.front()->stage().subspace()) tensors.emplace_back("basis", side->basis().u);
  return tensors;
}

int64_t InProcessPipeline::parameter_count() const {
  int64_t count = 0;
  for (auto& worker : parts_->workers) count += worker->stage().parameters().element_count();
  return count;
}

}  // namespace thinpipe
