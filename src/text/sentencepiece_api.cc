#include "text/sentencepiece_api.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/check.h"
#include "base/error.h"

namespace thinpipe {
namespace {

// Beside an installed program (bin/ -> lib/thinpipe/), else where the build left it.
std::filesystem::path module_path() {
  std::error_code code;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", code);
  const auto installed = program.parent_path().parent_path() / "lib/thinpipe" / THINPIPE_SENTENCEPIECE_NAME;
  return !code && std::filesystem::exists(installed, code) ? installed
                                                           : std::filesystem::path(THINPIPE_SENTENCEPIECE_BUILT);
}

const SentencePieceApi* load_module() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#ifndef THINPIPE_SANITIZED
  flags |= RTLD_DEEPBIND;  // sanitizers refuse it; their builds tokenise only in programs without libtorch
#endif
  const auto path = module_path();
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
