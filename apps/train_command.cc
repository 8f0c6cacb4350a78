// thinpipe train [config]: from a config to a trained model on this machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/units.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "pipeline/batches.h"
#include "pipeline/in_process.h"
#include "pipeline/progress.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "run/coordinator/serve.h"
#include "run/run_changes.h"
#include "run/supervisor.h"
#include "run_folders.h"
#include "store/safetensors.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string steps;
  std::string device;
  std::string run_dir;
  std::string resume;
  bool in_process = false;
};

std::vector<std::string> overrides_in(const TrainOptions& options) {
  auto overrides = options.overrides;
  if (!options.steps.empty()) overrides.push_back("train.steps=" + options.steps);
  if (!options.device.empty()) overrides.push_back("train.device=" + options.device);
  return overrides;
}

RunConfig config_from(const TrainOptions& options) {
  const auto overrides = overrides_in(options);
  auto config =
      options.config.empty() ? parse_config("", "the command line", overrides) : load_config(options.config, overrides);
  check_boundary(config);
  device_of(config.train);  // refuses one this build does not have before anything is prepared for it
  return config;
}

std::string model_line(const RunConfig& config) {
  const auto& model = config.model;
  const auto stages = fmt::format("d = {}, {} blocks in {} stage(s)", model.d, model.blocks, config.pipeline.stages);
  const auto pack = to_string(config.boundary.pack);
  if (!model.is_subspace()) return fmt::format("dense, {}, x sent as {}", stages, pack);
  return fmt::format("subspace, {}, {} coordinates per token sent as {}", stages, model.subspace.rank, pack);
}

PreparedCorpus prepared(const RunConfig& config, bool live) {
  const SystemClock clock;
  PrepareLine line(stdout, live, clock);
  return prepare_corpus(config.data, data_dir(), std::ref(line));
}

void introduce(const RunConfig& config, const PreparedCorpus& corpus, const std::filesystem::path& folder) {
  const auto& manifest = corpus.manifest;
  fmt::print("corpus: {} ({} training tokens, {} validation; vocabulary {}; unigram entropy {:.4f} nats/token)\n",
             config.data.corpus, manifest.train.tokens, manifest.val.tokens, corpus.vocab,
             manifest.train_unigram_entropy);
  fmt::print("model: {}\n", model_line(config));
  fmt::print("run: {}\n", folder.string());
  std::fflush(stdout);
}

void conclude(const RunConfig& config, const PreparedCorpus& corpus, const std::filesystem::path& folder,
              int64_t parameters, int64_t steps, Duration took, double validation_loss) {
  fmt::print("trained {} parameters for {} steps in {}\n", parameters, steps,
             format_duration(std::chrono::duration_cast<std::chrono::seconds>(took)));
  if (!std::isfinite(validation_loss)) {
    throw UserError(
        fmt::format("the validation loss at the end is not finite, so the weights in {} are of no use; lower optim.lr "
                    "({}) or lengthen optim.warmup ({})",
                    folder.string(), config.optim.lr, config.optim.warmup));
  }
  fmt::print("validation loss {:.4f} nats/token; unigram entropy {:.4f}\n", validation_loss,
             corpus.manifest.train_unigram_entropy);
}

// A run with a token table of its own needs the table's file in its folder before it begins.
void require_table(const std::string& folder, const RunConfig& config, int64_t vocab) {
  const auto& hash = config.model.subspace.table;
  if (hash.empty()) return;
  if (folder.empty()) {
    throw UserError(fmt::format(
        "subspace.table = \"{0}\": needs a folder of the run with tables/{0}.safetensors in it; name it by --run-dir",
        hash));
  }
  (void)table_of_run(folder, config, vocab).take();
}

void train_here(const TrainOptions& options, const RunConfig& config, bool live) {
  const auto corpus = prepared(config, live);
  BatchSource batches(corpus, config.train);
  require_table(options.run_dir, config, corpus.vocab);
  auto folder = RunFolder::create(options.run_dir, config).take();
  keep_corpus(folder.path(), corpus).take();
  introduce(config, corpus, folder.path());
  const SystemClock clock;
  const auto start = clock.now();
  TrainingResult result;
  {
    Progress progress({config.train.steps, config.pipeline.stages - 1, config.model.d}, stdout, live, clock);
    result = train_in_process(config, corpus.vocab, batches, folder, progress, clock);
  }
  conclude(config, corpus, folder.path(), result.parameters, result.steps, clock.now() - start, result.validation_loss);
}

