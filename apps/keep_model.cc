#include "keep_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/files.h"
#include "base/units.h"
#include "models/model_files.h"
#include "run_folders.h"

namespace thinpipe {
namespace {

void show_fetched(uint64_t have, uint64_t all) {
  if (have != all && ::isatty(STDOUT_FILENO) == 0) return;
  fmt::print("\rfetching the model: {} of {}{}", format_size(have), format_size(all), have == all ? "\n" : "");
  std::fflush(stdout);
}

// The tokenizer and the header of the weights; every byte has arrived as it was announced.
Status can_be_opened(const std::filesystem::path& folder) {
  try {
    (void)open_run(folder, std::nullopt);
    return {};
  } catch (const UserError& error) {
    return Error{fmt::format("the model that came cannot be opened: {}", error.what())};
  }
}

}  // namespace

void refuse_if_not_kept(const control::RunDescription& run) {
  if (const auto why = why_not_kept(run); !why.empty()) throw UserError(why);
}

std::filesystem::path keep_model(const KeptModel& kept, const std::string& before) {
  auto fetch = kept.fetch;
  fetch.on_download = show_fetched;
  fetch_model(fetch).take();
  const auto folder = keep_fetched(fetch, data_dir() / "runs", before, can_be_opened).take();
  fmt::print("the model is a run of this machine now; try: thinpipe generate {}\n", argument_of(folder));
  return folder;
}

}  // namespace thinpipe
