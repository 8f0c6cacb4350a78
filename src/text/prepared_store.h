// The prepared corpora of a data folder: which there are, which one somebody means, and whether one is still what its
// manifest says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/manifest.h"
#include "text/prepare.h"
#include "text/token_shard.h"

namespace thinpipe {

// A folder under prepared/ whose manifest can be read; the rest of it may be damaged.
struct PreparedEntry {
  std::filesystem::path folder;
  std::string id;
  std::string source;  // data.corpus when it was made; empty if that is not known
  Manifest manifest;
  uint64_t bytes = 0;   // of its files
  std::string problem;  // what open_prepared() says against it; empty if nothing
};

// A preparation that was interrupted, or is going on.
struct UnfinishedEntry {
  std::filesystem::path folder;
  std::string source;
  uint64_t text_bytes = 0;  // tokenised so far
  uint64_t bytes = 0;       // of its files
};

struct PreparedListing {
  std::vector<PreparedEntry> prepared;  // by id
  std::vector<UnfinishedEntry> unfinished;
};

PreparedListing list_prepared(const std::filesystem::path& cache_root);

// What somebody means by `what`: the folder of a prepared corpus, a corpus id or the beginning of one, or the source as
// it was written. An error when there is none or more than one.
Result<PreparedEntry> find_prepared(const std::string& what, const std::filesystem::path& cache_root);

// The whole one with exactly this id; nothing if there is none.
std::optional<PreparedCorpus> prepared_with_id(const std::string& id, const std::filesystem::path& cache_root);

// Reads everything: sizes, hashes, every id, the counts and the entropy of the manifest, and the manifest's own form.
// An error names the file and what is wrong with it.
Result<PreparedCorpus> verify_prepared(const std::filesystem::path& folder);

struct ShardFacts {
  uint64_t tokens = 0;
  size_t token_bytes = 0;
  uint64_t distinct = 0;  // ids that occur, among those below kCountedIds
  uint32_t greatest = 0;  // id that occurs; 0 in an empty shard
};
inline constexpr uint32_t kCountedIds = 1 << 24;
// Reads the whole shard.
Result<ShardFacts> shard_facts(const TokenShard& shard);

}  // namespace thinpipe
