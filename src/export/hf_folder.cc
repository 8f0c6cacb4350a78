// Reading a Hugging Face folder: nothing in it is believed before it is checked.
#include "export/hf_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/files.h"
#include "export/hf_index.h"
#include "export/json_fields.h"
#include "export/number_bytes.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;

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

// Older files keep the rotation's frequencies, which follow from rope_theta.
bool is_passed_over(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

}  // namespace

Result<HfFolder> HfFolder::open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    return Error{fmt::format("{} is not a folder; needs one with a config.json, safetensors and tokenizer.model",
                             path.string())};
  const auto text = read_file(path / "config.json");
  if (!text) return text.error();
  auto config = parse_hf_config(text.value(), (path / "config.json").string());
  if (!config) return config.error();
  HfFolder folder(path, std::move(config).take());
  if (const auto status = folder.open_files(); !status) return status.error();
  if (const auto status = folder.check_tensors(); !status) return status.error();
  return folder;
}

Status HfFolder::open_files() {
  const fs::path index_path = path_ / kIndexFile;
  std::set<std::string> names;
  HfWeightMap index;
  if (is_there(path_ / kSingleFile)) {
    names.insert(kSingleFile);
  } else if (is_there(index_path)) {
    const auto text = read_file(index_path);
    if (!text) return text.error();
    auto parsed = parse_hf_index(text.value(), index_path.string());
    if (!parsed) return parsed.error();
    index = std::move(parsed).take();
    for (const auto& [tensor, file] : index) names.insert(file);
  } else {
    return Error{fmt::format("{} has neither {} nor {}; weights in other formats are not read", path_.string(),
                             kSingleFile, kIndexFile)};
  }

  for (const auto& name : names) {
    auto file = SafetensorsFile::open(path_ / name);
    if (!file) return file.error();
    for (const auto& tensor : file.value().tensors()) {
      if (const auto listed = index.find(tensor.name);
          name != kSingleFile && (listed == index.end() || listed->second != name)) {
        return Error{fmt::format("{}: holds tensor {}, which {} does not say", (path_ / name).string(),
                                 quoted_text(tensor.name), kIndexFile)};
      }
      places_.emplace(tensor.name, name);
    }
    files_.emplace(name, std::move(file).take());
  }
  for (const auto& [tensor, file] : index) {
    if (!places_.contains(tensor)) {
      return Error{
          fmt::format("{}: has no tensor {}, which {} says", (path_ / file).string(), quoted_text(tensor), kIndexFile)};
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
    if (known.contains(name) || is_passed_over(name)) continue;
    const char* reason = name.ends_with(".bias") ? "only matrices without biases are read" : "a plain LLaMA has none";
    return Error{fmt::format("{}: has a tensor {}; {}", (path_ / file).string(), quoted_text(name), reason)};
  }
  return {};
}

Result<std::vector<float>> HfFolder::values(const std::string& name) const {
  const std::string stored = config_.tied && name == kHead ? std::string(kEmbedding) : name;
  const auto place = places_.find(stored);
  TP_CHECK(place != places_.end(), "{} is no tensor of a LLaMA", name);
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
    return Error{fmt::format("{} has no tokenizer.model; only sentencepiece's tokenizers are read, not tokenizer.json",
                             path_.string())};
  }
  auto tokenizer = Tokenizer::load(path);
  if (tokenizer && tokenizer.value().vocab() > config_.shape.vocab) {
    return Error{fmt::format("{}: has {} pieces, but vocab_size is {}", path.string(), tokenizer.value().vocab(),
                             config_.shape.vocab)};
  }
  return tokenizer;
}

}  // namespace thinpipe
