// The coordinator's loop over an in-process pipeline: steps, metrics, evaluations, the final weights.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "pipeline/in_process.h"
#include "pipeline/metrics.h"
#include "pipeline/table_file.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {
namespace {

// Bytes of one step over all cuts and both directions.
uint64_t bytes_of(const StepResult& step) {
  uint64_t total = 0;
  for (const auto& stage : step.stages) total += stage.forward_bytes + stage.backward_bytes;
  return total;
}

}  // namespace

TrainingResult train_in_process(const RunConfig& config, int64_t vocab, BatchSource& batches, RunFolder& folder,
                                Progress& progress, const Clock& clock) {
  InProcessPipeline pipeline(config, vocab, batches, table_of_run(folder.path(), config, vocab).take());
  const auto& train = config.train;
  const int64_t tokens_per_step = train.microbatches * train.microbatch * train.seq_len;
  const int64_t eval_windows = std::min(train.eval_sequences, batches.validation_windows());
  TrainingResult result{.parameters = pipeline.parameter_count()};
  const auto start = clock.now();
  int64_t skipped_in_a_row = 0;
  for (int64_t number = 0; number < train.steps; ++number) {
    const auto step = pipeline.step(number);
    auto line = metrics_line(config, {number, step.loss, step.norm, step.applied}, step.stages);
    if (train.eval_every > 0 && (number + 1) % train.eval_every == 0 && number + 1 < train.steps) {
      const double loss = pipeline.validate(eval_windows);
      line["validation_loss"] = loss;
      progress.note(fmt::format("step {}: validation loss {:.4f} on {} sequences", number + 1, loss, eval_windows));
    }
    folder.metrics().append(line).take();
    folder.timing().append(timing_line(number, seconds(clock.now() - start), step.stages)).take();
    progress.step({number + 1, step.loss, tokens_per_step, bytes_of(step)});
    skipped_in_a_row = step.applied ? 0 : skipped_in_a_row + 1;
    if (skipped_in_a_row == config.cluster.max_skipped) {
      throw UserError(
          fmt::format("the loss or its gradient was not finite for {} steps in a row up to step {}; lower optim.lr "
                      "({}) or lengthen optim.warmup ({})",
                      config.cluster.max_skipped, number + 1, config.optim.lr, config.optim.warmup));
    }
    result.steps = number + 1;
    result.final_loss = step.loss;
  }
  result.validation_loss = pipeline.validate(batches.validation_windows());
  folder.metrics().append({{"step", result.steps}, {"final_validation_loss", result.validation_loss}}).take();
  save_tensors(folder.path() / "model.safetensors", pipeline.finish(), {{"format", "thinpipe"}}).take();
  return result;
}

}  // namespace thinpipe
