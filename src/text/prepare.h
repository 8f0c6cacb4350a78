// From data.corpus to what training reads: a tokenizer and two token shards in one folder of the cache, made once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "config/run_config.h"
#include "text/manifest.h"

namespace thinpipe {

struct PreparedCorpus {
  std::filesystem::path folder;
  std::filesystem::path tokenizer;  // tokenizer.model
  std::filesystem::path train;      // train.bin
  std::filesystem::path val;        // val.bin
  int64_t vocab = 0;                // V
  std::string id;                   // SHA-256 of manifest.json: the corpus's identity
  Manifest manifest;
};

// What is being done, and how much of it. total_bytes is 0 while unknown. Called often, on the calling thread.
using PrepareProgress = std::function<void(std::string_view phase, uint64_t done_bytes, uint64_t total_bytes)>;

// The result does not depend on any of it.
struct PrepareTuning {
  uint64_t durable_every_bytes = 8 << 20;  // of text between two points from which an interrupted preparation goes on
  unsigned threads = 0;                    // that tokenise; 0: one per core, up to a few
};

// The prepared corpus for these settings under cache_root/prepared/, made if it is not there. The source is read
// through either way, to know that it is still the same; everything else is skipped when it is. A folder appears whole
// or not at all. What an interrupted call has left - killed, a full disk, an exception from `progress` - the next one
// goes on with. Processes that ask for the same corpus at once wait for the first. Memory is bounded whatever the size
// of the corpus. Throws UserError.
PreparedCorpus prepare_corpus(const DataConfig& data, const std::filesystem::path& cache_root,
                              const PrepareProgress& progress = {}, const PrepareTuning& tuning = {});

// The bytes of the tokenizer that prepare_corpus would train for these settings: on training documents only. Throws
// UserError.
std::string train_corpus_tokenizer(const DataConfig& data, const PrepareProgress& progress = {});

// A folder prepare_corpus has made, checked: manifest, tokenizer, and the headers and sizes of the shards.
Result<PreparedCorpus> open_prepared(const std::filesystem::path& folder);

}  // namespace thinpipe
