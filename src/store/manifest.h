// manifest.json of a checkpoint: of which run and step it is, where its data stands, and the size and hash of the file
// of every unit of the model (config/model_spec.h). It says nothing about stages. A checkpoint exists when its manifest
// does (checkpoint_store.h). docs/checkpoints.md lists the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// Greatest step, so that folder names of eight digits sort as the steps do.
constexpr int64_t kMaxCheckpointStep = 99'999'999;
constexpr uint64_t kMaxCheckpointManifestBytes = 4 << 20;

// Which checkpoint of its run. A run that goes back to a checkpoint continues in a greater generation, so the order is
// that in which a run came by them: by generation first.
struct CheckpointId {
  int64_t step = 0;         // steps committed so far
  uint64_t generation = 0;  // the epoch in which the run had last gone back, or begun (docs/control.md)

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
  std::string basis_hash;  // empty when the model has no basis
  int64_t basis_version = 0;
  std::vector<CheckpointFile> files;  // in the model's order

  bool operator==(const CheckpointManifest&) const = default;
};

// A plain name that cannot lead out of its folder: 1 to 60 of a-z, 0-9 and '-'.
bool is_unit_name(std::string_view name);
std::string unit_file_name(std::string_view unit);  // "block-003.safetensors"
bool is_sha256_hex(std::string_view text);

// What is wrong with its values; "" when nothing is.
std::string manifest_fault(const CheckpointManifest& manifest);
// JSON with sorted keys and a hash over all the others: the same manifest is the same bytes, and a byte that changed is
// noticed. The run must be UTF-8.
std::string manifest_text(const CheckpointManifest& manifest);
// Takes exactly what manifest_text writes of a manifest whose values are possible. `name` is what errors call it.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text, std::string_view name);

}  // namespace thinpipe
