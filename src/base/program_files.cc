#include "base/program_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/result.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> places_of(const std::string& name, const fs::path& built) {
  std::error_code code, ignored;
  const auto program = fs::read_symlink("/proc/self/exe", code);
  if (code) return {built};
  const auto in_build = program.lexically_relative(fs::weakly_canonical(THINPIPE_BUILD_FOLDER, ignored));
  if (!in_build.empty() && *in_build.begin() != "..") return {built};
  std::vector<fs::path> places;
  std::istringstream folders(THINPIPE_LIBRARY_FOLDERS);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto place = program.parent_path().parent_path() / folder / name;
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  places.push_back(program.parent_path() / name);
  return places;
}

}  // namespace

fs::path program_file(const std::string& name, const std::string& what, const fs::path& built) {
  std::string looked;
  for (const auto& place : places_of(name, built)) {
    std::error_code ignored;
    if (fs::exists(place, ignored)) return place;
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", place.parent_path().string());
  }
  throw UserError(fmt::format("there is no {}, {}, in {}; build or install thinpipe again", name, what, looked));
}

}  // namespace thinpipe
