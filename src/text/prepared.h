// Prepared corpora: the folders that prepare.h makes and training reads. Their manifest, opening and checking one,
// listing those in a data folder, and finding the one that a user means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// One of the two token shards.
struct SplitManifest {
  uint64_t documents = 0;
  uint64_t text_bytes = 0;  // UTF-8 bytes before tokenisation, for bits per byte
  uint64_t tokens = 0;
  std::string sha256;  // of the .bin file
};

// manifest.json: what was made from what. Its SHA-256 identifies the corpus, so it contains nothing that depends on the
// machine: no path, no time.
struct Manifest {
  std::string content_sha256;  // of the documents (ContentHash)
  std::string tokenizer_sha256;
  int64_t vocab = 0;
  double val_fraction = 0;
  SplitManifest train;
  SplitManifest val;
  double train_unigram_entropy = 0;  // nats per token, to 1e-6: the loss of a model that knows only token frequencies
};

// JSON with sorted keys, so that equal manifests have equal bytes.
std::string manifest_text(const Manifest& manifest);
// Accepts only what manifest_text() writes, byte for byte. Errors call the file `name`.
Result<Manifest> parse_manifest(std::string_view text, const std::string& name);

struct PreparedCorpus {
  std::filesystem::path folder;
  std::filesystem::path tokenizer;  // tokenizer.model
  std::filesystem::path train;      // train.bin
  std::filesystem::path val;        // val.bin
  int64_t vocab = 0;                // V
  std::string id;                   // SHA-256 of manifest.json, which identifies the corpus
  Manifest manifest;
  uint64_t invalid = 0;  // sequences of bytes that were replaced or skipped when the source was read just now
};

// Opens and checks a prepared folder: manifest, tokenizer, and the headers and sizes of the shards.
Result<PreparedCorpus> open_prepared(const std::filesystem::path& folder);

// A folder with a readable manifest; the rest of it may be damaged.
struct PreparedEntry {
  std::filesystem::path folder;
  std::string id;
  std::string source;  // data.corpus when it was made; empty if unknown
  Manifest manifest;
  uint64_t bytes = 0;   // size of its files
  std::string problem;  // the error of open_prepared(); empty if the folder is intact
};

// All under cache_root/prepared/, ordered by id.
std::vector<PreparedEntry> list_prepared(const std::filesystem::path& cache_root);

// The corpus that a user means by `what`: a prepared folder, a corpus id or the beginning of one, or the source as
// written in data.corpus. An error if there is no such corpus, or more than one.
Result<PreparedEntry> find_prepared(const std::string& what, const std::filesystem::path& cache_root);

// The intact corpus with exactly this id, if there is one.
std::optional<PreparedCorpus> prepared_with_id(const std::string& id, const std::filesystem::path& cache_root);

}  // namespace thinpipe
