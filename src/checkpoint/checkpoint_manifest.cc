#include "checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "thinpipe checkpoint";
constexpr uint64_t kVersion = 1;
constexpr const char* kOwnHash = "manifest_sha256";
constexpr uint64_t kMaxStages = 4096;
constexpr uint64_t kMaxBlocksPerStage = 4096;
constexpr uint64_t kMaxRunBytes = 200;
constexpr uint64_t kMaxMachineBytes = 4096;
constexpr auto kMaxCount = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Text that is not UTF-8 is written with replacement characters: the caller compares what it reads back.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'; }

Json to_json(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"run", manifest.run},
          {"step", manifest.step},
          {"config_sha256", manifest.config_sha256},
          {"cuts", manifest.cuts},
          {"basis_hash", manifest.basis_hash},
          {"basis_version", manifest.basis_version},
          {"corpus_id", manifest.corpus_id},
          {"next_sample", manifest.next_sample},
          {"generation", manifest.generation},
          {"machine", manifest.machine},
          {"files", std::move(files)}};
}

// A value as it may stand in an error. A list or an object is not printed: it may be nested without end.
std::string shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.is_string() ? quoted_for_error(value.get_ref<const std::string&>()) : value.dump();
}

// Takes values out of one object. The first that is missing or not what it must be is the error; all later ones are
// passed over.
class Fields {
 public:
  // `place` stands before every error: "" or "files[2]: ".
  Fields(const Json& object, std::string place, std::string& error)
      : object_(object), place_(std::move(place)), error_(error) {
    if (!object.is_object()) refuse(fmt::format("is {}, needs an object", shown(object)));
  }

  uint64_t count(const char* key, uint64_t least, uint64_t most) {
    const Json* value = take(key);
    return value == nullptr ? 0 : number(*value, key, least, most);
  }
  int64_t signed_count(const char* key, uint64_t most = kMaxCount) { return static_cast<int64_t>(count(key, 0, most)); }

  std::string text(const char* key, uint64_t least, uint64_t most) {
    const Json* value = take(key);
    if (value == nullptr) return {};
    if (!value->is_string() || value->get_ref<const std::string&>().size() < least ||
        value->get_ref<const std::string&>().size() > most) {
      refuse(fmt::format("{} is {}, needs a text of {} to {} bytes", key, shown(*value), least, most));
      return {};
    }
    return value->get<std::string>();
  }

  std::string sha256(const char* key, bool may_be_empty = false) {
    const Json* value = take(key);
    if (value == nullptr) return {};
    if (value->is_string()) {
      const auto& hash = value->get_ref<const std::string&>();
      if (is_sha256_hex(hash) || (may_be_empty && hash.empty())) return hash;
    }
    refuse(fmt::format("{} is {}, needs 64 lower-case hex digits{}", key, shown(*value),
                       may_be_empty ? " or an empty text" : ""));
    return {};
  }

  std::string file_name(const char* key) {
    const Json* value = take(key);
    if (value == nullptr) return {};
    if (value->is_string() && is_checkpoint_file_name(value->get_ref<const std::string&>())) return *value;
    refuse(fmt::format("{} is {}, needs a plain file name of a-z, 0-9, '.' and '-'", key, shown(*value)));
    return {};
  }

  // nullptr when there is an error.
  const Json* list(const char* key, uint64_t most) {
    const Json* value = take(key);
    if (value != nullptr && value->is_array() && !value->empty() && value->size() <= most) return value;
    if (value != nullptr) refuse(fmt::format("{} needs to be a list of 1 to {} entries", key, most));
    return nullptr;
  }

  uint64_t number(const Json& value, std::string_view key, uint64_t least, uint64_t most) {
    if (value.is_number_unsigned() && value.get<uint64_t>() >= least && value.get<uint64_t>() <= most) return value;
    refuse(fmt::format("{} is {}, needs a whole number from {} to {}", key, shown(value), least, most));
    return 0;
  }

