// How far an unfinished preparation has come, as progress.json in its folder says it: everything the next process needs
// to go on where the last one was interrupted. Written only when all it speaks of is on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "text/token_shard_writer.h"

namespace thinpipe {

// One of the two shards.
struct SplitState {
  uint64_t documents = 0;
  uint64_t text_bytes = 0;
  ShardPoint point;
};

struct PreparationState {
  std::string key;  // of the preparation: content, tokenizer, vocabulary, fraction, version
  std::string tokenizer_sha256;
  SplitState train;
  SplitState val;

  // How many of the corpus's documents are in the shards: the first so many.
  uint64_t documents() const { return train.documents + val.documents; }
  uint64_t text_bytes() const { return train.text_bytes + val.text_bytes; }
};

Status write_preparation_state(const std::filesystem::path& path, const PreparationState& state);
// An error for anything write_preparation_state did not write, or of another key.
Result<PreparationState> read_preparation_state(const std::filesystem::path& path, const std::string& key);

}  // namespace thinpipe
