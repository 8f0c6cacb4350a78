#include "models/model_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/files.h"
#include "config/config_file.h"
#include "models/hf_folder.h"
#include "models/llama.h"
#include "pipeline/run_corpus.h"
#include "pipeline/stage_worker.h"
#include "pipeline/table_file.h"
#include "pipeline/tensor_file.h"
#include "store/checkpoints.h"
#include "store/safetensors.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// Files with a model's parameters, each named `prefix` + its name.
struct WeightFiles {
  std::vector<SafetensorsFile> files;
  std::string prefix;
  std::string basis;
  std::string where;

  Result<at::Tensor> parameter(const std::string& name) const {
    const auto stored = name == "basis" ? basis : prefix + name;
    for (const auto& file : files) {
      if (file.find(stored) != nullptr) return tensor_from(file, stored);
    }
    return Error{fmt::format("{}: has no tensor '{}'", where, stored)};
  }
};

WeightFiles complete_model(const fs::path& path) {
  WeightFiles weights{{}, "", "basis", path.string()};
  weights.files.push_back(SafetensorsFile::open(path).take());
  return weights;
}

Result<WeightFiles> checkpoint_files(const FoundCheckpoint& checkpoint) {
  WeightFiles weights{{}, "param.", "basis.u", checkpoint.files.front().parent_path().string()};
  for (const auto& file : checkpoint.files) {
    auto opened = TRY(SafetensorsFile::open(file));
    weights.files.push_back(std::move(opened));
  }
  return weights;
}

struct OpenCheckpoint {
  int64_t step;
  WeightFiles weights;
};

// The run may still be training: a checkpoint that disappears before it is opened was replaced by a newer one.
OpenCheckpoint open_newest_checkpoint(const fs::path& run_folder) {
  for (auto checkpoint = newest_checkpoint(run_folder).take();;) {
    auto weights = checkpoint_files(checkpoint);
    if (weights) return {checkpoint.manifest.id.step, std::move(weights).take()};
    auto newer = newest_checkpoint(run_folder).take();
    if (newer.manifest.id == checkpoint.manifest.id) throw UserError(weights.error().message);
    checkpoint = std::move(newer);
  }
}

OpenCheckpoint open_checkpoint_of_step(const fs::path& run_folder, int64_t step, std::optional<uint64_t> generation) {
  return {step, checkpoint_files(checkpoint_of_step(run_folder, step, generation).take()).take()};
}

// A run keeps its tokenizer beside its config; for older runs it is in the prepared corpus.
Tokenizer tokenizer_of(const fs::path& run_folder, const RunConfig& config) {
  std::error_code ignored;
  const auto kept = run_folder / "tokenizer.model";
  const auto path = fs::exists(kept, ignored) ? kept : corpus_of_run(run_folder, config.data, data_dir()).tokenizer;
  auto tokenizer = Tokenizer::load(path).take();
  if (tokenizer.vocab() != config.data.vocab) {
    throw UserError(fmt::format("{} has {} pieces, needs data.vocab = {} of the run's config", path.string(),
                                tokenizer.vocab(), config.data.vocab));
  }
  return tokenizer;
}

std::string shape_text(at::IntArrayRef sizes) { return fmt::format("({})", fmt::join(sizes, ", ")); }

}  // namespace

ModelFiles open_run(const fs::path& run_folder, std::optional<int64_t> step, std::optional<uint64_t> generation) {
  auto config = load_config(run_folder / "config.toml");
  std::error_code ignored;
  const auto name = fs::path(run_folder).filename().string();
  std::shared_ptr<WeightFiles> weights;
  std::string title;
  if (!step && fs::exists(run_folder / "model.safetensors", ignored)) {
    weights = std::make_shared<WeightFiles>(complete_model(run_folder / "model.safetensors"));
    title = fmt::format("run {} (complete)", name);
  } else {
    auto opened = step ? open_checkpoint_of_step(run_folder, *step, generation) : open_newest_checkpoint(run_folder);
    weights = std::make_shared<WeightFiles>(std::move(opened.weights));
    title = fmt::format("run {} (step {})", name, opened.step);
  }
  auto tokenizer = tokenizer_of(run_folder, config);
  auto table = table_of_run(run_folder, config, config.data.vocab).take();
  return {std::move(title),
          std::move(config),
          run_folder,
          std::move(tokenizer),
          [weights](const std::string& wanted) { return weights->parameter(wanted); },
          std::move(table)};
}

ModelFiles open_hf_folder(const fs::path& folder) {
  // The lookup reads from it and keeps it alive.
  const auto opened = std::make_shared<HfFolder>(HfFolder::open(folder).take());
  const auto shape = opened->config().shape;
  RunConfig config;
  config.model = dense_model_of(shape);
  config.data.vocab = shape.vocab;
  config.train.seq_len = shape.context;
  config.pipeline.stages = 1;
  config.boundary.pack = Pack::kFp32;
  // It may have fewer pieces than the model has tokens: the others are padding that never occurs in text.
  auto tokenizer = opened->tokenizer().take();
  const LlamaValues values = [opened](const std::string& wanted) { return opened->values(wanted); };
  return {fmt::format("Hugging Face folder {}", folder.string()), std::move(config), std::nullopt, std::move(tokenizer),
          [shape, values](const std::string& wanted) { return dense_parameter(shape, values, wanted); }};
}

std::unique_ptr<Stage> load_model(const ModelFiles& files, const std::string& device) {
  auto train = files.config.train;
  train.device = device;
  const auto& model = files.config.model;
  auto stage = std::make_unique<Stage>(model, files.vocab(), whole_model(model), train.precision, train.seed,
                                       device_of(train), files.table, /*trained=*/false);
  for (auto& parameter : stage->parameters().all()) {
    const auto value = files.parameter(parameter.name).take();
    if (value.sizes() != parameter.value.sizes()) {
      throw UserError(fmt::format("{}: tensor '{}' is {}, needs {}", files.title, parameter.name,
                                  shape_text(value.sizes()), shape_text(parameter.value.sizes())));
    }
    parameter.value.copy_(value);
  }
  if (auto* side = stage->subspace()) {
    const auto basis = files.parameter("basis").take();
    if (basis.sizes() != side->basis().u.sizes() || basis.scalar_type() != at::kDouble) {
      throw UserError(fmt::format("{}: tensor 'basis' is {}, needs {} of float64", files.title,
                                  shape_text(basis.sizes()), shape_text(side->basis().u.sizes())));
    }
    side->set_basis({basis, 0});
  }
  return stage;
}

}  // namespace thinpipe
