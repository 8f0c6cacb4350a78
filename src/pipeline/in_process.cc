#include "pipeline/in_process.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "model/threads.h"
#include "net/memory_link.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {
namespace {

// There is one run with one epoch: nothing is ever aborted here.
constexpr uint64_t kEpoch = 1;

}  // namespace

// Lives as long as the pipeline and runs a stage's work. A new thread per step would make a new OpenMP pool each time.
class StageThread {
 public:
  StageThread() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  // One piece of work at a time. It must not throw.
  void start(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !work_; });
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return work_ != nullptr; })) {
      lock.unlock();
      work_();
      lock.lock();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> work_;
  std::jthread thread_;
};

InProcessPipeline::InProcessPipeline(const RunConfig& config, int64_t vocab, Batches& batches, const at::Tensor& table,
                                     bool shaped)
    : config_(config) {
  const auto shapes =
      shaped ? link_settings(config) : std::vector<CutSettings>(static_cast<size_t>(config.pipeline.stages));
  const auto count = static_cast<size_t>(config.pipeline.stages);
  for (size_t i = 0; i + 1 < count; ++i) {
    auto [earlier, later] = make_memory_link();
    const auto rules = packet_rules(config, vocab, static_cast<int64_t>(i));
    down_.push_back(std::make_unique<PacketLink>(std::move(earlier), rules, kEpoch, shapes[i].forward));
    up_.push_back(std::make_unique<PacketLink>(std::move(later), rules, kEpoch, shapes[i].backward));
  }
  for (size_t i = 0; i < count; ++i) {
    workers_.push_back(std::make_unique<StageWorker>(config_, vocab, stage_place(config, i), &batches, table));
    workers_[i]->connect(i > 0 ? up_[i - 1].get() : nullptr, i + 1 < count ? down_[i].get() : nullptr);
    if (i + 1 < count) threads_.push_back(std::make_unique<StageThread>());
  }
}

InProcessPipeline::~InProcessPipeline() = default;

// Returns work(worker) of every stage. The last stage runs on this thread, the others on their own. The first stage to
// fail decides the reason that all get.
template <class Work>
auto InProcessPipeline::on_all_stages(const Work& work) {
  using Outcome = std::invoke_result_t<Work, StageWorker&>;
  std::vector<std::optional<Outcome>> outcomes(workers_.size());
  std::mutex mutex;
  std::string failure;
  std::exception_ptr fault;
  const auto fail = [&](size_t stage, const std::string& reason, std::exception_ptr exception) {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
    failure = fmt::format("stage {}: {}", stage, reason);
    fault = std::move(exception);
    end_all(failure);
  };
  const auto run = [&](size_t stage) {
    try {
      use_threads(threads_for(config_));
      outcomes[stage] = work(*workers_[stage]);
      if (!outcomes[stage]->ok()) fail(stage, outcomes[stage]->error().message, nullptr);
    } catch (const std::exception& error) {
      fail(stage, error.what(), std::current_exception());
    }
  };
  for (size_t stage = 0; stage < threads_.size(); ++stage) threads_[stage]->start([&run, stage] { run(stage); });
  run(workers_.size() - 1);
  for (const auto& thread : threads_) thread->wait();
  if (fault) std::rethrow_exception(fault);
  if (!failure.empty()) throw UserError(failure);
  return outcomes;
}

// Ends every wait for a message or for free space.
void InProcessPipeline::end_all(const std::string& reason) {
  for (auto* links : {&down_, &up_}) {
    for (auto& link : *links) {
      link->interrupt(kEpoch + 1, reason);
      link->close(reason);
    }
  }
}

StepResult InProcessPipeline::step(int64_t number) {
  const auto reports = on_all_stages([&](StageWorker& worker) { return worker.run_step(kEpoch, number); });
  StepResult result;
  for (const auto& report : reports) result.stages.push_back(report->value());
  static_cast<CommitRow&>(result) = decide(tokens_per_step(config_.train), config_.optim.clip, result.stages).take();
  on_all_stages([commit = commit_message(result)](StageWorker& worker) {
    worker.commit(commit);
    return Status();
  });
  return result;
}

double InProcessPipeline::validate(int64_t windows, const std::function<void(int64_t)>& on_done) {
  const auto sums = on_all_stages([&](StageWorker& worker) {
    const bool is_last = &worker == workers_.back().get();  // it runs on the caller's thread
    return worker.evaluate(kEpoch, worker.applied(), windows, is_last ? on_done : nullptr);
  });
  return sums.back()->value() / static_cast<double>(windows * config_.train.seq_len);
}

std::vector<std::pair<std::string, at::Tensor>> InProcessPipeline::weights() const {
  // In the model's order for any cuts, like a file made from a checkpoint.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& spec : model_spec(config_.model, 1, whole_model(config_.model))) {
    for (const auto& worker : workers_) {
      if (const auto* parameter = worker->stage().parameters().find(spec.name)) {
        tensors.emplace_back(parameter->name, parameter->value);
      }
    }
  }
  if (const auto* side = workers_.front()->stage().subspace()) tensors.emplace_back("basis", side->basis().u);
  return tensors;
}

int64_t InProcessPipeline::parameter_count() const {
  int64_t count = 0;
  for (const auto& worker : workers_) count += worker->stage().parameters().element_count();
  return count;
}

TrainingResult train_in_process(const RunConfig& config, int64_t vocab, CorpusBatches& batches, RunFolder& folder,
                                Progress& progress, const Clock& clock) {
  InProcessPipeline pipeline(config, vocab, batches, table_of_run(folder.path(), config, vocab).take());
  const auto& train = config.train;
  const int64_t eval_windows = std::min(train.eval_sequences, batches.validation_windows());
  TrainingResult result{.parameters = pipeline.parameter_count()};
  const auto start = clock.now();
  int64_t skipped_in_a_row = 0;
  const auto validate = [&](int64_t after, int64_t windows) {
    return pipeline.validate(windows, [&](int64_t done) { progress.evaluation(after, done, windows); });
  };
  for (int64_t number = 0; number < train.steps; ++number) {
    const auto step = pipeline.step(number);
    auto line = metrics_line(config, step, step.stages);
    if (evaluates_after(train, number + 1)) {
      const double loss = validate(number + 1, eval_windows);
      line["validation_loss"] = loss;
      progress.note(fmt::format("step {}: validation loss {:.4f} on {} sequences", number + 1, loss, eval_windows));
    }
    folder.metrics().append(line).take();
    folder.timing().append(timing_line(number, seconds(clock.now() - start), step.stages)).take();
    progress.step({number + 1, step.loss, tokens_per_step(train), bytes_of(step.stages)});
    if (!step.apply) progress.note(fmt::format("step {}: {}", number + 1, step.why));
    skipped_in_a_row = step.apply ? 0 : skipped_in_a_row + 1;
    if (skipped_in_a_row == config.cluster.max_skipped) {
      throw UserError(
          fmt::format("the loss or its gradient was not finite for {} steps in a row up to step {}; lower optim.lr "
                      "({}) or lengthen optim.warmup ({})",
                      config.cluster.max_skipped, number + 1, config.optim.lr, config.optim.warmup));
    }
    result.steps = number + 1;
    result.final_loss = step.loss;
  }
  result.validation_loss = validate(result.steps, batches.validation_windows());
  folder.metrics().append({{"step", result.steps}, {"final_validation_loss", result.validation_loss}}).take();
  save_tensors(folder.path() / "model.safetensors", pipeline.weights(), {{"format", "thinpipe"}}).take();
  return result;
}

}  // namespace thinpipe
