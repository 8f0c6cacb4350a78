// Small checkpoints with two units for the tests of the store.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/sha256.h"
#include "store/checkpoints.h"

namespace thinpipe::test {

struct SmallCheckpoint {
  CheckpointManifest manifest;
  std::vector<std::string> contents;  // of the files, in their order
};

// The contents of unit u differ for every step, generation and unit, and are 100 + u bytes long.
inline SmallCheckpoint small_checkpoint(int64_t step, uint64_t generation = 0, const std::string& run = "run-1") {
  SmallCheckpoint checkpoint{{run, {step, generation}, sha256_hex("corpus"), sha256_hex("basis"), 2, {}}, {}};
  for (int unit = 0; unit < 2; ++unit) {
    std::string bytes = fmt::format("{} step {} generation {} unit {} ", run, step, generation, unit);
    bytes.resize(static_cast<size_t>(100 + unit), 'x');
    checkpoint.manifest.files.push_back({fmt::format("unit-{}", unit), bytes.size(), sha256_hex(bytes)});
    checkpoint.contents.push_back(bytes);
  }
  return checkpoint;
}

// In two pieces.
inline Status receive(CheckpointStore& store, CheckpointId id, const CheckpointFile& file, std::string_view bytes) {
  auto incoming = TRY(store.receive_file(id, file));
  TRY(incoming.append(bytes.substr(0, bytes.size() / 3)));
  TRY(incoming.append(bytes.substr(bytes.size() / 3)));
  return incoming.finish();
}

inline Status write_checkpoint(CheckpointStore& store, const SmallCheckpoint& checkpoint) {
  for (size_t i = checkpoint.contents.size(); i-- > 0;) {  // the order does not matter
    TRY(receive(store, checkpoint.manifest.id, checkpoint.manifest.files[i], checkpoint.contents[i]));
  }
  return store.commit(checkpoint.manifest);
}

inline ::testing::AssertionResult ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.error().message;
}

// Checks that latest(), which reads every byte, returns exactly this one.
inline ::testing::AssertionResult newest_is(CheckpointStore& store, const SmallCheckpoint& checkpoint) {
  const auto latest = store.latest();
  if (!latest) return ::testing::AssertionFailure() << latest.error().message;
  if (!latest.value()) return ::testing::AssertionFailure() << "there is none";
  if (*latest.value() == checkpoint.manifest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "it is step " << latest.value()->id.step << " of generation "
                                       << latest.value()->id.generation;
}

}  // namespace thinpipe::test
