#include "run/run_changes.h"

#include <fmt/format.h>

#include <string>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "config/config_file.h"
#include "run/coordinator/run_store.h"
#include "run/coordinator/serve.h"

namespace thinpipe {
namespace {

bool same_cuts(const RunConfig& a, const RunConfig& b) {
  return a.pipeline.auto_cuts == b.pipeline.auto_cuts && blocks_per_stage(a) == blocks_per_stage(b);
}

}  // namespace

RunConfig change_run(const std::filesystem::path& folder, std::span<const std::string> overrides) {
  const auto path = folder / "config.toml";
  const auto before = load_config(path);
  auto after = load_resumed_config(path, overrides);
  if (after == before) return after;
  if (const auto outcome = read_outcome(folder); outcome && outcome.value().complete) {
    throw UserError(fmt::format("{}: this run is complete", folder.string()));
  }
  // Stays open until the config is written, so that nobody else serves the run meanwhile.
  auto store = RunStore::open(folder / "run.sqlite").take();
  if (!same_cuts(before, after)) store.forget_holders().take();
  write_file_atomically(path, to_toml(after)).take();
  return after;
}

std::string config_identity(RunConfig config) {
  config.pipeline.auto_cuts = false;
  config.pipeline.cuts.clear();
  return sha256_hex(to_toml(config));
}

}  // namespace thinpipe
