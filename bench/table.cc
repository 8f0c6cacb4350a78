// bench table: the speed-up by the anchor table (METHOD 1b), as ratios measured alternately within one run.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "model/fill.h"
#include "model/stage.h"
#include "model/threads.h"
#include "pipeline/batches.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

// A stage from the middle of a model, with a stream and a gradient to run it on.
class Subject {
 public:
  Subject(const ModelConfig& config, int64_t vocab, int64_t blocks, const TokenBatch& batch)
      : stage_(config, vocab, {1, 1 + blocks, config.blocks}, Precision::kFloat32, 1, at::Device("cpu")),
        batch_(batch) {
    const std::vector<int64_t> shape{batch.sequences() * batch.length(), config.boundary_width()};
    stream_ = fill_random(CounterRng(1, "stream"), shape, 1.0, stage_.options());
    grad_ = fill_random(CounterRng(1, "grad"), shape, 1e-3, stage_.options());
  }

  // Seconds of one forward and backward pass.
  double run() {
    const SystemClock clock;
    const auto start = clock.now();
    stage_.backward(stage_.forward(batch_, stream_, 1.0), grad_.clone());
    return seconds(clock.now() - start);
  }

 private:
  Stage stage_;
  TokenBatch batch_;
  at::Tensor stream_, grad_;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void bench_table(const BenchTableOptions& options, bool json) {
  use_threads(options.threads);
  const auto corpus = prepare_corpus(DataConfig{}, data_dir());
  TrainConfig train;
  train.microbatch = options.sequences;
  train.seq_len = options.length;
  const auto batch = CorpusBatches(corpus, train).training(0, 0).take();

  ModelConfig config;
  config.mode = ModelMode::kDense;
  config.d = options.d;
  config.heads = std::max<int64_t>(1, options.d / 64);
  config.kv_heads = config.heads;
  config.mlp_width = default_mlp_width(options.d);
  config.blocks = options.blocks + 2;  // neither the first nor the last stage
  Subject dense(config, corpus.vocab, options.blocks, batch);
  config.mode = ModelMode::kSubspace;
  config.subspace.rank = options.rank;
  config.subspace.full_rank_tail = 1;
  config.subspace.input = InputForm::kTable;
  Subject table(config, corpus.vocab, options.blocks, batch);
  config.subspace.input = InputForm::kDirect;
  Subject direct(config, corpus.vocab, options.blocks, batch);

  const auto tokens = static_cast<double>(options.sequences * options.length);
  const int64_t distinct = index_tokens(batch.inputs()).unique.size(0);
  fmt::print(
      "stage of {} blocks, d = {}, k = {}, microbatch of {} tokens of the default corpus ({} distinct), {} thread(s)\n",
      options.blocks, options.d, options.rank, tokens, distinct, options.threads);
  for (auto* subject : {&dense, &table, &direct}) subject->run();  // warm up
  std::vector<double> dense_s, table_s, direct_s, over_direct, over_dense;
  for (int64_t round = 0; round < options.rounds; ++round) {
    dense_s.push_back(dense.run());
    table_s.push_back(table.run());
    direct_s.push_back(direct.run());
    over_direct.push_back(direct_s.back() / table_s.back());
    over_dense.push_back(dense_s.back() / table_s.back());
  }
  fmt::print("  dense                     {:>8.0f} tokens/s\n", tokens / median_of(dense_s));
  fmt::print("  subspace, direct form     {:>8.0f} tokens/s\n", tokens / median_of(direct_s));
  fmt::print("  subspace, anchor table    {:>8.0f} tokens/s\n", tokens / median_of(table_s));
  fmt::print("table over direct {:.2f}x, subspace over dense {:.2f}x (medians of {} rounds)\n", median_of(over_direct),
             median_of(over_dense), options.rounds);
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"table_over_direct", median_of(over_direct)},
                                              {"subspace_over_dense", median_of(over_dense)},
                                              {"tokens", tokens},
                                              {"distinct_tokens", distinct}}
                           .dump());
  }
}

}  // namespace thinpipe
