// thinpipe export: a trained model as a Hugging Face folder or a GGUF file.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "commands.h"
#include "model_argument.h"
#include "models/gguf.h"
#include "models/hf_folder.h"
#include "models/llama.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kSmallestShard = 1'000'000;  // bytes; smaller shards would be one file per tensor

// The exported model is named after its run or its folder.
std::string name_of(const ModelFiles& files, const ExportArguments& arguments) {
  auto folder = fs::absolute(files.run ? *files.run : fs::path(arguments.model.where)).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  return folder.filename().string();
}

void export_hf(const ModelFiles& files, const ExportArguments& arguments) {
  HfOptions hf;
  const auto type = arguments.type.empty() ? "f32" : arguments.type;
  if (type == "q8_0") throw UserError("--type q8_0: is for gguf only; a Hugging Face folder takes f32, f16 or bf16");
  hf.dtype = type == "f32" ? Dtype::kF32 : type == "f16" ? Dtype::kF16 : Dtype::kBf16;
  const auto max_shard = parse_size(arguments.max_shard);
  if (!max_shard) throw UserError("--max-shard: " + max_shard.error().message);
  if (max_shard.value() < kSmallestShard) {
    throw UserError(fmt::format("--max-shard {}: needs 1MB or more", arguments.max_shard));
  }
  hf.max_shard_bytes = max_shard.value();
  const fs::path out = arguments.out.empty() ? name_of(files, arguments) + "-hf" : arguments.out;
  const auto shape = merged_shape(files.config);
  {
    WorkLine line("exporting", "tensors", llama_tensors(shape).size());
    write_hf_folder(out, shape, files.tokenizer, counted(merged_values(files), line), hf).take();
  }
  say("{}: {} as a Hugging Face folder, {}\n", out.string(), files.title, type);
}

void export_gguf(const ModelFiles& files, const ExportArguments& arguments) {
  GgufOptions gguf;
  const auto type = arguments.type.empty() ? "f16" : arguments.type;
  gguf.type = type == "f32"    ? GgufType::kF32
              : type == "f16"  ? GgufType::kF16
              : type == "bf16" ? GgufType::kBf16
                               : GgufType::kQ8_0;
  gguf.name = name_of(files, arguments);
  const fs::path out = arguments.out.empty() ? gguf.name + ".gguf" : arguments.out;
  const auto shape = plain_shape(files.config);
  {
    WorkLine line("exporting", "tensors", llama_tensors(shape).size());
    write_gguf(out, shape, files.tokenizer, counted(merged_values(files), line), gguf).take();
  }
  say("{}: {} as GGUF, {}, {}\n", out.string(), files.title, type, format_size(fs::file_size(out)));
}

}  // namespace

void export_model(const ExportArguments& arguments) {
  if (arguments.format == "gguf" && arguments.has_max_shard) {
    throw UserError("--max-shard: is for --format hf only; GGUF is always one file");
  }
  const auto files = open_model(arguments.model);
  arguments.format == "hf" ? export_hf(files, arguments) : export_gguf(files, arguments);
}

}  // namespace thinpipe
