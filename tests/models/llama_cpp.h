// Runs the real llama.cpp on a GGUF file: node-llama-cpp's prebuilt binary, called through tests/models/llama_cpp/. On
// first use npm installs it into the build folder. Tests run from the repository's root. If node or npm is missing, or
// npm cannot reach its registry, the tests are skipped, unless the environment says that they must run.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/scratch.h"
#include "support/shell.h"

namespace thinpipe::test {

class LlamaCpp {
 public:
  static const LlamaCpp& get() {
    static const LlamaCpp instance;
    return instance;
  }

  // "" if it can be used.
  const std::string& why_not() const { return why_not_; }

  // The script's answer to its tasks, which llama_cpp/llama_cpp.mjs describes. A failure is {"error": message}.
  nlohmann::json run(const std::filesystem::path& gguf, const nlohmann::json& tasks) const {
    const ScratchFolder scratch;
    std::ofstream(scratch / "tasks.json") << tasks.dump();
    return json_printed_by(fmt::format("cd '{}' && node llama_cpp.mjs '{}' '{}'", folder_.string(),
                                       std::filesystem::absolute(gguf).string(), (scratch / "tasks.json").string()));
  }

 private:
  LlamaCpp() {
    if (output_of("node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>&1").first != 0) {
      why_not_ = "node 20 or newer is not installed";
    } else if (output_of("npm --version 2>&1").first != 0) {
      why_not_ = "npm is not installed";
    } else {
      install();
    }
  }

  void install() {
    folder_ = build_folder() / "llama_cpp";
    auto fresh = AtomicFolder::create(folder_).take();  // one process at a time installs it
    const auto package = read_file("tests/models/llama_cpp/package.json").take();
    const auto installed = read_file(folder_ / "installed.json");
    if (!installed || installed.value() != package) {
      write_file_atomically(fresh.path() / "package.json", package).take();
      // Optional dependencies are builds for other machines, and scripts would build llama.cpp if none fits.
      const auto [status, output] = output_of(fmt::format(
          "cd '{}' && npm install --omit=optional --ignore-scripts --no-audit --no-fund --no-package-lock "
          "--fetch-retries=4 --fetch-retry-mintimeout=2000 --fetch-retry-maxtimeout=20000 --fetch-timeout=60000 2>&1",
          fresh.path().string()));
      if (status != 0) {
        why_not_ = "npm cannot install node-llama-cpp: " + output;
        return;
      }
      write_file_atomically(fresh.path() / "installed.json", package).take();
      remove_tree(folder_).take();
      fresh.commit().take();
    }
    write_file_atomically(folder_ / "llama_cpp.mjs", read_file("tests/models/llama_cpp/llama_cpp.mjs").take()).take();
  }

  static std::filesystem::path build_folder() {
    auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    while (!std::filesystem::exists(folder / "CMakeCache.txt") && folder.has_relative_path()) {
      folder = folder.parent_path();
    }
    return folder;
  }

  std::string why_not_;
  std::filesystem::path folder_;
};

// Skips the test if llama.cpp cannot be used; fails it with the reason if llama.cpp is required.
inline void skip_or_fail(const std::string& why_not, bool needed) {
  if (why_not.empty()) return;
  if (needed) FAIL() << "THINPIPE_NEED_LLAMA_CPP=1, but llama.cpp cannot be used: " << why_not;
  GTEST_SKIP() << why_not;
}

// For a SetUp(): after a skip or a failure in it no test body runs, but the rest of SetUp() does.
// $THINPIPE_NEED_LLAMA_CPP=1 requires llama.cpp, so that these tests cannot be skipped unnoticed.
inline void require_llama_cpp() {
  const char* needed = std::getenv("THINPIPE_NEED_LLAMA_CPP");
  skip_or_fail(LlamaCpp::get().why_not(), needed != nullptr && std::string_view(needed) == "1");
}

}  // namespace thinpipe::test
