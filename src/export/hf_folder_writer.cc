// Writing a Hugging Face folder: beside its place, renamed when it is whole.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "export/hf_folder.h"
#include "export/hf_index.h"
#include "export/number_bytes.h"
#include "text/work_folder.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using Shards = std::vector<std::vector<SafetensorsTensor>>;

// In the order of the model, each shard as full as it may be. The tensors have no bytes yet.
Shards shards_of(const LlamaShape& shape, const HfOptions& options) {
  Shards shards(1);
  uint64_t filled = 0;
  for (auto& tensor : llama_tensors(shape)) {
    const auto bytes = static_cast<uint64_t>(tensor_bytes(options.dtype, tensor.shape).value());
    if (!shards.back().empty() && filled + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back({std::move(tensor.name), options.dtype, std::move(tensor.shape), {}});
  }
  return shards;
}

Status write_shard(const fs::path& path, const std::vector<SafetensorsTensor>& tensors, const LlamaValues& values,
                   uint64_t& total_bytes) {
  // transformers refuses a file that does not say which library's tensors it holds.
  auto writer = SafetensorsWriter::create(path, tensors, {{"format", "pt"}});
  if (!writer) return writer.error();
  for (const auto& tensor : tensors) {
    const auto of_tensor = values(tensor.name);
    if (!of_tensor) return of_tensor.error();
    const auto bytes = stored_values(of_tensor.value(), tensor.dtype);
    if (!bytes) return Error{fmt::format("tensor {}: {}", tensor.name, bytes.error().message)};
    if (auto status = writer.value().append(std::as_bytes(std::span(bytes.value()))); !status) return status;
    total_bytes += bytes.value().size();
  }
  return writer.value().commit();
}

Status write_weights(const fs::path& folder, const LlamaShape& shape, const LlamaValues& values,
                     const HfOptions& options) {
  const Shards shards = shards_of(shape, options);
  HfWeightMap index;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = shards.size() == 1 ? "model.safetensors"
                                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const auto& tensor : shards[i]) index.emplace(tensor.name, name);
    if (auto status = write_shard(folder / name, shards[i], values, total_bytes); !status) return status;
  }
  if (shards.size() == 1) return {};
  return write_file_atomically(folder / "model.safetensors.index.json", hf_index_text(index, total_bytes));
}

Json special_tokens(const Tokenizer& tokenizer) {
  Json tokens{{"bos_token", tokenizer.piece(tokenizer.bos()).text}};
  if (tokenizer.eos() >= 0) tokens["eos_token"] = tokenizer.piece(tokenizer.eos()).text;
  if (tokenizer.facts().unknown >= 0) tokens["unk_token"] = tokenizer.piece(tokenizer.facts().unknown).text;
  return tokens;
}

// So that transformers' LlamaTokenizer gives the ids that sentencepiece gives.
Json tokenizer_config(const Tokenizer& tokenizer, const LlamaShape& shape) {
  Json config = special_tokens(tokenizer);
  // Without a word transformers would add "</s>" to the vocabulary.
  if (!config.contains("eos_token")) config["eos_token"] = nullptr;
  Json added = Json::object();
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const Piece& piece = tokenizer.piece(id);
    if (piece.type != PieceType::kControl && piece.type != PieceType::kUnknown) continue;
    added[std::to_string(id)] = {{"content", piece.text}, {"lstrip", false},      {"normalized", false},
                                 {"rstrip", false},       {"single_word", false}, {"special", true}};
  }
  config.update({{"add_bos_token", true},
                 {"add_eos_token", false},
                 {"add_prefix_space", tokenizer.facts().add_dummy_prefix},
                 {"added_tokens_decoder", std::move(added)},
                 {"clean_up_tokenization_spaces", false},
                 // What is not legacy splits the first space off and puts it on again by rules of its own.
                 {"legacy", true},
                 {"model_max_length", shape.context},
                 {"sp_model_kwargs", Json::object()},
                 {"spaces_between_special_tokens", false},
                 {"tokenizer_class", "LlamaTokenizer"},
                 {"use_default_system_prompt", false}});
  return config;
}

Status write_small_files(const fs::path& folder, const LlamaShape& shape, const Tokenizer& tokenizer, Dtype dtype) {
  HfConfig config{shape, tokenizer.bos(), std::nullopt, false, dtype};
  Json generation{{"_from_model_config", true}, {"bos_token_id", tokenizer.bos()}};
  if (tokenizer.eos() >= 0) {
    config.eos = tokenizer.eos();
    generation["eos_token_id"] = tokenizer.eos();
  }
  const auto text = [](const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'; };
  const std::pair<const char*, std::string> files[] = {
      {"config.json", hf_config_text(config)},
      {"generation_config.json", text(generation)},
      {"tokenizer.model", tokenizer.model()},
      {"tokenizer_config.json", text(tokenizer_config(tokenizer, shape))},
      {"special_tokens_map.json", text(special_tokens(tokenizer))},
  };
  for (const auto& [name, bytes] : files) {
    if (auto status = write_file_atomically(folder / name, bytes); !status) return status;
  }
  return {};
}

Status refuse_what_is_there(const fs::path& target) {
  std::error_code code;
  const auto type = fs::symlink_status(target, code).type();
  if (type == fs::file_type::not_found) return {};
  if (type == fs::file_type::directory && fs::is_empty(target, code) && !code) return {};
  return Error{fmt::format("{} is there already and not an empty folder: remove it or name another", target.string())};
}

}  // namespace

Status write_hf_folder(const fs::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                       const LlamaValues& values, const HfOptions& options) {
  TP_CHECK(options.dtype == Dtype::kF32 || options.dtype == Dtype::kF16 || options.dtype == Dtype::kBf16,
           "a folder of {}", dtype_name(options.dtype));
  if (auto status = check_llama_shape(shape); !status) return status;
  if (tokenizer.vocab() > shape.vocab) {
    return Error{
        fmt::format("the tokenizer has {} pieces, but the model only {} tokens", tokenizer.vocab(), shape.vocab)};
  }
  if (path.empty()) return Error{"an empty path names no folder"};
  fs::path target = fs::absolute(path).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "out/"
  if (auto status = make_directories(target.parent_path()); !status) return status;
  const auto lock_path = target.parent_path() / ("." + target.filename().string() + ".lock");
  const auto lock =
      FileLock::acquire(lock_path, [&] { log_info("waiting for another process that writes {}", target.string()); });
  if (!lock) return lock.error();
  if (auto status = refuse_what_is_there(target); !status) return status;

  auto work = WorkFolder::create(target);
  if (!work) return work.error();
  if (auto status = write_small_files(work.value().path(), shape, tokenizer, options.dtype); !status) return status;
  if (auto status = write_weights(work.value().path(), shape, values, options); !status) return status;
  return work.value().publish();
}

}  // namespace thinpipe
