// thinpipe train [config]: from a config to a trained model on this machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/units.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "pipeline/batches.h"
#include "pipeline/in_process.h"
#include "pipeline/progress.h"
#include "pipeline/run_folder.h"
#include "pipeline/stage_worker.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string steps;
  std::string device;
  std::string run_dir;
  bool in_process = false;
};

RunConfig config_from(const TrainOptions& options) {
  auto overrides = options.overrides;
  if (!options.steps.empty()) overrides.push_back("train.steps=" + options.steps);
  if (!options.device.empty()) overrides.push_back("train.device=" + options.device);
  const auto config =
      options.config.empty() ? parse_config("", "the command line", overrides) : load_config(options.config, overrides);
  check_pack(config);
  device_of(config.train);  // refuses one this build does not have before anything is prepared for it
  return config;
}

// One line that is rewritten while the corpus is read and tokenised; nothing when all of it was there already.
class PrepareLine {
 public:
  explicit PrepareLine(bool live) : live_(live) {}
  ~PrepareLine() {
    if (up_) fmt::print("\r\033[K");
  }
  void operator()(std::string_view phase, uint64_t done, uint64_t total) {
    if (!live_) {
      if (phase != phase_) fmt::print("data: {}\n", phase);
    } else {
      fmt::print("\r\033[Kdata: {} {}{}", phase, format_size(done), total > 0 ? " of " + format_size(total) : "");
      up_ = true;
    }
    phase_ = phase;
    std::fflush(stdout);
  }

 private:
  bool live_;
  bool up_ = false;
  std::string phase_;
};

std::string describe(const RunConfig& config) {
  const auto& model = config.model;
  const auto stages = fmt::format("d = {}, {} blocks in {} stage(s)", model.d, model.blocks, config.pipeline.stages);
  const auto pack = to_string(config.boundary.pack);
  if (!model.is_subspace()) return fmt::format("dense, {}, x sent as {}", stages, pack);
  return fmt::format("subspace, {}, {} coordinates per token sent as {}", stages, model.subspace.rank, pack);
}

void train(const TrainOptions& options) {
  const auto config = config_from(options);
  const bool live = ::isatty(STDOUT_FILENO) == 1;
  PreparedCorpus corpus;
  {
    PrepareLine line(live);
    corpus = prepare_corpus(config.data, data_dir(), std::ref(line));
  }
  const BatchSource batches(corpus, config.train);
  auto folder = RunFolder::create(options.run_dir, config).take();

  const auto& manifest = corpus.manifest;
  fmt::print("corpus: {} ({} training tokens, {} validation; vocabulary {}; unigram entropy {:.4f} nats/token)\n",
             config.data.corpus, manifest.train.tokens, manifest.val.tokens, corpus.vocab,
             manifest.train_unigram_entropy);
  fmt::print("model: {}\n", describe(config));
  if (!options.in_process)
    fmt::print("note: stages are threads of this process; processes over links are not built yet\n");
  fmt::print("run: {}\n", folder.path().string());
  const SystemClock clock;
  const auto start = clock.now();
  TrainingResult result;
  {
    Progress progress({config.train.steps, config.pipeline.stages - 1, config.model.d}, stdout, live, clock);
    result = train_in_process(config, corpus.vocab, batches, folder, progress, clock);
  }
  fmt::print("trained {} parameters for {} steps in {}\n", result.parameters, result.steps,
             format_duration(std::chrono::duration_cast<std::chrono::seconds>(clock.now() - start)));
  fmt::print("validation loss {:.4f} nats/token; unigram entropy {:.4f}\n", result.validation_loss,
             manifest.train_unigram_entropy);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  auto* command = app.add_subcommand("train", "train a model on this machine");
  command->add_option("config", options->config, "TOML file (docs/config.md); none: the default small model");
  command->add_option("--set", options->overrides, "override a key: --set model.d=512")->expected(1)->take_all();
  command->add_option("--steps", options->steps, "same as --set train.steps=N");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N");
  command->add_option("--run-dir", options->run_dir,
                      "where the run's files go; none: a new folder in the data directory");
  command->add_flag("--in-process", options->in_process, "all stages in this process");
  command->footer(
      "Examples:\n  thinpipe train --in-process\n"
      "  thinpipe train my.toml --in-process --set optim.lr=0.01 --steps 100");
  command->callback([options] { train(*options); });
}

}  // namespace thinpipe
