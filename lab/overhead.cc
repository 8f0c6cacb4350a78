// lab overhead: what the method adds to a stage in time and memory, against the sequence length, the width and the
// rank. "Adds" means: against a dense stage of the same blocks, and as a share of the stage's own time.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "config/config_file.h"
#include "config/model_spec.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "lab/step_time.h"
#include "model/fill.h"
#include "model/stage.h"
#include "model/threads.h"
#include "pipeline/batches.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct OverheadCase {
  int64_t length, d, rank;
};

RunConfig overhead_config(const OverheadCase& one, const char* mode) {
  return parse_config(
      "", "the experiment",
      std::vector<std::string>{fmt::format("model.mode={}", mode), fmt::format("model.d={}", one.d), "model.blocks=4",
                               "pipeline.stages=4", "data.vocab=2048", fmt::format("train.seq_len={}", one.length),
                               "train.microbatch=1", fmt::format("subspace.rank={}", one.rank)});
}

TokenBatch overhead_batch(const PreparedCorpus& corpus, const RunConfig& config) {
  return CorpusBatches(corpus, config.train).training(0, 0).take();
}

// Milliseconds of a middle stage's forward and backward pass for one microbatch, the least of a few; of lifting and
// lowering the stream alone; and the bytes of the stage's constant tensors that a dense one lacks.
Json measure_overhead(const OverheadCase& one, const PreparedCorpus& corpus) {
  const OneThread alone;
  const auto subspace = overhead_config(one, "subspace"), dense = overhead_config(one, "dense");
  const auto least_ms = [&](const RunConfig& config) {
    const auto times = time_stage(config, corpus.vocab, 1, overhead_batch(corpus, config));
    return 1000 * (times.forward_s + times.backward_s);
  };
  auto model = subspace.model;
  model.table.clear();
  Stage stage(model, corpus.vocab, blocks_of_stage(subspace, 1), subspace.train.precision, 1, at::Device("cpu"));
  const auto& u = stage.subspace()->u();
  const auto c = fill_random(CounterRng(1, "c"), {one.length, one.rank}, 1.0, stage.options());
  const auto g = fill_random(CounterRng(1, "g"), {one.length, one.d}, 1.0, stage.options());
  double projecting_ms = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = thread_cpu_s();
    const auto lifted = c.mm(u.t());
    const auto lowered = g.mm(u);
    projecting_ms = std::min(projecting_ms, 1000 * (thread_cpu_s() - start));
  }
  return {{"subspace_ms", least_ms(subspace)},
          {"dense_ms", least_ms(dense)},
          {"projecting_ms", projecting_ms},
          {"constant_bytes", u.numel() * 4 + corpus.vocab * one.d * 4}};
}

}  // namespace

void lab_overhead(const ExperimentOptions& options) {
  std::vector<OverheadCase> cases;
  if (options.quick) {
    cases = {{128, 64, 8}, {256, 64, 8}};
  } else {
    for (const int64_t length : {128, 256, 512, 1024, 2048, 4096, 8192}) cases.push_back({length, 256, 16});
    for (const int64_t d : {128, 512, 1024}) cases.push_back({1024, d, d / 16});
    for (const int64_t rank : {4, 64, 256}) cases.push_back({1024, 256, rank});
  }
  Experiment experiment("overhead", "What does the method add in time and memory?", options,
                        static_cast<int64_t>(cases.size()));
  const auto corpus = prepare_corpus(overhead_config(cases[0], "subspace").data, data_dir());
  fmt::print(
      "a middle stage of one block, one sequence of T tokens, one thread\n{:>6} {:>6} {:>6} {:>12} {:>10} {:>8} "
      "{:>12} {:>8} {:>14}\n",
      "T", "d", "k", "subspace ms", "dense ms", "ratio", "projecting", "share", "constants MB");
  Plot plot{"time of a stage per token",
            "tokens in a sequence",
            "microseconds",
            {{"subspace", {}}, {"dense", {}}},
            true,
            true};
  double most_share = 0, most_ratio = 0;
  for (const auto& one : cases) {
    const auto found = experiment.part(fmt::format("T = {}, d = {}, k = {}", one.length, one.d, one.rank),
                                       fmt::format("{} {} {} {}", one.length, one.d, one.rank, corpus.id),
                                       [&] { return measure_overhead(one, corpus); });
    const double subspace = found.at("subspace_ms"), dense = found.at("dense_ms"),
                 projecting = found.at("projecting_ms");
    const double share = projecting / subspace;
    most_share = std::max(most_share, share);
    most_ratio = std::max(most_ratio, subspace / dense);
    fmt::print("{:>6} {:>6} {:>6} {:>12.2f} {:>10.2f} {:>8.2f} {:>12.3f} {:>7.1f}% {:>14.2f}\n", one.length, one.d,
               one.rank, subspace, dense, subspace / dense, projecting, 100 * share,
               found.at("constant_bytes").get<double>() / 1e6);
    auto& kept = experiment.result()["cases"];
    kept.push_back({{"length", one.length}, {"d", one.d}, {"rank", one.rank}});
    kept.back().update(found);
    if (one.d == cases[0].d && one.rank == cases[0].rank) {
      plot.series[0].points.emplace_back(one.length, 1000 * subspace / static_cast<double>(one.length));
      plot.series[1].points.emplace_back(one.length, 1000 * dense / static_cast<double>(one.length));
    }
  }
  experiment.finish(
      fmt::format(
          "A projection to the subspace and back takes at most {:.1f} % of a stage's time; a subspace stage takes "
          "at most {:.2f} times as long as a dense one; the memory it adds does not depend on T.",
          100 * most_share, most_ratio),
      {plot});
}

}  // namespace thinpipe
