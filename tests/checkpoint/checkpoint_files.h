// Small checkpoints of two stages for the tests of the store.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/checkpoint_store.h"

namespace thinpipe::test {

struct SmallCheckpoint {
  CheckpointManifest manifest;
  std::vector<std::string> contents;  // of the files, in their order
};

// The bytes of stage s are unlike those of every other step, generation and stage, and 100 + s long.
inline SmallCheckpoint small_checkpoint(int64_t step, int64_t generation = 0, const std::string& run = "run-1") {
  SmallCheckpoint checkpoint;
  auto& manifest = checkpoint.manifest;
  manifest.run = run;
  manifest.step = step;
  manifest.config_sha256 = sha256_hex("config");
  manifest.cuts = {3, 1};
  manifest.basis_hash = sha256_hex("basis");
  manifest.basis_version = 2;
  manifest.corpus_id = sha256_hex("corpus");
  manifest.next_sample = step * 16;
  manifest.generation = generation;
  manifest.machine = "OpenBLAS 0.3.21, 1 thread";
  for (int stage = 0; stage < 2; ++stage) {
    std::string bytes = fmt::format("{} step {} generation {} stage {} ", run, step, generation, stage);
    bytes.resize(static_cast<size_t>(100 + stage), 'x');
    manifest.files.push_back({fmt::format("stage-{}.safetensors", stage), bytes.size(), sha256_hex(bytes)});
    checkpoint.contents.push_back(bytes);
  }
  return checkpoint;
}

// In two pieces.
inline Status receive(CheckpointStore& store, int64_t step, const CheckpointFile& file, std::string_view bytes) {
  auto incoming = store.receive_file(step, file.name, file.bytes, file.sha256);
  if (!incoming) return incoming.error();
  if (auto status = incoming.value().append(bytes.substr(0, bytes.size() / 3)); !status) return status;
  if (auto status = incoming.value().append(bytes.substr(bytes.size() / 3)); !status) return status;
  return incoming.value().finish();
}

inline Status write_checkpoint(CheckpointStore& store, const SmallCheckpoint& checkpoint) {
  for (size_t i = checkpoint.contents.size(); i-- > 0;) {  // the order does not matter
    const auto& manifest = checkpoint.manifest;
    if (auto status = receive(store, manifest.step, manifest.files[i], checkpoint.contents[i]); !status) return status;
  }
  return store.commit(checkpoint.manifest);
}

inline ::testing::AssertionResult ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.error().message;
}

// That latest() is exactly this one and every byte of it is right.
inline ::testing::AssertionResult newest_is(CheckpointStore& store, const SmallCheckpoint& checkpoint) {
  const auto latest = store.latest();
  if (!latest) return ::testing::AssertionFailure() << latest.error().message;
  if (!latest.value()) return ::testing::AssertionFailure() << "there is none";
  if (*latest.value() != checkpoint.manifest) {
    return ::testing::AssertionFailure() << "it is step " << latest.value()->step << " of generation "
                                         << latest.value()->generation;
  }
  return ok(store.verify(checkpoint.manifest));
}

}  // namespace thinpipe::test
