// `thinpipe join --keep-model`: the finished model becomes a run of this machine.
#pragma once

#include <filesystem>
#include <string>

#include "run/kept_model.h"

namespace thinpipe {

struct KeptModel {
  bool wanted = false;
  ModelFetch fetch = {};
};

// Throws UserError if the organiser does not give the model away.
void refuse_if_not_kept(const control::RunDescription& run);

// Fetches it and prints what it does. before: the folder of an earlier visit's model; may be empty. Returns the folder.
// Throws UserError with one line if the model cannot be kept.
std::filesystem::path keep_model(const KeptModel& kept, const std::string& before);

}  // namespace thinpipe
