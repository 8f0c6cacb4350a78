// manifest.json of a checkpoint: of which run and step it is, how the run was cut, where its data stands, and the hash
// of every file. A checkpoint exists when its manifest does (checkpoint_store.h). docs/checkpoints.md lists the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

struct CheckpointFile {
  std::string name;  // is_checkpoint_file_name()
  uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hex digits, as are the other hashes

  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  std::string run;
  int64_t step = 0;  // steps committed so far
  std::string config_sha256;
  std::vector<int64_t> cuts;  // blocks per stage
  std::string basis_hash;     // empty when the model has no basis
  int64_t basis_version = 0;
  std::string corpus_id;
  int64_t next_sample = 0;
  int64_t generation = 0;             // how often the run went back to a checkpoint before it wrote this one
  std::string machine;                // for a person to read: BLAS, threads, processor
  std::vector<CheckpointFile> files;  // one per stage, in their order

  bool operator==(const CheckpointManifest&) const = default;
};

// Greatest step, so that folder names of eight digits sort as the steps do.
constexpr int64_t kMaxCheckpointStep = 99'999'999;
constexpr uint64_t kMaxCheckpointManifestBytes = 4 << 20;

// A plain name that cannot lead out of its folder: 1 to 100 of a-z, 0-9, '.' and '-', the first no '.'; not
// "manifest.json".
bool is_checkpoint_file_name(std::string_view name);
bool is_sha256_hex(std::string_view text);

// JSON with sorted keys and a hash over all the others: the same manifest is the same bytes, and a byte that changed is
// noticed.
std::string manifest_text(const CheckpointManifest& manifest);
// Takes exactly what manifest_text writes of a manifest whose values are possible. `name` is what errors call it.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text, std::string_view name);

}  // namespace thinpipe
