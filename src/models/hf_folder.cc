#include "models/hf_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "models/modeling_thinpipe.h"
#include "models/number_bytes.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool can_be_read(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
}

// Older files contain the frequencies of the rotation, which follow from rope_theta.
bool is_ignored(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

// ---- Writing ----

using Shards = std::vector<std::vector<SafetensorsTensor>>;

// In the order of the model, each shard as full as possible. The tensors have no bytes yet.
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
  // transformers refuses a file that does not say from which library its tensors come.
  const SafetensorsMetadata metadata{{"format", "pt"}};
  auto writer = TRY(SafetensorsWriter::create(path, tensors, metadata));
  for (const auto& tensor : tensors) {
    const auto of_tensor = TRY(values(tensor.name));
    const auto bytes = stored_values(of_tensor, tensor.dtype);
    if (!bytes) return Error{fmt::format("tensor {}: {}", tensor.name, bytes.error().message)};
    TRY(writer.append(std::as_bytes(std::span(bytes.value()))));
    total_bytes += bytes.value().size();
  }
  return writer.commit();
}

Status write_weights(const fs::path& folder, const LlamaShape& shape, const LlamaValues& values,
                     const HfOptions& options) {
  const Shards shards = shards_of(shape, options);
  HfWeightMap index;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name =
        shards.size() == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const auto& tensor : shards[i]) index.emplace(tensor.name, name);
    TRY(write_shard(folder / name, shards[i], values, total_bytes));
  }
  if (shards.size() == 1) return {};
  return write_file_atomically(folder / kIndexFile, hf_index_text(index, total_bytes));
}

Json special_tokens(const Tokenizer& tokenizer) {
  Json tokens{{"bos_token", tokenizer.piece(tokenizer.bos()).text}};
  if (tokenizer.eos() >= 0) tokens["eos_token"] = tokenizer.piece(tokenizer.eos()).text;
  if (tokenizer.facts().unknown >= 0) tokens["unk_token"] = tokenizer.piece(tokenizer.facts().unknown).text;
  return tokens;
}

// Makes transformers' LlamaTokenizer give the same ids as sentencepiece.
Json tokenizer_config(const Tokenizer& tokenizer, const LlamaShape& shape) {
  Json config = special_tokens(tokenizer);
  // Without this, transformers would add "</s>" to the vocabulary.
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
                 // Without "legacy", transformers splits off the first space and adds it again by its own rules.
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
  if (shape.tables) {
    generation["use_cache"] = false;
    TRY(write_file_atomically(folder / "modeling_thinpipe.py", modeling_thinpipe_py()));
  }
  const auto text = [](const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'; };
  const std::pair<const char*, std::string> files[] = {
      {"config.json", hf_config_text(config)},
      {"generation_config.json", text(generation)},
      {"tokenizer.model", tokenizer.model()},
      {"tokenizer_config.json", text(tokenizer_config(tokenizer, shape))},
      {"special_tokens_map.json", text(special_tokens(tokenizer))},
  };
  for (const auto& [name, bytes] : files) TRY(write_file_atomically(folder / name, bytes));
  return {};
}

}  // namespace

Result<HfFolder> HfFolder::open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return Error{fmt::format("{} is not a folder; needs one with a config.json, safetensors and tokenizer.model",
                             path.string())};
  }
  const auto text = TRY(read_file(path / "config.json"));
  const auto config = TRY(parse_hf_config(text, (path / "config.json").string()));
  HfFolder folder(path, config);
  TRY(folder.open_files());
  TRY(folder.check_tensors());
  return folder;
}

