#include "text/preparation_state.h"

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "text/exact_fields.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStateFormat = "thinpipe unfinished corpus";
constexpr uint64_t kStateVersion = 1;

Json to_json(const SplitState& split) {
  return {{"documents", split.documents},
          {"text_bytes", split.text_bytes},
          {"tokens", split.point.tokens},
          {"checksum", split.point.checksum}};
}

SplitState split_state_from(ExactFields& fields) {
  return {fields.count("documents"), fields.count("text_bytes"), {fields.count("tokens"), fields.count("checksum")}};
}

}  // namespace

Status write_preparation_state(const std::filesystem::path& path, const PreparationState& state) {
  const Json object = {{"format", kStateFormat},
                       {"version", kStateVersion},
                       {"key", state.key},
                       {"tokenizer_sha256", state.tokenizer_sha256},
                       {"train", to_json(state.train)},
                       {"val", to_json(state.val)}};
  return write_file_atomically(path, object.dump(2) + '\n');
}

Result<PreparationState> read_preparation_state(const std::filesystem::path& path, const std::string& key) {
  const auto text = read_file(path);
  if (!text) return text.error();
  const Json object = Json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  ExactFields fields(object);
  const bool ours = fields.text("format") == kStateFormat && fields.count("version") == kStateVersion;
  PreparationState state;
  state.key = fields.text("key");
  state.tokenizer_sha256 = fields.sha256("tokenizer_sha256");
  state.train = fields.inner("train", split_state_from);
  state.val = fields.inner("val", split_state_from);
  if (!ours || !fields.complete() || state.key != key) {
    return Error{fmt::format("{}: does not say how far the preparation {} has come", path.string(), key)};
  }
  return state;
}

}  // namespace thinpipe
