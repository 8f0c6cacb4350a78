// The real llama.cpp, to ask it about a GGUF file: node-llama-cpp's prebuilt binary, run by tests/models/llama_cpp/. On
// first use npm installs it into the build folder, where it stays. Tests run from the repository's root. Where node or
// npm is missing, or npm cannot reach its registry, tests are skipped, unless the environment says that they must run.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe::test {

class LlamaCpp {
 public:
  static const LlamaCpp& get() {
    static const LlamaCpp instance;
    return instance;
  }

  // "" when it can be used.
  const std::string& why_not() const { return why_not_; }

  // The script's answer to its tasks: llama_cpp/llama_cpp.mjs says what they are. A failure is {"error": what it said}.
  nlohmann::json run(const std::filesystem::path& gguf, const nlohmann::json& tasks) const {
    const ScratchFolder scratch;
    std::ofstream(scratch / "tasks.json") << tasks.dump();
    const auto [status, output] = output_of(fmt::format(
        "cd '{}' && node llama_cpp.mjs '{}' '{}' 2>'{}'", folder_.string(), std::filesystem::absolute(gguf).string(),
        (scratch / "tasks.json").string(), (scratch / "errors").string()));
    auto answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
    if (status != 0 || answer.is_discarded()) {
      return {{"error", fmt::format("exit {}: {}", status, read_file(scratch / "errors").take())}};
    }
    return answer;
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
      // Optional dependencies are builds for other machines, and scripts would build llama.cpp where none fits.
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

  static std::pair<int, std::string> output_of(const std::string& command) {
    std::string text;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {-1, "cannot start a shell"};
    char buffer[4096];
    for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
    return {::pclose(pipe), text};
  }

  std::string why_not_;
  std::filesystem::path folder_;
};

// Skips the test if there is a reason why llama.cpp cannot be used, or, where it is needed, fails it with the reason.
inline void skip_or_fail(const std::string& why_not, bool needed) {
  if (why_not.empty()) return;
  if (needed) FAIL() << "THINPIPE_NEED_LLAMA_CPP=1, but llama.cpp cannot be used: " << why_not;
  GTEST_SKIP() << why_not;
}

// For a SetUp(): after a skip or a failure in there no test body runs, but the rest of SetUp() does.
// $THINPIPE_NEED_LLAMA_CPP=1: it must be there, so that a proof by it cannot go missing unseen.
inline void require_llama_cpp() {
  const char* needed = std::getenv("THINPIPE_NEED_LLAMA_CPP");
  skip_or_fail(LlamaCpp::get().why_not(), needed != nullptr && std::string_view(needed) == "1");
}

}  // namespace thinpipe::test
