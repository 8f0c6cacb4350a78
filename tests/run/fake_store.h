// An in-memory copy of what a coordinator writes to disk: all that a new coordinator starts from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "run/core/coordinator_core.h"

namespace thinpipe::test {

// What the effects have written.
struct FakeStore {
  uint64_t epoch = 0, generation = 0;
  std::vector<CommitRow> rows;
  std::map<int64_t, double> evaluations;
  std::optional<double> final_loss;
  int64_t manifest_step = -1;
  std::vector<control::StateFile> manifest_files;
  bool paused = false;
  std::vector<std::string> roster;
  std::set<std::string> revoked;
  std::vector<int64_t> cuts;

  StoredRun read() const {
    StoredRun stored{.paused = paused, .roster = roster, .revoked = revoked};
    stored.saving.manifest_step = manifest_step;
    stored.saving.manifest_files = manifest_files;
    auto& steps = stored.steps;
    steps.epoch = epoch;
    steps.generation = generation;
    steps.committed = static_cast<int64_t>(rows.size());
    if (!rows.empty()) steps.last_commit = rows.back();
    for (const auto& row : rows) {
      if (!row.apply) steps.skipped.insert(row.step);
    }
    for (const auto& [step, loss] : evaluations) steps.evaluations.insert(step);
    steps.final_loss = final_loss;
    return stored;
  }
};

}  // namespace thinpipe::test
