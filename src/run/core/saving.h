// The checkpoints of a run: decides when one is complete and what a new epoch begins from. At most one is under way.
// A value and free functions, for the core (coordinator_core.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "proto/control.pb.h"
#include "run/core/effects.h"

namespace thinpipe {

struct Saving {
  int64_t manifest_step = -1;                      // committed steps in the last checkpoint; -1: there is none
  std::vector<control::StateFile> manifest_files;  // its files, one per unit of the model
  bool due = false;
  std::optional<int64_t> step;                        // of the checkpoint under way
  std::map<std::string, control::StateFile> arrived;  // its files so far, by unit

  // The step that a run returns to if its state is lost.
  int64_t last_step() const { return manifest_step < 0 ? 0 : manifest_step; }
};

// Starts a checkpoint of that step.
void begin_saving(Saving& saving, int64_t step);
// Gives up the checkpoint under way, if any: its request or a file may be lost. ask_again: it stays due.
void give_up_saving(Saving& saving, bool ask_again);
// Notes that a file has arrived. Returns the manifest to write if no file is missing any more. Ignores a file of
// another step or generation.
std::optional<WriteManifest> take_file(Saving& saving, const control::StateFile& file, uint64_t generation,
                                       const ModelConfig& model);
// Notes that the checkpoint of these files is complete.
void note_manifest(Saving& saving, const std::vector<control::StateFile>& files);

// Returns the files of the last checkpoint that hold these units.
std::vector<control::StateFile> files_of(const Saving& saving, const std::vector<std::string>& units);

// What a new epoch begins from (docs/control.md, "Epochs and generations").
struct Beginning {
  int64_t step = 0;          // committed steps
  bool all_restore = false;  // all return to the last checkpoint or the initial weights, in a new generation
  std::string why;
};
// `lost` of `stages` stages do not have the state of the committed steps.
Beginning decide_beginning(const Saving& saving, int64_t committed, size_t lost, size_t stages);

}  // namespace thinpipe
