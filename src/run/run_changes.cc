#include "run/run_changes.h"

#include <fmt/format.h>

#include <string>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "config/config_file.h"
#include "optim/learning_rate.h"
#include "run/coordinator/run_store.h"
#include "run/coordinator/serve.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

bool same_cuts(const RunConfig& a, const RunConfig& b) {
  return a.pipeline.auto_cuts == b.pipeline.auto_cuts && blocks_per_stage(a) == blocks_per_stage(b);
}

bool is_complete(const std::filesystem::path& folder) {
  const auto outcome = read_outcome(folder);
  return outcome && outcome.value().complete;
}

// A run continues from a checkpoint of the step that it has reached, or it would lose steps that were done for good.
void check_new_length(const std::filesystem::path& folder, int64_t done, int64_t steps) {
  const bool complete = is_complete(folder);
  if (steps < done || (complete && steps == done)) {
    throw UserError(fmt::format("train.steps = {}: this run has done {} steps{}; needs {}", steps, done,
                                complete ? " and is complete" : "", complete ? "more" : "at least as many"));
  }
  if (!complete) return;
  const auto found = newest_checkpoint(folder);
  if (found && found.value().manifest.id.step == done) return;
  throw UserError(
      fmt::format("{0}: its checkpoint of step {1} is gone or damaged, and the optimizer's moments with it; `thinpipe "
                  "train --from {0}` begins a new run with its weights",
                  folder.string(), done));
}

// Each step leaves a run that can be resumed: first one that has not evaluated its end yet, then a longer one.
void remove_end(RunStore& store, const std::filesystem::path& folder) {
  store.forget_end().take();
  for (const char* file : {"outcome.json", "model.safetensors"}) remove_tree(folder / file).take();
}

std::string note_of_length(const RunConfig& before, const RunConfig& after, int64_t done) {
  const auto rate = [](const RunConfig& config, int64_t step) {
    return fmt::format("{:.3g}", config.optim.lr * learning_rate_factor(config.optim, step, config.train.steps));
  };
  auto note = fmt::format("steps: {} instead of {}", after.train.steps, before.train.steps);
  if (after.optim.schedule == LrSchedule::kConstant || done == after.train.steps) return note;
  note += "; the learning rate is planned again for that many: ";
  if (done > 0) note += fmt::format("it was {} at step {} and ", rate(before, done - 1), done);
  return note + fmt::format("is {} at step {}", rate(after, done), done + 1);
}

}  // namespace

ChangedRun change_run(const std::filesystem::path& folder, std::span<const std::string> overrides) {
  const auto path = folder / "config.toml";
  const auto before = load_config(path);
  ChangedRun changed{load_resumed_config(path, overrides), ""};
  const auto& after = changed.config;
  const bool other_length = after.train.steps != before.train.steps;
  if (!other_length && is_complete(folder)) {
    throw UserError(fmt::format("{}: this run is complete; more --steps train it longer", folder.string()));
  }
  if (after == before) return changed;
  // Stays open until the config is written, so that nobody else serves the run meanwhile.
  auto store = RunStore::open(folder / "run.sqlite").take();
  if (other_length) {
    const auto done = std::ssize(store.commits().take());
    check_new_length(folder, done, after.train.steps);
    remove_end(store, folder);
    changed.note = note_of_length(before, after, done);
    store.add_event("steps", changed.note).take();
  }
  // Workers that keep their stage would plan the learning rate for the length that they know.
  if (other_length || !same_cuts(before, after)) store.forget_holders().take();
  write_file_atomically(path, to_toml(after)).take();
  return changed;
}

std::string config_identity(RunConfig config) {
  config.pipeline.auto_cuts = false;
  config.pipeline.cuts.clear();
  return sha256_hex(to_toml(config));
}

}  // namespace thinpipe
