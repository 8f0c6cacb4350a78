// The finished model of somebody's run, for a member that keeps it (`thinpipe join --keep-model`): its files are
// fetched from the coordinator into this machine's folder of the run, and become a run of this machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

// The files that make a run usable without its coordinator, as paths in the run's folder.
std::vector<std::string> kept_files(const RunConfig& config);

// Why this run's model cannot be kept by its members; "" if it can.
std::string why_not_kept(const control::RunDescription& run);

// What is said of the files before any is fetched: only those of kept_files(), each once, with hashes, and none larger
// than the run's config explains.
Status check_model_files(const control::ModelFiles& files, const control::RunDescription& run, const RunConfig& config);

struct ModelFetch {
  CoordinatorAccess coordinator = {};
  control::RunDescription run = {};
  RunConfig config = {};
  std::filesystem::path folder = {};                         // of this machine's files of the run
  std::stop_token stop = {};                                 // the person no longer wants it
  std::function<void(uint64_t, uint64_t)> on_download = {};  // bytes received, bytes in all
};

// Waits until the model is written, fetches its files into `folder`/model and checks them. After an interruption, a
// call goes on with what is there. A full disk leaves nothing behind.
Status fetch_model(const ModelFetch& fetch);

// Makes a run of this machine of the fetched files, in `runs`, called like the organiser's run, or with a number if
// there is one of that name. check: whether the new folder can be used; it becomes the run only then. Returns its
// folder; an earlier one, `before`, if that is the same model.
Result<std::filesystem::path> keep_fetched(const ModelFetch& fetch, const std::filesystem::path& runs,
                                           const std::filesystem::path& before,
                                           const std::function<Status(const std::filesystem::path&)>& check);

// A run's name on another machine: letters, digits, dots, dashes and underscores.
std::string plain_run_name(const std::string& name, const std::string& run);

}  // namespace thinpipe
