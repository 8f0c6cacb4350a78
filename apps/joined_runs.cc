#include "joined_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/line.h"
#include "run/guest.h"
#include "run/presence.h"

namespace thinpipe {

std::vector<std::filesystem::path> joined_folders() {
  std::vector<std::filesystem::path> folders;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(data_dir() / "joined", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    folders.push_back(entry->path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

void print_joined_run(const std::filesystem::path& folder) {
  const auto state = read_presence(folder);
  const auto guest = kept_guest_options(folder);
  const auto limits = guest ? describe(guest.value()) : guest.error().message;
  fmt::print("joined run {}: {}{}\n", folder.filename().string().substr(0, 8), one_line(state.value_or("not running")),
             limits.empty() ? "" : fmt::format("; limits: {}", one_line(limits)));
}

nlohmann::ordered_json print_joined_runs() {
  auto json = nlohmann::ordered_json::array();
  for (const auto& folder : joined_folders()) {
    const auto state = read_presence(folder);
    if (!state) continue;
    print_joined_run(folder);
    nlohmann::ordered_json limits = nlohmann::ordered_json::object();
    if (const auto guest = kept_guest_options(folder)) {
      for (const auto& option : guest_options()) {
        if (const auto& value = guest.value().*option.text; !value.empty()) limits[option.name] = value;
      }
    }
    json.push_back({{"run", folder.filename().string()}, {"state", *state}, {"limits", limits}});
  }
  return json;
}

}  // namespace thinpipe
