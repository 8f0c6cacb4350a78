// thinpipe import: starts a run from a Hugging Face LLaMA.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "base/say.h"
#include "boundary/boundary.h"
#include "commands.h"
#include "config/config_file.h"
#include "model_argument.h"
#include "models/hf_folder.h"
#include "models/llama.h"
#include "run/begin_run.h"
#include "text/prepare.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestContext = 1024;  // by default: longer sequences need more memory than most machines have

// The imported model decides the sizes in the config. --set may add to it but not contradict it.
RunConfig config_for(const ImportArguments& arguments, const ModelFiles& files, const fs::path& tokenizer) {
  const auto& model = files.config.model;
  const bool dense = arguments.mode == "dense";
  std::vector<std::string> defaults{
      fmt::format("model.mode={}", arguments.mode),
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
  auto config = parse_config("", "the command line", arguments.overrides, defaults);
  check_boundary(config);
  auto sizes = config.model;
  sizes.mode = ModelMode::kDense;
  sizes.subspace = model.subspace;
  sizes.init_std = model.init_std;
  sizes.recipe = model.recipe;
  sizes.table = model.table;
  if (sizes != model || config.data.vocab != files.vocab()) {
    throw UserError("--set: the imported model decides the sizes in [model] and data.vocab; leave them out");
  }
  if (config.data.tokenizer != tokenizer.string()) {
    throw UserError("--set data.tokenizer: the imported model brings its own tokenizer; leave it out");
  }
  if (config.model.is_subspace() == dense) throw UserError("--set model.mode: use --mode dense or --mode subspace");
  return config;
}

// A run trains every token of its vocabulary, and its tokenizer must have all of them.
void check_vocabulary(const ModelFiles& files, const std::string& folder) {
  if (files.tokenizer.vocab() == files.vocab()) return;
  throw UserError(
      fmt::format("{}: config.json has vocab_size {}, but tokenizer.model has {} pieces; a run needs them to be equal "
                  "(eval, generate and export can use the folder as it is)",
                  folder, files.vocab(), files.tokenizer.vocab()));
}

}  // namespace

void import_model(const ImportArguments& arguments) {
  const auto files = open_hf_folder(arguments.folder);
  check_vocabulary(files, arguments.folder);
  const auto shape = plain_shape(files.config);
  const auto config = config_for(arguments, files, place_of(files.tokenizer));
  keep(files.tokenizer);
  const auto corpus = prepare_corpus(config.data, data_dir());
  // Straight from the folder: our own parameters would transpose every matrix twice.
  const auto folder = HfFolder::open(arguments.folder).take();
  const LlamaValues values = [&](const std::string& name) { return folder.values(name); };
  const auto imported = [&] {
    WorkLine line("importing", "tensors", llama_tensors(shape).size());
    return import_llama(shape, counted(values, line), config.model).take();
  }();
  int64_t parameters = 0;
  for (const auto& [name, value] : imported.parameters) parameters += value.numel();
  const FirstWeights weights{imported.parameters, imported.basis, imported.table};
  const auto run = begin_run_from(arguments.run_dir, config, corpus, weights, arguments.folder).take();
  if (config.model.is_subspace()) {
    for (const auto& output : imported.outputs) {
      say("  {}: {:.2f} % of its energy lies in the subspace\n", output.name, 100 * output.kept);
    }
    // At full rank, rounding may give a value just below 0.
    say("energy lost: {:.4f} % of the output projections, with {} of {} directions\n",
        100 * std::max(0.0, imported.energy_lost), config.model.subspace.rank, config.model.d);
  }
  if (config.train.seq_len < files.context()) {
    say("context: {} of the model's {} tokens; use --set train.seq_len=N to change it\n", config.train.seq_len,
        files.context());
  }
  say("run: {} ({} parameters, {}, not trained yet)\nto train it: thinpipe train --resume {}\n", run.string(),
      parameters, arguments.mode, run.string());
}

}  // namespace thinpipe