Status HfFolder::open_files() {
  const fs::path index_path = path_ / kIndexFile;
  std::set<std::string> names;
  HfWeightMap index;
  if (is_there(path_ / kSingleFile)) {
    names.insert(kSingleFile);
  } else if (is_there(index_path)) {
    const auto text = TRY(read_file(index_path));
    index = TRY(parse_hf_index(text, index_path.string()));
    for (const auto& [tensor, file] : index) names.insert(file);
  } else {
    return Error{fmt::format("{} has neither {} nor {}; other weight formats are not supported", path_.string(),
                             kSingleFile, kIndexFile)};
  }

  for (const auto& name : names) {
    auto file = TRY(SafetensorsFile::open(path_ / name));
    for (const auto& tensor : file.tensors()) {
      if (const auto listed = index.find(tensor.name);
          name != kSingleFile && (listed == index.end() || listed->second != name)) {
        return Error{fmt::format("{}: contains tensor {}, which {} does not list there", (path_ / name).string(),
                                 quoted_for_error(tensor.name), kIndexFile)};
      }
      places_.emplace(tensor.name, name);
    }
    files_.emplace(name, std::move(file));
  }
  for (const auto& [tensor, file] : index) {
    if (!places_.contains(tensor)) {
      return Error{fmt::format("{}: has no tensor {}, but {} lists it there", (path_ / file).string(),
                               quoted_for_error(tensor), kIndexFile)};
    }
  }
  return {};
}

Status HfFolder::check_tensors() const {
  std::set<std::string, std::less<>> known;
  for (const auto& needed : llama_tensors(config_.shape)) {
    known.insert(needed.name);
    const auto place = places_.find(needed.name);
    if (place == places_.end()) {
      if (needed.name == kHead && config_.tied) continue;
      return Error{fmt::format("{}: has no tensor {} of shape [{}]", path_.string(), needed.name,
                               fmt::join(needed.shape, ", "))};
    }
    const SafetensorsTensor& tensor = *files_.at(place->second).find(needed.name);
    const auto refuse = [&](const std::string& message) {
      return Error{fmt::format("{}: tensor {} {}", (path_ / place->second).string(), needed.name, message)};
    };
    if (tensor.shape != needed.shape) {
      return refuse(fmt::format("has the shape [{}], needs [{}] by config.json", fmt::join(tensor.shape, ", "),
                                fmt::join(needed.shape, ", ")));
    }
    if (!can_be_read(tensor.dtype)) {
      return refuse(fmt::format("is of {}, needs F64, F32, F16 or BF16", dtype_name(tensor.dtype)));
    }
  }
  for (const auto& [name, file] : places_) {
    if (known.contains(name) || is_ignored(name)) continue;
    const char* reason = name.ends_with(".bias") ? "biases are not supported" : "a plain LLaMA has none";
    return Error{fmt::format("{}: has a tensor {}; {}", (path_ / file).string(), quoted_for_error(name), reason)};
  }
  return {};
}

Result<std::vector<float>> HfFolder::values(const std::string& name) const {
  const std::string stored = config_.tied && name == kHead ? std::string(kEmbedding) : name;
  const auto place = places_.find(stored);
  TP_CHECK(place != places_.end(), "{} is not a tensor of a LLaMA", name);
  const SafetensorsTensor& tensor = *files_.at(place->second).find(stored);
  auto values = loaded_values(tensor.bytes, tensor.dtype);
  if (!values) {
    return Error{fmt::format("{}: tensor {}: {}", (path_ / place->second).string(), stored, values.error().message)};
  }
  return values;
}

Result<Tokenizer> HfFolder::tokenizer() const {
  const fs::path path = path_ / "tokenizer.model";
  if (!is_there(path)) {
    return Error{
        fmt::format("{} has no tokenizer.model; only sentencepiece's tokenizers are supported, not tokenizer.json",
                    path_.string())};
  }
  auto tokenizer = TRY(Tokenizer::load(path));
  if (tokenizer.vocab() > config_.shape.vocab) {
    return Error{
        fmt::format("{}: has {} pieces, but vocab_size is {}", path.string(), tokenizer.vocab(), config_.shape.vocab)};
  }
  return tokenizer;
}

Status write_hf_folder(const fs::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                       const LlamaValues& values, const HfOptions& options) {
  TP_CHECK(options.dtype == Dtype::kF32 || options.dtype == Dtype::kF16 || options.dtype == Dtype::kBf16,
           "a folder of {}", dtype_name(options.dtype));
  TRY(check_llama(shape, tokenizer));
  if (path.empty()) return Error{"the path is empty"};
  auto folder = TRY(AtomicFolder::create(path));
  if (folder.is_taken()) {
    return Error{
        fmt::format("{} exists and is not an empty folder: remove it or give another path", folder.target().string())};
  }
  TRY(write_small_files(folder.path(), shape, tokenizer, options.dtype));
  TRY(write_weights(folder.path(), shape, values, options));
  return folder.commit();
}

}  // namespace thinpipe
