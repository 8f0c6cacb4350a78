#include "text/prepared.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "text/shards.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

constexpr std::string_view kManifestFormat = "thinpipe corpus";
constexpr int64_t kManifestVersion = 1;
constexpr size_t kLeastPrefix = 4;  // characters of an id that name a corpus
constexpr size_t kShownIds = 12;    // characters of an id in a message

Json split_json(const SplitManifest& split) {
  return {{"documents", split.documents},
          {"text_bytes", split.text_bytes},
          {"tokens", split.tokens},
          {"sha256", split.sha256}};
}

SplitManifest split_from(const Json& json) {
  const auto count = [&](const char* key) { return static_cast<uint64_t>(whole_number(json.at(key))); };
  return {count("documents"), count("text_bytes"), count("tokens"), json.at("sha256").get<std::string>()};
}

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

Status check_shard(const fs::path& path, const SplitManifest& split) {
  const auto shard = TRY(TokenShard::open(path));
  if (shard.size() == split.tokens) return {};
  return Error{fmt::format("{} has {} tokens, its manifest says {}", path.string(), shard.size(), split.tokens)};
}

std::string source_in(const fs::path& folder) {
  auto text = read_file(folder / "source.txt");
  if (!text) return "";
  std::string source = std::move(text.value());
  while (source.ends_with('\n')) source.pop_back();
  return source;
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    std::error_code ignored;
    const auto size = entry->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

// What lies under prepared/, without what is hidden: folders that are not whole yet.
std::vector<fs::path> folders_in(const fs::path& cache_root) {
  std::vector<fs::path> folders;
  std::error_code code;
  for (fs::directory_iterator entry(cache_root / "prepared", code), end; !code && entry != end; entry.increment(code)) {
    if (!entry->path().filename().string().starts_with('.')) folders.push_back(entry->path());
  }
  return folders;
}

Result<PreparedEntry> entry_of(const fs::path& folder) {
  const auto path = folder / "manifest.json";
  const auto text = TRY(read_file(path));
  const auto manifest = TRY(parse_manifest(text, path.string()));
  PreparedEntry entry{folder, sha256_hex(text), source_in(folder), manifest, bytes_in(folder), {}};
  if (const auto opened = open_prepared(folder); !opened) entry.problem = opened.error().message;
  return entry;
}

// The one corpus among the entries found, or an error that lists their ids.
Result<PreparedEntry> the_only(const std::vector<PreparedEntry>& found, const std::string& what,
                               std::string_view relation) {
  std::set<std::string> ids;
  for (const auto& entry : found) ids.insert(entry.id);
  if (ids.size() == 1) return found.front();  // copies of one corpus are one corpus
  std::string shown;
  for (const auto& id : ids) shown += (shown.empty() ? "" : ", ") + id.substr(0, kShownIds);
  return Error{fmt::format("'{}' {} {} prepared corpora: give the id of one of {}", what, relation, ids.size(), shown)};
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const Json object = {{"format", kManifestFormat},
                       {"version", kManifestVersion},
                       {"content_sha256", manifest.content_sha256},
                       {"tokenizer_sha256", manifest.tokenizer_sha256},
                       {"vocab", manifest.vocab},
                       {"val_fraction", manifest.val_fraction},
                       {"train", split_json(manifest.train)},
                       {"val", split_json(manifest.val)},
                       {"train_unigram_entropy_nats", manifest.train_unigram_entropy}};
  return object.dump(2) + '\n';
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& name) {
  try {
    const Json object = Json::parse(text);
    const Manifest manifest{.content_sha256 = object.at("content_sha256").get<std::string>(),
                            .tokenizer_sha256 = object.at("tokenizer_sha256").get<std::string>(),
                            .vocab = whole_number(object.at("vocab")),
                            .val_fraction = object.at("val_fraction").get<double>(),
                            .train = split_from(object.at("train")),
                            .val = split_from(object.at("val")),
                            .train_unigram_entropy = object.at("train_unigram_entropy_nats").get<double>()};
    bool possible = manifest.vocab > 0 && manifest.vocab <= INT32_MAX;
    for (const auto* hash :
         {&manifest.content_sha256, &manifest.tokenizer_sha256, &manifest.train.sha256, &manifest.val.sha256}) {
      possible = possible && hash->size() == 64 && is_hex(*hash);
    }
    // Written again it must be the same bytes: this finds every other key, type, number and spelling.
    if (possible && manifest_text(manifest) == text) return manifest;
  } catch (const Json::exception&) {
  }
  return Error{fmt::format("{}: not a manifest of a prepared corpus, version {}, as thinpipe writes it", name,
                           kManifestVersion)};
}

Result<PreparedCorpus> open_prepared(const fs::path& folder) {
  PreparedCorpus corpus;
  corpus.folder = folder;
  corpus.tokenizer = folder / "tokenizer.model";
  corpus.train = folder / "train.bin";
  corpus.val = folder / "val.bin";
  const auto text = TRY(read_file(folder / "manifest.json"));
  corpus.manifest = TRY(parse_manifest(text, (folder / "manifest.json").string()));
  corpus.vocab = corpus.manifest.vocab;
  corpus.id = sha256_hex(text);
  const auto tokenizer_sha256 = TRY(sha256_of_file(corpus.tokenizer));
  if (tokenizer_sha256 != corpus.manifest.tokenizer_sha256) {
    return Error{fmt::format("{} is not the one its manifest names", corpus.tokenizer.string())};
  }
  TRY(check_shard(corpus.train, corpus.manifest.train));
  TRY(check_shard(corpus.val, corpus.manifest.val));
  return corpus;
}

std::vector<PreparedEntry> list_prepared(const fs::path& cache_root) {
  std::vector<PreparedEntry> entries;
  for (const auto& folder : folders_in(cache_root)) {
    if (auto entry = entry_of(folder)) entries.push_back(std::move(entry.value()));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& one, const auto& other) { return one.id < other.id; });
  return entries;
}

Result<PreparedEntry> find_prepared(const std::string& what, const fs::path& cache_root) {
  std::error_code code;
  if (fs::exists(fs::path(what) / "manifest.json", code)) return entry_of(what);
  const bool may_be_id = what.size() >= kLeastPrefix && is_hex(what);
  std::vector<PreparedEntry> by_id, by_source;
  for (const auto& entry : list_prepared(cache_root)) {
    if (may_be_id && entry.id.starts_with(what)) by_id.push_back(entry);
    if (entry.source == what) by_source.push_back(entry);
  }
  if (!by_id.empty()) return the_only(by_id, what, "begins the ids of");
  if (!by_source.empty()) return the_only(by_source, what, "is the source of");
  return Error{
      fmt::format("'{}' is not a prepared corpus: neither a folder with a manifest.json, nor the id or source of one "
                  "that `thinpipe data list` shows",
                  what)};
}

std::optional<PreparedCorpus> prepared_with_id(const std::string& id, const fs::path& cache_root) {
  for (const auto& folder : folders_in(cache_root)) {
    if (auto corpus = open_prepared(folder); corpus && corpus.value().id == id) return std::move(corpus).take();
  }
  return std::nullopt;
}

}  // namespace thinpipe
