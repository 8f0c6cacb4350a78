#include "store/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "thinpipe checkpoint 2";
constexpr const char* kOwnHash = "manifest_sha256";
constexpr size_t kMaxRunBytes = 200;

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'; }

Json to_json(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"unit", file.unit}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return {{"format", kFormat},
          {"run", manifest.run},
          {"step", manifest.id.step},
          {"generation", manifest.id.generation},
          {"corpus_id", manifest.corpus_id},
          {"basis_hash", manifest.basis_hash},
          {"basis_version", manifest.basis_version},
          {"files", std::move(files)}};
}

// Throws Json::exception when a key is missing or its value of another type.
CheckpointManifest from_json(const Json& json) {
  CheckpointManifest manifest;
  json.at("run").get_to(manifest.run);
  manifest.id.step = whole_number(json.at("step"));
  manifest.id.generation = static_cast<uint64_t>(whole_number(json.at("generation")));
  json.at("corpus_id").get_to(manifest.corpus_id);
  json.at("basis_hash").get_to(manifest.basis_hash);
  manifest.basis_version = whole_number(json.at("basis_version"));
  for (const auto& file : json.at("files")) {
    manifest.files.push_back(
        {file.at("unit"), static_cast<uint64_t>(whole_number(file.at("bytes"))), file.at("sha256")});
  }
  return manifest;
}

}  // namespace

bool is_unit_name(std::string_view name) {
  constexpr size_t kMaxLength = 60;
  return !name.empty() && name.size() <= kMaxLength &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

std::string unit_file_name(std::string_view unit) { return fmt::format("{}.safetensors", unit); }

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string manifest_fault(const CheckpointManifest& manifest) {
  if (manifest.run.empty() || manifest.run.size() > kMaxRunBytes) {
    return fmt::format("run needs a text of 1 to {} bytes", kMaxRunBytes);
  }
  if (manifest.id.step < 0 || manifest.id.step > kMaxCheckpointStep) {
    return fmt::format("step is {}, needs a number from 0 to {}", manifest.id.step, kMaxCheckpointStep);
  }
  if (!is_sha256_hex(manifest.corpus_id)) return "corpus_id needs 64 lower-case hex digits";
  if (!manifest.basis_hash.empty() && !is_sha256_hex(manifest.basis_hash)) {
    return "basis_hash needs 64 lower-case hex digits or an empty text";
  }
  if (manifest.basis_version < 0) return "basis_version needs a number from 0 on";
  if (manifest.files.empty()) return "files needs at least one entry";
  std::set<std::string> units;
  for (const auto& file : manifest.files) {
    if (!is_unit_name(file.unit)) return "a unit of files needs a plain name of a-z, 0-9 and '-'";
    if (!is_sha256_hex(file.sha256)) return fmt::format("sha256 of {} needs 64 lower-case hex digits", file.unit);
    if (!units.insert(file.unit).second) return fmt::format("unit \"{}\" stands twice in files", file.unit);
  }
  return "";
}

std::string manifest_text(const CheckpointManifest& manifest) {
  Json json = to_json(manifest);
  json[kOwnHash] = sha256_hex(dump(json));
  return dump(json);
}

Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text, std::string_view name) {
  const auto refuse = [name](std::string_view message) {
    return Error{fmt::format("{}: not a checkpoint manifest: {}", name, message)};
  };
  if (text.size() > kMaxCheckpointManifestBytes) {
    return refuse(fmt::format("has {} bytes, at most {} are read", text.size(), kMaxCheckpointManifestBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return refuse("is not valid JSON");
  // By reference: copying what may be nested without end would take a stack without end.
  if (const auto format = json.find("format"); format == json.end() || *format != kFormat) {
    return refuse(fmt::format("its format is not \"{}\"", kFormat));
  }
  CheckpointManifest manifest;
  try {
    manifest = from_json(json);
  } catch (const Json::exception&) {
    return refuse("a key is missing or its value is of another type");
  }
  if (const auto fault = manifest_fault(manifest); !fault.empty()) return refuse(fault);
  // Also notices what values alone do not show: a key more, one that stands twice, a fraction, other spacing.
  if (manifest_text(manifest) != text) return refuse("damaged: it is not spelled as thinpipe writes it");
  return manifest;
}

}  // namespace thinpipe
