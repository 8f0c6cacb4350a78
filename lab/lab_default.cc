// lab default: compares the subspace model with a dense one at the default size, in the same time on the same machine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/result.h"
#include "config/config_file.h"
#include "lab/lab.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

struct Outcome {
  int64_t steps;
  int64_t parameters;
  double elapsed_s;
  double tokens_per_s;
  double bytes_per_token;  // per cut, both directions
  double validation_loss;
};

// The learning rate schedule needs the number of steps, so some steps are timed first and discarded: for a tenth of the
// time, but at least a few.
int64_t steps_within(const RunConfig& config, const PreparedCorpus& corpus, const at::Tensor& table, double limit_s) {
  constexpr int64_t kLeastTimed = 6;
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, table);
  pipeline.step(0);
  const SystemClock clock;
  const auto start = clock.now();
  double taken_s = 0;
  int64_t timed = 0;
  while (timed < kLeastTimed || taken_s < limit_s / 10) {
    pipeline.step(++timed);
    taken_s = seconds(clock.now() - start);
  }
  return std::max<int64_t>(1, std::llround(limit_s * static_cast<double>(timed) / taken_s));
}

Outcome train_for(RunConfig config, const PreparedCorpus& corpus, double limit_s) {
  const auto table = corpus_table(config, corpus).take();
  config.train.steps = steps_within(config, corpus, table, limit_s);
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, table);
  const SystemClock clock;
  const auto start = clock.now();
  uint64_t bytes = 0;
  for (int64_t step = 0; step < config.train.steps; ++step) {
    bytes += bytes_of(pipeline.step(step).stages);
  }
  const auto tokens = static_cast<double>(config.train.steps * tokens_per_step(config.train));
  const double elapsed_s = seconds(clock.now() - start);
  return {config.train.steps,
          pipeline.parameter_count(),
          elapsed_s,
          tokens / elapsed_s,
          static_cast<double>(bytes) / tokens / static_cast<double>(config.pipeline.stages - 1),
          pipeline.validate(batches.validation_windows())};
}

nlohmann::ordered_json show(const char* name, const Outcome& outcome, int64_t d) {
  const double compression = 8.0 * static_cast<double>(d) / outcome.bytes_per_token;
  fmt::print("{:<10} {:>10} {:>7} {:>8.0f} {:>10.0f} {:>12.1f} {:>8.1f}x {:>16.4f}\n", name, outcome.parameters,
             outcome.steps, outcome.elapsed_s, outcome.tokens_per_s, outcome.bytes_per_token, compression,
             outcome.validation_loss);
  std::fflush(stdout);
  return {{"parameters", outcome.parameters},
          {"steps", outcome.steps},
          {"seconds", outcome.elapsed_s},
          {"tokens_per_s", outcome.tokens_per_s},
          {"bytes_per_token", outcome.bytes_per_token},
          {"compression_vs_fp32", compression},
          {"validation_loss", outcome.validation_loss}};
}

}  // namespace

void lab_default(const LabDefaultOptions& options) {
  const double minutes = options.minutes;
  // The command line checks the range too, but NaN passes any range check there.
  if (!(minutes >= 0.05 && minutes <= 10000)) {
    throw UserError(fmt::format("--minutes {:g}: needs a number from 0.05 to 10000", minutes));
  }
  const auto with = [&](const std::vector<std::string>& more) {
    auto settings = options.settings;
    settings.insert(settings.end(), more.begin(), more.end());
    return parse_config("", "the defaults", settings);
  };
  const auto dense = with({"model.mode=dense"});
  const auto corpus = prepare_corpus(dense.data, data_dir());
  fmt::print("{} stages in one process, {:g} minutes each; links take no time, so this compares compute and learning\n",
             dense.pipeline.stages, minutes);
  fmt::print("{:<10} {:>10} {:>7} {:>8} {:>10} {:>12} {:>9} {:>16}\n", "", "parameters", "steps", "seconds", "tokens/s",
             "bytes/token", "vs fp32", "validation loss");
  nlohmann::ordered_json summary;
  const auto recipes =
      options.recipe == "both" ? std::vector<std::string>{"llama", "fast"} : std::vector{options.recipe};
  for (const auto& recipe : recipes) {
    const auto subspace = with({"model.recipe=" + recipe});
    summary[recipe] = show(recipe.c_str(), train_for(subspace, corpus, minutes * 60), subspace.model.d);
  }
  summary["dense"] = show("dense", train_for(dense, corpus, minutes * 60), dense.model.d);
  if (options.same_table) {
    const auto started = with({"model.mode=dense", "model.table=corpus"});
    summary["dense_same_table"] = show("dense, t.", train_for(started, corpus, minutes * 60), started.model.d);
    fmt::print("dense, t.: dense, and its embedding starts with the token table that the subspace model keeps\n");
  }
  const auto subspace = summary[recipes.front()];  // a copy: adding fields moves them
  summary["subspace_loss"] = subspace["validation_loss"];
  summary["dense_loss"] = summary["dense"]["validation_loss"];
  summary["compression_vs_fp32"] = subspace["compression_vs_fp32"];
  fmt::print("unigram entropy of the corpus: {:.4f} nats/token\n", corpus.manifest.train_unigram_entropy);
  summary["unigram_entropy"] = corpus.manifest.train_unigram_entropy;
  if (options.json) fmt::print("{}\n", summary.dump());
}

}  // namespace thinpipe
