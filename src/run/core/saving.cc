#include "run/core/saving.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/model_spec.h"

namespace thinpipe {

void begin_saving(Saving& saving, int64_t step) {
  saving.due = false;
  saving.step = step;
  saving.arrived.clear();
}

void give_up_saving(Saving& saving, bool ask_again) {
  if (!saving.step) return;
  saving.step.reset();
  saving.arrived.clear();
  saving.due = ask_again;
}

std::optional<WriteManifest> take_file(Saving& saving, const control::StateFile& file, uint64_t generation,
                                       const ModelConfig& model) {
  if (saving.step != file.step() || file.generation() != generation) return std::nullopt;
  saving.arrived[file.unit()] = file;
  WriteManifest manifest;
  for (const auto& unit : model_units(model, whole_model(model))) {
    const auto found = saving.arrived.find(unit);
    if (found == saving.arrived.end()) return std::nullopt;
    manifest.files.push_back(found->second);
  }
  saving.arrived.clear();
  return manifest;
}

void note_manifest(Saving& saving, const std::vector<control::StateFile>& files) {
  saving.manifest_step = files.front().step();
  saving.manifest_files = files;
  saving.step.reset();
}

std::vector<control::StateFile> files_of(const Saving& saving, const std::vector<std::string>& units) {
  std::vector<control::StateFile> files;
  for (const auto& file : saving.manifest_files) {
    if (std::find(units.begin(), units.end(), file.unit()) != units.end()) files.push_back(file);
  }
  return files;
}

Beginning decide_beginning(const Saving& saving, int64_t committed, size_t lost, size_t stages) {
  if (lost == 0) return {committed, false, "every stage has its state"};
  if (saving.manifest_step == committed) {
    return {committed, false,
            fmt::format("{} of {} stages restore theirs from the checkpoint of this step", lost, stages)};
  }
  const auto target = saving.manifest_step < 0 ? std::string("the initial weights")
                                               : fmt::format("the checkpoint of step {}", saving.manifest_step);
  return {saving.last_step(), true,
          committed == 0 ? fmt::format("all begin from {}", target)
                         : fmt::format("{} of {} stages lost their state: all return from step {} to {}", lost, stages,
                                       committed, target)};
}

}  // namespace thinpipe