  // To be called last: every key has been taken.
  void refuse_others() {
    if (!error_.empty()) return;
    for (const auto& [key, value] : object_.items()) {
      if (!taken_.contains(key))
        refuse(fmt::format("has a key {}, which is not one of a manifest's", quoted_for_error(key)));
    }
  }

  void refuse(const std::string& message) {
    if (error_.empty()) error_ = place_ + message;
  }

 private:
  const Json* take(const char* key) {
    if (!error_.empty()) return nullptr;
    taken_.insert(key);
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    refuse(fmt::format("has no key \"{}\"", key));
    return nullptr;
  }

  const Json& object_;
  std::string place_;
  std::string& error_;
  std::set<std::string, std::less<>> taken_;
};

void read_cuts(Fields& fields, CheckpointManifest& manifest) {
  const Json* list = fields.list("cuts", kMaxStages);
  if (list == nullptr) return;
  for (const auto& value : *list) {
    manifest.cuts.push_back(static_cast<int64_t>(
        fields.number(value, fmt::format("cuts[{}]", manifest.cuts.size()), 1, kMaxBlocksPerStage)));
  }
}

void read_files(Fields& fields, CheckpointManifest& manifest, std::string& error) {
  const Json* list = fields.list("files", kMaxStages);
  if (list == nullptr) return;
  if (list->size() != manifest.cuts.size()) {
    return fields.refuse(
        fmt::format("files has {} entries for {} stages, needs one each", list->size(), manifest.cuts.size()));
  }
  std::set<std::string> names;
  for (const auto& entry : *list) {
    Fields of_file(entry, fmt::format("files[{}]: ", manifest.files.size()), error);
    CheckpointFile file;
    file.name = of_file.file_name("name");
    file.bytes = of_file.count("bytes", 0, kMaxCount);
    file.sha256 = of_file.sha256("sha256");
    of_file.refuse_others();
    if (!names.insert(file.name).second) of_file.refuse(fmt::format("name \"{}\" stands twice", file.name));
    manifest.files.push_back(std::move(file));
  }
}

CheckpointManifest read_fields(const Json& json, std::string& own_hash, std::string& error) {
  Fields fields(json, "", error);
  if (const auto format = fields.text("format", 0, kMaxCount); error.empty() && format != kFormat) {
    fields.refuse(fmt::format("format is {}, needs \"{}\"", quoted_for_error(format), kFormat));
  }
  (void)fields.count("version", kVersion, kVersion);
  CheckpointManifest manifest;
  manifest.run = fields.text("run", 1, kMaxRunBytes);
  manifest.step = fields.signed_count("step", kMaxCheckpointStep);
  manifest.config_sha256 = fields.sha256("config_sha256");
  read_cuts(fields, manifest);
  manifest.basis_hash = fields.sha256("basis_hash", /*may_be_empty=*/true);
  manifest.basis_version = fields.signed_count("basis_version");
  manifest.corpus_id = fields.sha256("corpus_id");
  manifest.next_sample = fields.signed_count("next_sample");
  manifest.generation = fields.signed_count("generation");
  manifest.machine = fields.text("machine", 0, kMaxMachineBytes);
  read_files(fields, manifest, error);
  own_hash = fields.sha256(kOwnHash);
  fields.refuse_others();
  return manifest;
}

}  // namespace

bool is_checkpoint_file_name(std::string_view name) {
  constexpr size_t kMaxLength = 100;
  return !name.empty() && name.size() <= kMaxLength && name.front() != '.' && name != "manifest.json" &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-") == std::string_view::npos;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
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
  std::string error;
  std::string own_hash;
  CheckpointManifest manifest = read_fields(json, own_hash, error);
  if (!error.empty()) return refuse(error);
  if (own_hash != sha256_hex(dump(to_json(manifest)))) {
    return refuse(fmt::format("damaged: the values do not have the hash that {} says", kOwnHash));
  }
  // A key that stands twice, other spacing, bytes after the end: values alone do not show them.
  if (manifest_text(manifest) != text) return refuse("is not spelled as thinpipe writes it");
  return manifest;
}

}  // namespace thinpipe
