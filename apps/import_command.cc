// thinpipe import: a Hugging Face LLaMA as the beginning of a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "models/hf_folder.h"
#include "models/llama.h"
#include "run/begin_run.h"
#include "text/prepare.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestContext = 1024;  // unless asked for: training on more takes memory that few have

struct ImportOptions {
  std::string folder;
  std::string mode = "dense";
  std::vector<std::string> overrides;
  std::string run_dir;
};

// Kept by its content: a run must find its tokenizer when the imported folder is gone.
fs::path place_of(const Tokenizer& tokenizer) {
  return data_dir() / "tokenizers" / (sha256_hex(tokenizer.model()) + ".model");
}

void keep(const Tokenizer& tokenizer) {
  make_directories(place_of(tokenizer).parent_path()).take();
  write_file_atomically(place_of(tokenizer), tokenizer.model()).take();
}

// What the imported model says about the config; --set may add to it, not contradict it.
RunConfig config_for(const ImportOptions& options, const ModelFiles& files, const fs::path& tokenizer) {
  const auto& model = files.config.model;
  const bool dense = options.mode == "dense";
  std::vector<std::string> defaults{
      fmt::format("model.mode={}", options.mode),
      fmt::format("model.d={}", model.d),
      fmt::format("model.blocks={}", model.blocks),
      fmt::format("model.heads={}", model.heads),
      fmt::format("model.kv_heads={}", model.kv_heads),
      fmt::format("model.mlp_width={}", model.mlp_width),
      fmt::format("model.rope_base={}", model.rope_base),
      fmt::format("model.norm_eps={}", model.norm_eps),
      fmt::format("data.vocab={}", files.vocab()),
      fmt::format("data.tokenizer={}", tokenizer.string()),
      fmt::format("train.seq_len={}", std::min(files.context(), kLongestContext)),
      fmt::format("pipeline.stages={}", std::min<int64_t>(model.blocks, RunConfig{}.pipeline.stages)),
  };
  auto config = parse_config("", "the command line", options.overrides, defaults);
  check_boundary(config);
  auto sizes = config.model;
  sizes.mode = ModelMode::kDense;
  sizes.subspace = model.subspace;
  sizes.init_std = model.init_std;
  if (sizes != model || config.data.vocab != files.vocab()) {
    throw UserError("--set: the sizes in [model] and data.vocab come from the imported model and cannot be others");
  }
  if (config.data.tokenizer != tokenizer.string()) {
    throw UserError("--set data.tokenizer: an imported model has its own");
  }
  if (config.model.is_subspace() == dense)
    throw UserError("--set model.mode: say it with --mode dense or --mode subspace");
  if (!dense && config.model.subspace.norm == NormForm::kSplit) {
    throw UserError(
        "--set subspace.norm=split: would not compute what the imported model computes; leave it \"joint\"");
  }
  return config;
}

// A run trains every token it has, and its tokenizer is the whole vocabulary.
void check_vocabulary(const ModelFiles& files, const std::string& folder) {
  if (files.tokenizer.vocab() == files.vocab()) return;
  throw UserError(
      fmt::format("{}: config.json has vocab_size {}, but tokenizer.model has {} pieces; in a run they need to agree "
                  "(eval, generate and export take the folder as it is)",
                  folder, files.vocab(), files.tokenizer.vocab()));
}

void import_model(const ImportOptions& options) {
  const auto files = open_hf_folder(options.folder);
  check_vocabulary(files, options.folder);
  const auto shape = plain_shape(files.config);
  const auto config = config_for(options, files, place_of(files.tokenizer));
  keep(files.tokenizer);
  const auto corpus = prepare_corpus(config.data, data_dir());
  // From the folder itself: by way of our own parameters every matrix would be turned round and back again.
  const auto folder = HfFolder::open(options.folder).take();
  const LlamaValues values = [&](const std::string& name) { return folder.values(name); };
  const auto imported = import_llama(shape, values, config.model).take();
  int64_t parameters = 0;
  for (const auto& [name, value] : imported.parameters) parameters += value.numel();
  const FirstWeights weights{imported.parameters, imported.basis, imported.table};
  const auto run = begin_run_from(options.run_dir, config, corpus, weights, options.folder).take();
  if (config.model.is_subspace()) {
    for (const auto& output : imported.outputs) {
      fmt::print("  {}: {:.2f} % of its energy lies in the subspace\n", output.name, 100 * output.kept);
    }
    // At full rank rounding may leave a little less than nothing.
    fmt::print("energy lost: {:.4f} % of the output projections', with {} of {} directions\n",
               100 * std::max(0.0, imported.energy_lost), config.model.subspace.rank, config.model.d);
  }
  if (config.train.seq_len < files.context()) {
    fmt::print("context: {} of the {} tokens the model could look back; --set train.seq_len=N takes another number\n",
               config.train.seq_len, files.context());
  }
  fmt::print("run: {} ({} parameters, {}, nothing trained yet)\nto train it on: thinpipe train --resume {}\n",
             run.string(), parameters, options.mode, run.string());
}

}  // namespace

void add_import_command(CLI::App& app) {
  auto options = std::make_shared<ImportOptions>();
  auto* command = app.add_subcommand("import", "a Hugging Face LLaMA as the beginning of a run");
  command->add_option("folder", options->folder, "folder with config.json, model.safetensors and tokenizer.model")
      ->required();
  command->add_option("--mode", options->mode, "dense: unchanged; subspace: projected, prints what is lost")
      ->check(CLI::IsMember({"dense", "subspace"}))
      ->capture_default_str();
  add_overrides(*command, options->overrides, "a key of the run's config: --set data.corpus=texts");
  command->add_option("--run-dir", options->run_dir,
                      "folder for the run's files; default: a new folder in the data directory");
  command->footer(
      "Examples:\n  thinpipe import ./llama-hf --set data.corpus=texts\n"
      "  thinpipe import ./llama-hf --mode subspace --set subspace.rank=64 --set data.corpus=texts\n"
      "The new run is at step 0: `eval`, `generate` and `export` take it, and `train --resume` or `serve --run` train "
      "it.");
  command->callback([options] { import_model(*options); });
}

}  // namespace thinpipe
