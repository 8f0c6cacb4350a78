// manifest.json of a checkpoint: its run, step and corpus, and the size and hash of the file of every unit of the model
// (config/model_spec.h). It does not mention stages. A checkpoint exists if its manifest does (checkpoints.h).
// docs/checkpoints.md lists the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// The largest step, so that folder names of eight digits sort like the steps.
constexpr int64_t kMaxCheckpointStep = 99'999'999;
constexpr uint64_t kMaxCheckpointManifestBytes = 4 << 20;

// Identifies a checkpoint of a run. A run that goes back to a checkpoint continues in a higher generation, so ordering
// by generation first is the order in which the checkpoints were made.
struct CheckpointId {
  int64_t step = 0;         // number of committed steps
  uint64_t generation = 0;  // the epoch in which the run last started from a checkpoint, or began (docs/control.md)

  bool operator==(const CheckpointId&) const = default;
  bool operator<(const CheckpointId& other) const {
    return std::tie(generation, step) < std::tie(other.generation, other.step);
  }
};

struct CheckpointFile {
  std::string unit;  // is_unit_name(); the file is unit_file_name(unit)
  uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hex digits, as are the other hashes

  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  std::string run;
  CheckpointId id;
  std::string corpus_id;
  std::string basis_hash;  // empty if the model has no basis
  int64_t basis_version = 0;
  std::vector<CheckpointFile> files;  // in the model's order

  bool operator==(const CheckpointManifest&) const = default;
};

// A plain name that cannot leave its folder: 1 to 60 of a-z, 0-9 and '-'.
bool is_unit_name(std::string_view name);
std::string unit_file_name(std::string_view unit);  // "block-003.safetensors"
bool is_sha256_hex(std::string_view text);

// What is wrong with its values; "" if nothing is.
std::string manifest_fault(const CheckpointManifest& manifest);
// JSON with sorted keys and a hash over all the others: equal manifests have equal bytes, and changed bytes are
// noticed. The run must be UTF-8.
std::string manifest_text(const CheckpointManifest& manifest);
// Accepts only what manifest_text writes for a manifest with valid values. Errors call the file `name`.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text, std::string_view name);

}  // namespace thinpipe
