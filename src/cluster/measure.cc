#include "cluster/measure.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "base/clock.h"
#include "model/stage.h"
#include "pipeline/stage_worker.h"
#include "plan/machine.h"

namespace thinpipe {
namespace {

constexpr int kRepeats = 3;

// Seconds of one microbatch's forward and backward through these blocks, the best of a few.
double time_blocks(const RunConfig& config, int64_t vocab, BlockRange range) {
  auto model = config.model;
  model.subspace.table.clear();  // any table takes the same time
  Stage stage(model, vocab, range, config.train.precision, config.train.seed, device_of(config.train));
  const int64_t sequences = config.train.microbatch, length = config.train.seq_len;
  const bool narrow = model.is_subspace() && range.first <= model.first_dense_block();
  const int64_t width = narrow ? model.subspace.rank : model.d;
  const auto stream = [&] { return at::full({sequences * length, width}, 0.01, stage.options()); };
  const TokenBatch batch{at::zeros({sequences, length + 1}, stage.options().dtype(at::kLong))};
  const SystemClock clock;
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = clock.now();
    auto pass = stage.forward(batch, range.has_embedding() ? at::Tensor() : stream(), 1.0);
    const auto grad = range.has_head() ? at::Tensor() : at::full_like(pass.output, 0.01);
    stage.backward(std::move(pass), grad);
    const double taken = seconds(clock.now() - begin);
    best = i == 0 ? taken : std::min(best, taken);
  }
  return best;
}

}  // namespace

control::Machine measure_machine(const RunConfig& config, int64_t vocab) {
  control::Machine machine;
  machine.set_memory_bytes(available_memory_bytes());
  const int threads = at::get_num_threads();
  at::set_num_threads(threads_for(config));
  const int64_t total = config.model.blocks;
  // One from the middle has neither the embedding nor the head.
  const int64_t middle = total >= 3 ? 1 : 0;
  machine.set_block_s(time_blocks(config, vocab, {middle, middle + 1, total + (total == 1 ? 1 : 0)}));
  const int64_t tail =
      config.model.is_subspace() ? std::min<int64_t>(total - 1, config.model.first_dense_block()) : total - 1;
  const double end = time_blocks(config, vocab, {tail, total, total});
  machine.set_ends_s(std::max(0.0, end - static_cast<double>(total - tail) * machine.block_s()));
  at::set_num_threads(threads);
  return machine;
}

}  // namespace thinpipe
