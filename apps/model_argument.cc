#include "model_argument.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "config/keys.h"
#include "run_folders.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

std::optional<int64_t> parse_step(const std::string& text) {
  if (text.empty()) return std::nullopt;
  int64_t step = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (code != std::errc() || end != text.data() + text.size() || step < 0) {
    throw UserError(fmt::format("--step {}: needs the step of a checkpoint, a whole number", text));
  }
  return step;
}

// The rule of train.device, under the option's name.
void check_device(const std::string& device) {
  const auto& keys = config_keys();
  const auto key = std::find_if(keys.begin(), keys.end(), [](const Key& one) { return one.full() == "train.device"; });
  TP_CHECK(key != keys.end(), "there is no train.device");
  if (!key->accepts(device)) throw UserError(fmt::format("--device {}: needs {}", device, key->needs));
  if (device != "cpu" && !at::hasCUDA()) {
    throw UserError(fmt::format("--device {}: this build of libtorch has no CUDA; use \"cpu\"", device));
  }
}

}  // namespace

ModelFiles open_model(const ModelArgument& argument) {
  check_device(argument.device);
  const auto step = parse_step(argument.step);
  const fs::path path = argument.where;
  std::error_code ignored;
  if (!path.empty() && fs::exists(path / "config.json", ignored)) {
    if (step)
      throw UserError(fmt::format("--step {}: {} is a Hugging Face folder and has no steps", *step, path.string()));
    return open_hf_folder(path);
  }
  // checkpoints/step-00000040-g1 of a run
  if (!path.empty()) {
    const auto folder = fs::absolute(path / "").lexically_normal().parent_path();
    const auto id = checkpoint_id(folder.filename().string());
    const auto run = folder.parent_path().parent_path();
    if (id && fs::exists(run / "config.toml", ignored)) {
      if (step) throw UserError(fmt::format("--step {}: {} is already one checkpoint", *step, path.string()));
      return open_run(run, id->step, id->generation);
    }
  }
  if (argument.where.empty()) return open_run(newest_run(has_model, "has a model yet").take(), step);
  const auto run = find_run(argument.where);
  if (!run) {
    throw UserError(fmt::format(
        "there is no model '{}': needs a run (`thinpipe runs` lists them), the folder of a checkpoint, or a "
        "Hugging Face folder with config.json",
        argument.where));
  }
  return open_run(run.value(), step);
}

fs::path place_of(const Tokenizer& tokenizer) {
  return data_dir() / "tokenizers" / (sha256_hex(tokenizer.model()) + ".model");
}

void keep(const Tokenizer& tokenizer) {
  make_directories(place_of(tokenizer).parent_path()).take();
  write_file_atomically(place_of(tokenizer), tokenizer.model()).take();
}

LlamaValues counted(LlamaValues values, WorkLine& line) {
  return [values = std::move(values), &line](const std::string& name) {
    auto result = values(name);
    line.add();
    return result;
  };
}

}  // namespace thinpipe
