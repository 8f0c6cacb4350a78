#include "text/sentencepiece_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {
namespace {

// Beside an installed program, wherever its tree was moved to (bin/ -> lib/thinpipe/ or Debian's
// lib/<architecture>/thinpipe/). Where the build left it only for what runs inside the build: an installed program must
// not load code from a path that may belong to anybody by then.
std::vector<std::filesystem::path> module_places() {
  std::vector<std::filesystem::path> places;
  std::error_code code, ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", code);
  std::istringstream folders(THINPIPE_SENTENCEPIECE_FOLDERS);
  for (std::string folder; !code && std::getline(folders, folder, ':');) {
    const auto place = program.parent_path().parent_path() / folder / THINPIPE_SENTENCEPIECE_NAME;
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  const auto in_build = program.lexically_relative(std::filesystem::weakly_canonical(THINPIPE_BUILD_FOLDER, ignored));
  if (code || (!in_build.empty() && *in_build.begin() != "..")) places.emplace_back(THINPIPE_SENTENCEPIECE_BUILT);
  return places;
}

std::filesystem::path find_module() {
  std::string looked;
  for (const auto& place : module_places()) {
    std::error_code ignored;
    if (std::filesystem::exists(place, ignored)) return place;
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", place.parent_path().string());
  }
  throw UserError(fmt::format("there is no {}, the tokenizer module, in {}; build or install thinpipe again",
                              THINPIPE_SENTENCEPIECE_NAME, looked));
}

const SentencePieceApi* load_module() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#ifndef THINPIPE_SANITIZED
  flags |= RTLD_DEEPBIND;  // sanitizers refuse it; their builds tokenise only in programs without libtorch
#endif
  const auto path = find_module();
  void* module = ::dlopen(path.c_str(), flags);
  if (module == nullptr) throw UserError(fmt::format("cannot load the tokenizer module: {}", ::dlerror()));
  using Entry = const SentencePieceApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, "thinpipe_sentencepiece"));
  TP_CHECK(entry != nullptr, "{} has no entry point", path.string());
  return entry();
}

}  // namespace

const SentencePieceApi& sentencepiece_api() {
  static const SentencePieceApi* const api = load_module();
  return *api;
}

}  // namespace thinpipe
