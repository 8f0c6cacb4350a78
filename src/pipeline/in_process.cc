#include "pipeline/in_process.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "net/memory_link.h"
#include "pipeline/schedule.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

Schedule schedule_for(const RunConfig& config) {
  const int64_t stages = config.pipeline.stages, microbatches = config.train.microbatches;
  if (config.pipeline.schedule == ScheduleKind::kGpipe) return make_gpipe(stages, microbatches);
  // In-memory links take no time, so the classic warm-up covers them; only the ratio of the times matters here.
  return make_1f1b(stages, microbatches, covering_warmup(stages, microbatches, {1.0, 2.0, 0.0, 0.0}, 0));
}

int threads_for(const RunConfig& config) {
  if (config.train.threads > 0) return static_cast<int>(config.train.threads);
  return config.pipeline.stages == 1 ? static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) : 1;
}

}  // namespace

struct InProcessParts {
  RunConfig config;
  Schedule schedule;
  StepBarrier barrier;
  std::vector<std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>> links;  // one per cut
  std::vector<std::unique_ptr<StageWorker>> workers;
  std::vector<std::thread> threads;
  std::mutex fault_mutex;
  std::exception_ptr fault;  // the first exception of a stage's thread

  InProcessParts(const RunConfig& run, int64_t vocab, const BatchSource& batches)
      : config(run), schedule(schedule_for(run)), barrier(static_cast<size_t>(run.pipeline.stages)) {
    const auto cuts = blocks_per_stage(run);
    const size_t count = cuts.size();
    for (size_t i = 0; i + 1 < count; ++i) {
      // One more upstream than the schedule needs: the next basis may follow the last gradient.
      links.push_back(
          make_memory_link(schedule.stages[i].forward_capacity, schedule.stages[i + 1].backward_capacity + 1));
    }
    int64_t first = 0;
    for (size_t i = 0; i < count; ++i) {
      const StagePlace place{i,
                             count,
                             {first, first + cuts[i], run.model.blocks},
                             i > 0 ? links[i - 1].second.get() : nullptr,
                             i + 1 < count ? links[i].first.get() : nullptr};
      workers.push_back(std::make_unique<StageWorker>(config, vocab, place, schedule, batches));
      first += cuts[i];
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
      const auto status = worker.run(barrier);
      if (status.ok()) return;
      reason = status.error().message;
    } catch (const std::exception& error) {
      reason = error.what();
      const std::lock_guard lock(fault_mutex);
      if (!fault) fault = std::current_exception();
    }
    reason = fmt::format("stage {}: {}", number, reason);
    barrier.fail(reason);
    for (auto& [up, down] : links) up->close(reason);
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

InProcessPipeline::InProcessPipeline(const RunConfig& config, int64_t vocab, const BatchSource& batches)
    : parts_(std::make_unique<InProcessParts>(config, vocab, batches)) {}

InProcessPipeline::~InProcessPipeline() {
  if (!parts_) return;
  parts_->barrier.fail("the run has ended");
  for (auto& [up, down] : parts_->links) up->close("the run has ended");
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