int64_t parameters_in(const std::filesystem::path& model) {
  const auto file = SafetensorsFile::open(model).take();
  int64_t count = 0;
  for (const auto& tensor : file.tensors()) {
    if (tensor.name != "basis") count += static_cast<int64_t>(tensor.bytes.size()) / dtype_bytes(tensor.dtype);
  }
  return count;
}

// The exit code.
int train_as_processes(const std::filesystem::path& folder, const RunConfig& config, const PreparedCorpus& corpus,
                       bool live) {
  introduce(config, corpus, folder);
  fmt::print("stages: {} process(es), links of {} with {} delay\n", config.pipeline.stages, config.link.rate,
             config.link.delay);
  std::fflush(stdout);
  const SystemClock clock;
  const auto start = clock.now();
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto end = run_locally({program, folder, config, live}, clock);
  if (end.complete) {
    conclude(config, corpus, folder, parameters_in(folder / "model.safetensors"), end.step, clock.now() - start,
             end.validation_loss);
    return 0;
  }
  fmt::print("stopped after step {}; to go on from the checkpoint of step {}: thinpipe train --resume {}\n", end.step,
             end.manifest_step, folder.string());
  return 130;
}

int begin(const TrainOptions& options, const RunConfig& config, bool live) {
  const auto corpus = prepared(config, live);
  const BatchSource checked(corpus, config.train);  // a corpus that is too short is refused before a run begins
  require_table(options.run_dir, config, corpus.vocab);
  return train_as_processes(create_run_folder(options.run_dir, config).take(), config, corpus, live);
}

// Everything is checked before it is written into the run.
int go_on(const TrainOptions& options, const std::filesystem::path& folder, bool live) {
  const auto overrides = overrides_in(options);
  const auto wanted = load_resumed_config(folder / "config.toml", overrides);
  device_of(wanted.train);
  const SystemClock clock;
  const auto corpus = [&] {
    PrepareLine line(stdout, live, clock);
    return corpus_of_run(folder, wanted.data, data_dir(), std::ref(line));
  }();
  const BatchSource checked(corpus, wanted.train);
  return train_as_processes(folder, change_run(folder, overrides), corpus, live);
}

void train(const TrainOptions& options) {
  const bool live = ::isatty(STDOUT_FILENO) == 1;
  if (options.resume.empty()) {
    const auto config = config_from(options);
    if (options.in_process) return train_here(options, config, live);
    throw ExitWith{begin(options, config, live)};
  }
  if (!options.config.empty() || !options.run_dir.empty() || options.in_process) {
    throw UserError(
        "--resume goes on with the run's own config: leave out the config, --run-dir and --in-process (--set takes "
        "what "
        "says how the run is carried out)");
  }
  const auto folder = find_run(options.resume).take();
  const auto outcome = read_outcome(folder);
  if (outcome && outcome.value().complete) throw UserError(fmt::format("{}: this run is complete", folder.string()));
  // Without a store but with a log it was run in one process: going on would write over what it left.
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "run.sqlite", ignored) &&
      std::filesystem::exists(folder / "metrics.jsonl", ignored)) {
    throw UserError(
        fmt::format("{}: was run with --in-process, which leaves no checkpoints to go on from", folder.string()));
  }
  throw ExitWith{go_on(options, folder, live)};
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  auto* command = app.add_subcommand("train", "train a model on this machine");
  command->add_option("config", options->config, "TOML file (docs/config.md); default: the default small model");
  add_overrides(*command, options->overrides);
  command->add_option("--steps", options->steps, "same as --set train.steps=N");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N");
  command->add_option("--run-dir", options->run_dir,
                      "folder for the run's files; default: a new folder in the data directory");
  command->add_option("--resume", options->resume, "resume this run: its folder, or a name that `thinpipe runs` lists");
  command->add_flag("--in-process", options->in_process,
                    "run all stages as threads of this process, with links in memory");
  command->footer(
      "Examples:\n  thinpipe train                                  the default model, a process per stage\n"
      "  thinpipe train my.toml --set optim.lr=0.01 --set link.rate=20mbit --steps 100\n"
      "  thinpipe train --resume my-run                  go on with a run that was stopped\n"
      "  thinpipe train --resume my-run --set pipeline.stages=2\n"
      "It prepares the corpus once, trains, and leaves a run's folder with the weights. Ctrl-C writes a checkpoint and "
      "stops; twice stops at once.");
  command->callback([options] { train(*options); });
}

}  // namespace thinpipe
