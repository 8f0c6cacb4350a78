// thinpipe export: a trained model as a Hugging Face folder or a GGUF file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "commands.h"
#include "model_argument.h"
#include "models/gguf.h"
#include "models/hf_folder.h"
#include "models/llama.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kSmallestShard = 1'000'000;  // bytes; smaller ones would be a file per tensor

struct ExportOptions {
  ModelArgument model;
  std::string format;
  std::string out;
  std::string type;
  std::string max_shard = "5GB";
  bool has_max_shard = false;
};

// The name a model goes by outside: its run's, or its folder's.
std::string name_of(const ModelFiles& files, const ExportOptions& options) {
  auto folder = fs::absolute(files.run ? *files.run : fs::path(options.model.where)).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  return folder.filename().string();
}

void export_hf(const ModelFiles& files, const ExportOptions& options) {
  HfOptions hf;
  const auto type = options.type.empty() ? "f32" : options.type;
  if (type == "q8_0") throw UserError("--type q8_0: is GGUF's; a Hugging Face folder has f32, f16 or bf16");
  hf.dtype = type == "f32" ? Dtype::kF32 : type == "f16" ? Dtype::kF16 : Dtype::kBf16;
  const auto max_shard = parse_size(options.max_shard);
  if (!max_shard) throw UserError("--max-shard: " + max_shard.error().message);
  if (max_shard.value() < kSmallestShard) {
    throw UserError(fmt::format("--max-shard {}: needs 1MB or more", options.max_shard));
  }
  hf.max_shard_bytes = max_shard.value();
  const fs::path out = options.out.empty() ? name_of(files, options) + "-hf" : options.out;
  write_hf_folder(out, plain_shape(files.config), files.tokenizer, plain_values(files), hf).take();
  fmt::print("{}: {} as a Hugging Face folder, {}\n", out.string(), files.title, type);
}

void export_gguf(const ModelFiles& files, const ExportOptions& options) {
  GgufOptions gguf;
  const auto type = options.type.empty() ? "f16" : options.type;
  gguf.type = type == "f32"    ? GgufType::kF32
              : type == "f16"  ? GgufType::kF16
              : type == "bf16" ? GgufType::kBf16
                               : GgufType::kQ8_0;
  gguf.name = name_of(files, options);
  const fs::path out = options.out.empty() ? gguf.name + ".gguf" : options.out;
  write_gguf(out, plain_shape(files.config), files.tokenizer, plain_values(files), gguf).take();
  fmt::print("{}: {} as GGUF, {}, {}\n", out.string(), files.title, type, format_size(fs::file_size(out)));
}

void export_model(const ExportOptions& options) {
  if (options.format == "gguf" && options.has_max_shard) {
    throw UserError("--max-shard: is for --format hf; a GGUF file is always one file");
  }
  const auto files = open_model(options.model);
  options.format == "hf" ? export_hf(files, options) : export_gguf(files, options);
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  auto* command = app.add_subcommand("export", "a trained model for other programs: Hugging Face, llama.cpp");
  add_model_argument(*command, options->model, /*computes=*/false);
  command->add_option("--format", options->format, "hf: a folder for transformers; gguf: a file for llama.cpp")
      ->required()
      ->check(CLI::IsMember({"hf", "gguf"}));
  command->add_option("--out", options->out,
                      "folder or file to write; default: named after the run, in the current folder");
  command->add_option("--type", options->type, "f32, f16, bf16, and for gguf q8_0; default: f32 for hf, f16 for gguf")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
  auto* max_shard =
      command->add_option("--max-shard", options->max_shard, "hf: split the weights into files of at most this size")
          ->capture_default_str();
  command->footer(
      "Examples:\n  thinpipe export --format gguf                    the newest run, for llama.cpp\n"
      "  thinpipe export my-run --format gguf --type q8_0 --out my-model.gguf\n"
      "  thinpipe export my-run --step 100 --format hf --out my-model-hf\n"
      "A subspace model becomes a plain LLaMA that computes the same; docs/export.md says which models cannot.");
  command->callback([options, max_shard] {
    options->has_max_shard = max_shard->count() > 0;
    export_model(*options);
  });
}

}  // namespace thinpipe
