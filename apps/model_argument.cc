#include "model_argument.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "run_folders.h"

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

}  // namespace

void add_model_argument(CLI::App& command, ModelArgument& argument, bool computes) {
  command.add_option("model", argument.where,
                     "a run's folder or name, a checkpoint's folder, or a Hugging Face folder; none: the newest run");
  command.add_option("--step", argument.step, "of a run: the checkpoint of this step; none: the last");
  if (computes) command.add_option("--device", argument.device, "cpu, cuda or cuda:N")->capture_default_str();
}

ModelFiles open_model(const ModelArgument& argument) {
  const auto step = parse_step(argument.step);
  const fs::path path = argument.where;
  std::error_code ignored;
  if (!path.empty() && fs::exists(path / "config.json", ignored)) {
    if (step)
      throw UserError(fmt::format("--step {}: {} is a Hugging Face folder and has no steps", *step, path.string()));
    return open_hf_folder(path);
  }
  // checkpoints/step-00000040 of a run
  if (!path.empty() && fs::exists(path / "manifest.json", ignored)) {
    const auto folder = fs::absolute(path).lexically_normal();
    const auto own = folder.filename().empty() ? folder.parent_path() : folder;
    const auto name = own.filename().string();
    const auto run = own.parent_path().parent_path();
    if (name.starts_with("step-") && fs::exists(run / "config.toml", ignored)) {
      if (step) throw UserError(fmt::format("--step {}: {} is a checkpoint already", *step, path.string()));
      return open_run(run, parse_step(name.substr(5)));
    }
  }
  const auto run = find_run(argument.where);
  if (!run) {
    throw UserError(
        fmt::format("there is no model '{}': needs a run (`thinpipe runs` lists them), a checkpoint's folder, or a "
                    "Hugging Face folder "
                    "with its config.json",
                    argument.where));
  }
  return open_run(run.value(), step);
}

}  // namespace thinpipe
