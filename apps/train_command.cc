// thinpipe train [config]: from a config to a trained model, on this machine or on others that are named.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "after_training.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/say.h"
#include "base/units.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "config/keys.h"
#include "host_choice.h"
#include "models/llama.h"
#include "pipeline/batches.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"
#include "pipeline/progress.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "plan/machine.h"
#include "plan/memory_plan.h"
#include "plan/preflight.h"
#include "run/coordinator/serve.h"
#include "run/guest_run.h"
#include "run/run_changes.h"
#include "run/supervisor.h"
#include "run_folders.h"
#include "store/safetensors.h"
#include "text/prepare.h"
#include "text_argument.h"
#include "train_from.h"

namespace thinpipe {
namespace {

const std::string kRealLinks = "link.rate=unlimited";

std::vector<std::string> overrides_in(const TrainArguments& arguments) {
  auto overrides = arguments.overrides;
  if (!arguments.steps.empty()) overrides.push_back("train.steps=" + arguments.steps);
  if (!arguments.device.empty()) overrides.push_back("train.device=" + arguments.device);
  return overrides;
}

// The same arguments with a text in the place of the config.
TrainArguments with_text(TrainArguments arguments) {
  take_text_argument(arguments.config, arguments.overrides);
  return arguments;
}

// The arguments with which the default model trains on the text that they name.
TrainArguments for_text(const TrainArguments& given, bool live) {
  auto arguments = with_text(given);
  fit_vocabulary(arguments.overrides, overrides_in(arguments), live);
  return arguments;
}

RunConfig config_from(const TrainArguments& arguments) {
  const auto overrides = overrides_in(arguments);
  const bool here = hosts_in(arguments.on).hosts.empty();
  // Machines have real links between them, so none is emulated by default.
  const std::vector<std::string> defaults = here ? std::vector<std::string>{} : std::vector{kRealLinks};
  auto config = arguments.config.empty() ? parse_config("", "the command line", overrides, defaults)
                                         : load_config(arguments.config, overrides, defaults);
  check_boundary(config);
  if (here) device_of(config.train);  // refuses a device that this build lacks, before anything is prepared
  return config;
}

DashboardWish wish_in(const TrainArguments& arguments) {
  const DashboardWish wish{arguments.dashboard, arguments.open};
  check(wish).take();
  return wish;
}

// A run that does not fit would be killed by the system again and again, and other programs with it.
void refuse_if_too_large(const RunConfig& config, bool in_process, const GuestLimits& limits) {
  if (config.train.device != "cpu") return;
  const auto check = check_memory_of_run(memory_of_run(config, config.data.vocab, in_process), available_memory_bytes(),
                                         limits.max_memory_bytes);
  if (check.verdict == Verdict::kRefusal) throw UserError(fmt::format("memory: {}; {}", check.text, check.remedy));
}

// All stages together, and the processes that serve them.
void be_a_guest(const GuestLimits& limits) {
  be_nice(limits.nice);
  use_cores(limits.threads);
}

// The stages of a run on other machines do not use this one.
void refuse_limits_elsewhere(const GuestOptions& options) {
  const auto limits = describe(options);
  if (limits.empty()) return;
  throw UserError(fmt::format(
      "--{}: limits this machine, but with --hosts, --host and --slurm others hold the stages; leave it out", limits));
}

std::string model_line(const RunConfig& config) {
  const auto& model = config.model;
  const auto stages =
      fmt::format("d = {}, {} blocks in {}", model.d, model.blocks, counted(config.pipeline.stages, "stage"));
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
  say("corpus: {} ({} training tokens, {} validation; vocabulary {}; unigram entropy {:.4f} nats/token)\n",
      config.data.corpus, manifest.train.tokens, manifest.val.tokens, corpus.vocab, manifest.train_unigram_entropy);
  if (const auto line = invalid_line(config.data, corpus.invalid); !line.empty()) say("{}\n", line);
  say("model: {}\n", model_line(config));
  if (const auto limit = export_limit(config); !limit.empty()) say("note: {}\n", limit);
  say("run: {}\n", folder.string());
  std::fflush(stdout);
}

struct Took {
  Duration before{};  // at earlier starts of the run
  Duration now{};
};

void conclude(const RunConfig& config, const PreparedCorpus& corpus, const std::filesystem::path& folder,
              int64_t parameters, int64_t steps, const Took& took, double validation_loss) {
  const auto text = [](Duration time) {
    return format_duration(std::chrono::duration_cast<std::chrono::seconds>(time));
  };
  say("trained {} parameters for {} steps in {}{}\n", parameters, steps, text(took.before + took.now),
      took.before > Duration{} ? fmt::format(", {} of it since it was resumed", text(took.now)) : "");
  if (!std::isfinite(validation_loss)) {
    throw UserError(
        fmt::format("the final validation loss is not finite, so the weights in {} are useless; lower optim.lr ({}) or "
                    "raise optim.warmup ({})",
                    folder.string(), config.optim.lr, config.optim.warmup));
  }
  say("validation loss {:.4f} nats/token; unigram entropy {:.4f}\n", validation_loss,
      corpus.manifest.train_unigram_entropy);
  std::fflush(stdout);
  say("{}\n", sample_line(folder, corpus));
  std::error_code ignored;
  say("{}", next_commands(folder, config, std::filesystem::exists(folder / "run.sqlite", ignored)));
}

std::filesystem::path folder_of_config(const TrainArguments& arguments) {
  return std::filesystem::path(arguments.config).parent_path();
}

// A config that names a file for its token table needs that file in the folder of the run before it begins, or beside
// the config, as in the folder of the run that the config came from.
void require_table(const TrainArguments& arguments, const RunConfig& config, int64_t vocab) {
  const auto& hash = config.model.table;
  if (hash.empty() || hash == kTableFromCorpus) return;
  std::error_code ignored;
  if (!arguments.config.empty() && std::filesystem::exists(table_path(folder_of_config(arguments), hash), ignored)) {
    (void)table_of_run(folder_of_config(arguments), config, vocab).take();
    return;
  }
  if (arguments.run_dir.empty()) {
    throw UserError(
        fmt::format("model.table = \"{0}\": needs tables/{0}.safetensors beside the config file, or in a run folder "
                    "that is named with --run-dir; \"corpus\" makes a new table",
                    hash));
  }
  (void)table_of_run(arguments.run_dir, config, vocab).take();
}

void train_here(const TrainArguments& arguments, const RunConfig& wanted, bool live) {
  const auto corpus = prepared(wanted, live);
  CorpusBatches batches(corpus, wanted.train);
  require_table(arguments, wanted, corpus.vocab);
  auto folder = RunFolder::create(folder_for_new_run(arguments.name, arguments.run_dir).take(), wanted).take();
  bring_table(folder.path(), wanted, folder_of_config(arguments)).take();
  const auto config = settle_table(folder.path(), wanted, corpus).take();
  keep_corpus(folder.path(), corpus).take();
  introduce(config, corpus, folder.path());
  if (const auto every = config.train.sample_every; every > 0 && every < config.train.steps) {
    fmt::print("note: no sample of text before the end: --in-process writes no checkpoints to sample from\n");
  }
  const SystemClock clock;
  const auto start = clock.now();
  TrainingResult result;
  {
    Progress progress({config.train.steps, config.pipeline.stages - 1, config.model.d}, stdout, live, clock);
    result = train_in_process(config, corpus.vocab, batches, folder, progress, clock);
  }
  conclude(config, corpus, folder.path(), result.parameters, result.steps, {.now = clock.now() - start},
           result.validation_loss);
}

int64_t parameters_in(const std::filesystem::path& model) {
  const auto file = SafetensorsFile::open(model).take();
  int64_t count = 0;
  for (const auto& tensor : file.tensors()) {
    if (tensor.name != "basis") count += static_cast<int64_t>(tensor.bytes.size()) / dtype_bytes(tensor.dtype);
  }
  return count;
}

// The exit code. The run may have been trained for a while before: that time counts too.
int train_as_processes(const std::filesystem::path& folder, const RunConfig& config, const PreparedCorpus& corpus,
                       bool live, const DashboardWish& dashboard, const RemoteRun& remote, const GuestLimits& limits) {
  const auto before = trained_time(folder / "timing.jsonl");
  introduce(config, corpus, folder);
  say("stages: {}, links of {} with {} delay\n", place_of_stages(remote, config.pipeline.stages), config.link.rate,
      config.link.delay);
  std::fflush(stdout);
  const SystemClock clock;
  const auto start = clock.now();
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto end = run_with_breaks({program, folder, config, live, stdout, dashboard, remote}, limits, clock);
  if (end.complete) {
    conclude(config, corpus, folder, parameters_in(folder / "model.safetensors"), end.step,
             {before, clock.now() - start}, end.validation_loss);
    return 0;
  }
  say("stopped after step {}; to resume from the checkpoint of step {}:\n", end.step, end.manifest_step);
  fmt::print("  thinpipe train --resume {}{}\n", argument_of(folder), how_to_name(remote));
  return 130;
}

int begin(const TrainArguments& arguments, const RunConfig& config, const GuestLimits& limits, bool live) {
  const auto corpus = prepared(config, live);
  const CorpusBatches checked(corpus, config.train);  // refuses a corpus that is too short before the run begins
  require_table(arguments, config, corpus.vocab);
  auto folder = NewRunFolder::create(folder_for_new_run(arguments.name, arguments.run_dir).take(), config).take();
  bring_table(folder.path(), config, folder_of_config(arguments)).take();
  const auto settled = settle_table(folder.path(), config, corpus).take();
  keep_guest_options(folder.path(), arguments.guest).take();
  folder.keep();
  return train_as_processes(folder.path(), settled, corpus, live, wish_in(arguments), hosts_in(arguments.on), limits);
}

// Everything is checked before it is written into the run.
int resume(const TrainArguments& arguments, const std::filesystem::path& folder, bool live) {
  const auto overrides = overrides_in(arguments);
  const auto wanted = load_resumed_config(folder / "config.toml", overrides);
  const auto remote = hosts_in(arguments.on);
  require_hosts(remote, arguments.on, wanted);
  const auto guest = merged_guest_options(folder, arguments.guest).take();
  // What was kept stays kept, but means nothing where other machines hold the stages.
  const auto limits = remote.hosts.empty() ? limits_of(guest).take() : GuestLimits{};
  be_a_guest(limits);
  if (remote.hosts.empty()) {
    device_of(wanted.train);
    refuse_if_too_large(wanted, false, limits);
  }
  const SystemClock clock;
  const auto corpus = [&] {
    PrepareLine line(stdout, live, clock);
    return corpus_of_run(folder, wanted.data, data_dir(), std::ref(line));
  }();
  const CorpusBatches checked(corpus, wanted.train);
  keep_guest_options(folder, guest).take();
  const auto changed = change_run(folder, overrides);
  if (!changed.note.empty()) say("{}\n", changed.note);
  return train_as_processes(folder, changed.config, corpus, live, wish_in(arguments), remote, limits);
}

// A new run with the weights of another one.
int begin_from(const TrainArguments& given, const GuestLimits& limits, bool live) {
  if (!given.resume.empty()) {
    throw UserError("--from begins a new run and --resume continues one: leave one of them out");
  }
  if (given.in_process) {
    throw UserError("--from begins with a checkpoint, and --in-process has none: leave one of them out");
  }
  const auto remote = hosts_in(given.on);
  be_a_guest(limits);
  const auto arguments = is_text(given.config) ? with_text(given) : given;
  const auto run = [&] {
    const SystemClock clock;
    PrepareLine line(stdout, live, clock);
    return run_from(arguments.from, arguments.step, arguments.config, overrides_in(arguments), std::ref(line));
  }();
  check_boundary(run.config);
  require_hosts(remote, arguments.on, run.config);
  if (remote.hosts.empty()) {
    device_of(run.config.train);
    refuse_if_too_large(run.config, false, limits);
  }
  const CorpusBatches checked(run.corpus, run.config.train);
  const auto folder = begin_with_weights(run, folder_for_new_run(arguments.name, arguments.run_dir).take());
  keep_guest_options(folder, arguments.guest).take();
  say("weights: from {}; the optimizer's moments begin at zero, the learning rate with its warm-up\n", run.model.title);
  return train_as_processes(folder, load_config(folder / "config.toml"), run.corpus, live, wish_in(arguments), remote,
                            limits);
}

}  // namespace

void train(const TrainArguments& arguments) {
  const bool live = ::isatty(STDOUT_FILENO) == 1;
  (void)wish_in(arguments);  // refuses a bad address before anything is prepared
  const auto limits = limits_of(arguments.guest).take();
  const auto hosts = hosts_in(arguments.on);
  if (!hosts.hosts.empty() && arguments.in_process) {
    throw UserError("--in-process runs on this machine: leave it out, or --hosts and --host");
  }
  if (!hosts.hosts.empty()) refuse_limits_elsewhere(arguments.guest);
  if (!arguments.from.empty()) throw ExitWith{begin_from(arguments, limits, live)};
  if (!arguments.step.empty()) throw UserError("--step is for --from: it says which checkpoint of that run");
  if (arguments.resume.empty()) {
    if (is_text(arguments.config)) return train(for_text(arguments, live));
    if (arguments.in_process && limits.may_leave()) {
      throw UserError("--hours, --on-battery: a run with --in-process writes no checkpoints to leave with");
    }
    const auto config = config_from(arguments);
    require_hosts(hosts, arguments.on, config);
    be_a_guest(limits);
    if (hosts.hosts.empty()) refuse_if_too_large(config, arguments.in_process, limits);
    if (arguments.in_process) return train_here(arguments, config, live);
    throw ExitWith{begin(arguments, config, limits, live)};
  }
  if (!arguments.config.empty() || !arguments.run_dir.empty() || !arguments.name.empty() || arguments.in_process) {
    throw UserError(
        "--resume uses the run's own config: leave out CONFIG, --run-dir, --name and --in-process; --set can change "
        "how the "
        "run is carried out, such as pipeline.stages");
  }
  const auto folder = find_run_to_resume(arguments.resume).take();
  const auto outcome = read_outcome(folder);
  if (outcome && outcome.value().complete && !sets(overrides_in(arguments), "train.steps")) {
    throw UserError(
        fmt::format("{0}: this run is complete after {1} steps; --steps N with more of them trains it "
                    "longer, --from {0} begins a new run with its weights",
                    folder.string(), outcome.value().step));
  }
  // A log without a store: it was run in one process, and resuming would overwrite what it left.
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "run.sqlite", ignored) &&
      std::filesystem::exists(folder / "metrics.jsonl", ignored)) {
    throw UserError(
        fmt::format("{}: this run used --in-process, which writes no checkpoints to resume from", folder.string()));
  }
  throw ExitWith{resume(arguments, folder, live)};
}

}  // namespace thinpipe
