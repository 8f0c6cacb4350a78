// How long a step takes: compute times are measured, links computed.
#include "lab/step_time.h"

#include <ATen/ATen.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "boundary/boundary.h"
#include "boundary/sizes.h"
#include "model/fill.h"
#include "model/threads.h"
#include "net/packet.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {

double thread_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

StageTimes time_stage(const RunConfig& config, int64_t vocab, int64_t number, const TokenBatch& batch) {
  constexpr int kTries = 5;
  const auto range = blocks_of_stage(config, number);
  auto model = config.model;
  model.table.clear();  // any table takes the same time
  Stage stage(model, vocab, range, config.train.precision, config.train.seed, at::Device("cpu"));
  Optimizer optimizer(config.optim, config.train.steps, stage.parameters(), config.train.seed);
  const std::vector<int64_t> shape{batch.sequences() * batch.length(), config.model.boundary_width()};
  const auto stream = fill_random(CounterRng(1, "stream"), shape, 1.0, stage.options());
  const auto grad = fill_random(CounterRng(1, "grad"), shape, 1e-5, stage.options());
  // What arrives, and what is sent: packing takes time too.
  const auto before = make_boundary({config, vocab, 0, stage.options(), stage.subspace(), &stage.parameters()}),
             after = make_boundary({config, vocab, 1, stage.options(), stage.subspace(), &stage.parameters()});
  const auto arrived = after->encode({batch, stream}, {0, 0}), arrived_grad = before->encode_gradient(grad, {0, 0});
  StageTimes least{1e9, 1e9, 1e9};
  for (int i = 0; i < kTries; ++i) {
    stage.parameters().zero_grad();
    const double start = thread_cpu_s();
    const MessageNumber message{static_cast<uint64_t>(i), 0};
    const auto input = range.has_embedding() ? at::Tensor() : before->decode(arrived, batch.sequences()).take().stream;
    auto pass = stage.forward(batch, input, 1e-5);
    if (!range.has_head()) after->encode({batch, pass.output}, message);
    const double middle = thread_cpu_s();
    auto from_next = range.has_head() ? at::Tensor() : after->decode_gradient(arrived_grad, batch.sequences()).take();
    const auto to_previous = stage.backward(std::move(pass), std::move(from_next));
    if (!range.has_embedding()) before->encode_gradient(to_previous, message);
    const double end = thread_cpu_s();
    optimizer.squared_norm();
    optimizer.apply(i, 1.0);
    least.update_s = std::min(least.update_s, thread_cpu_s() - end);
    least.forward_s = std::min(least.forward_s, middle - start);
    least.backward_s = std::min(least.backward_s, end - middle);
  }
  return least;
}

StepTime::StepTime(const RunConfig& config, const PreparedCorpus& corpus) : config_(config), vocab_(corpus.vocab) {
  const OneThread alone;
  const auto batch = CorpusBatches(corpus, config.train).training(0, 0).take();
  // All stages between the first and the last do the same work.
  const int64_t last = config.pipeline.stages - 1;
  const auto first = time_stage(config, vocab_, 0, batch), end = time_stage(config, vocab_, last, batch);
  const auto middle = last > 1 ? time_stage(config, vocab_, 1, batch) : first;
  for (int64_t i = 0; i <= last; ++i) {
    const auto& times = i == 0 ? first : i == last ? end : middle;
    times_.forward_s.push_back(times.forward_s);
    times_.backward_s.push_back(times.backward_s);
    update_s_ = std::max(update_s_, times.update_s);
  }
}

double StepTime::over(double rate, double delay_s) const {
  const auto sizes = boundary_sizes(config_, vocab_);
  const auto link = [&](size_t bytes) {
    const double bits = 8.0 * static_cast<double>(bytes + kFrameOverheadBytes);
    return LinkTimes{rate > 0 ? bits / rate : 0, delay_s};
  };
  const auto stages = config_.pipeline.stages;
  auto times = times_;
  times.forward.assign(static_cast<size_t>(stages - 1), link(sizes.forward));
  times.backward.assign(static_cast<size_t>(stages - 1), link(sizes.backward));
  const auto warmup = this->warmup(rate, delay_s);
  std::vector<std::vector<Pass>> order;
  for (int64_t i = 0; i < stages; ++i) {
    order.push_back(passes(ScheduleKind::k1f1b, static_cast<size_t>(i), stages, config_.train.microbatches, warmup));
  }
  return schedule_bound_s(order, times) + update_s_;
}

std::vector<int64_t> StepTime::warmup(double rate, double delay_s) const {
  const auto sizes = boundary_sizes(config_, vocab_);
  const double bits = 4.0 * static_cast<double>(sizes.forward + sizes.backward + 2 * kFrameOverheadBytes);  // the mean
  return covering_warmup(config_.pipeline.stages, config_.train.microbatches,
                         times_.forward_s[1] + times_.backward_s[1], (rate > 0 ? bits / rate : 0) + delay_s);
}

}  // namespace thinpipe
