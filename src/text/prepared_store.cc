#include "text/prepared_store.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/files.h"
#include "base/sha256.h"
#include "text/encode_corpus.h"
#include "text/preparation_state.h"
#include "text/tokenizer.h"
#include "text/work_folder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLeastPrefix = 4;
constexpr size_t kShownIds = 12;  // characters of an id in a message

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

Result<PreparedEntry> entry_of(const fs::path& folder) {
  const auto path = folder / "manifest.json";
  auto text = read_file(path);
  if (!text) return text.error();
  auto manifest = parse_manifest(text.value(), path.string());
  if (!manifest) return manifest.error();
  PreparedEntry entry{folder, sha256_hex(text.value()), source_in(folder), manifest.value(), bytes_in(folder), {}};
  if (const auto opened = open_prepared(folder); !opened) entry.problem = opened.error().message;
  return entry;
}

bool is_id_prefix(const std::string& what) {
  return what.size() >= kLeastPrefix && what.size() <= 64 &&
         what.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The one of them, or why it cannot be told which.
Result<PreparedEntry> the_only(const std::vector<PreparedEntry>& found, const std::string& what,
                               std::string_view relation) {
  // Copies of one corpus are one corpus.
  if (std::all_of(found.begin(), found.end(), [&](const auto& entry) { return entry.id == found.front().id; })) {
    return found.front();
  }
  std::set<std::string> ids;
  for (const auto& entry : found) ids.insert(entry.id);
  std::string shown;
  for (const auto& id : ids) shown += (shown.empty() ? "" : ", ") + id.substr(0, kShownIds);
  return Error{fmt::format("'{}' {} {} prepared corpora: give the id of one of {}", what, relation, ids.size(), shown)};
}

// What one pass over a shard finds, against what the manifest says of it.
Status verify_split(const fs::path& path, const SplitManifest& split, const Tokenizer& tokenizer,
                    std::vector<uint64_t>& counts) {
  const auto shard = TokenShard::open(path);
  if (!shard) return shard.error();
  if (auto status = shard.value().check_ids_below(tokenizer.vocab()); !status) return status;
  const auto counted = shard.value().for_each_block([&](uint64_t, std::span<const uint32_t> tokens) -> Status {
    for (const uint32_t token : tokens) ++counts[token];
    return {};
  });
  if (!counted) return counted;
  const std::string sha256 = sha256_of_file(path).take();
  if (sha256 != split.sha256) {
    return Error{fmt::format("{}: its SHA-256 is {}, its manifest says {}", path.string(), sha256, split.sha256)};
  }
  // Every document begins with one, and no text makes another.
  const uint64_t documents = counts[static_cast<size_t>(tokenizer.bos())];
  if (documents == split.documents) return {};
  return Error{fmt::format("{}: has {} documents, its manifest says {}", path.string(), documents, split.documents)};
}

}  // namespace

PreparedListing list_prepared(const fs::path& cache_root) {
  PreparedListing listing;
  const fs::path parent = cache_root / "prepared";
  std::error_code code;
  for (fs::directory_iterator entry(parent, code), end; !code && entry != end; entry.increment(code)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    if (auto found = entry_of(entry->path())) listing.prepared.push_back(std::move(found.value()));
  }
  std::sort(listing.prepared.begin(), listing.prepared.end(),
            [](const auto& one, const auto& other) { return one.id < other.id; });
  for (const auto& key : unfinished_in(parent)) {
    const fs::path folder = unfinished_of(parent / key);
    const auto state = read_preparation_state(folder / "progress.json", key);
    listing.unfinished.push_back({folder, source_in(folder), state ? state.value().text_bytes() : 0, bytes_in(folder)});
  }
  return listing;
}

Result<PreparedEntry> find_prepared(const std::string& what, const fs::path& cache_root) {
  std::error_code code;
  if (fs::exists(fs::path(what) / "manifest.json", code)) return entry_of(what);
  const auto listing = list_prepared(cache_root);
  std::vector<PreparedEntry> by_id, by_source;
  for (const auto& entry : listing.prepared) {
    if (is_id_prefix(what) && entry.id.starts_with(what)) by_id.push_back(entry);
    if (entry.source == what) by_source.push_back(entry);
  }
  if (!by_id.empty()) return the_only(by_id, what, "begins the ids of");
  if (!by_source.empty()) return the_only(by_source, what, "is the source of");
  return Error{
      fmt::format("'{}' is no prepared corpus: neither a folder with a manifest.json, nor the id or source of one "
                  "that `thinpipe data list` shows",
                  what)};
}

std::optional<PreparedCorpus> prepared_with_id(const std::string& id, const fs::path& cache_root) {
  std::error_code code;
  for (fs::directory_iterator entry(cache_root / "prepared", code), end; !code && entry != end; entry.increment(code)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    if (auto corpus = open_prepared(entry->path()); corpus && corpus.value().id == id) return std::move(corpus).take();
  }
  return std::nullopt;
}

Result<PreparedCorpus> verify_prepared(const fs::path& folder) {
  auto corpus = open_prepared(folder);
  if (!corpus) return corpus;
  const Manifest& manifest = corpus.value().manifest;
  const fs::path path = folder / "manifest.json";
  auto text = read_file(path);
  if (!text) return text.error();
  if (manifest_text(manifest) != text.value()) {
    return Error{
        fmt::format("{}: is not written as thinpipe writes it, so that its corpus id is another", path.string())};
  }
  const auto tokenizer = Tokenizer::load(corpus.value().tokenizer);
  if (!tokenizer) return tokenizer.error();
  if (tokenizer.value().vocab() != manifest.vocab) {
    return Error{fmt::format("{}: has {} pieces, its manifest says {}", corpus.value().tokenizer.string(),
                             tokenizer.value().vocab(), manifest.vocab)};
  }
  std::vector<uint64_t> train(static_cast<size_t>(manifest.vocab)), val(static_cast<size_t>(manifest.vocab));
  if (auto status = verify_split(corpus.value().train, manifest.train, tokenizer.value(), train); !status) {
    return status.error();
  }
  if (auto status = verify_split(corpus.value().val, manifest.val, tokenizer.value(), val); !status) {
    return status.error();
  }
  // Both are multiples of 1e-6; another machine's logarithm may round to the next one.
  if (std::abs(unigram_entropy(train) - manifest.train_unigram_entropy) > 1.5e-6) {
    return Error{fmt::format("{}: says a unigram entropy of {:.6f}, train.bin has {:.6f}", path.string(),
                             manifest.train_unigram_entropy, unigram_entropy(train))};
  }
  return corpus;
}

Result<ShardFacts> shard_facts(const TokenShard& shard) {
  ShardFacts facts{shard.size(), shard.token_bytes(), 0, 0};
  std::vector<bool> seen(kCountedIds);
  const auto status = shard.for_each_block([&](uint64_t, std::span<const uint32_t> tokens) -> Status {
    for (const uint32_t token : tokens) {
      facts.greatest = std::max(facts.greatest, token);
      if (token < kCountedIds && !seen[token]) {
        seen[token] = true;
        ++facts.distinct;
      }
    }
    return {};
  });
  if (!status) return status.error();
  return facts;
}

}  // namespace thinpipe
