// Runs the modeling file of exported folders in Python's PyTorch, through tests/models/modeling/. Tests run from the
// repository's root. They are skipped if no python3 has PyTorch, unless the environment says that they must run.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe::test {

class PythonTorch {
 public:
  static const PythonTorch& get() {
    static const PythonTorch instance;
    return instance;
  }

  bool is_there() const { return !python_.empty(); }

  // The answers of run_modeling.py to its tasks, which it describes. A failure is {"error": message}.
  nlohmann::json run(const nlohmann::json& tasks) const {
    const ScratchFolder scratch;
    std::ofstream(scratch / "tasks.json") << tasks.dump();
    const auto [status, output] =
        output_of(fmt::format("{} tests/models/modeling/run_modeling.py '{}' 2>'{}'", python_,
                              (scratch / "tasks.json").string(), (scratch / "errors").string()));
    auto answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
    if (status != 0 || answer.is_discarded()) {
      return {{"error", fmt::format("exit {}: {}", status, read_file(scratch / "errors").take())}};
    }
    return answer;
  }

 private:
  PythonTorch() {
    // Debian's package is for Debian's python3, which may not be the first in the PATH.
    for (const char* python : {"python3", "/usr/bin/python3"}) {
      if (output_of(fmt::format("{} -c 'import torch' 2>&1", python)).first != 0) continue;
      python_ = python;
      return;
    }
  }

  static std::pair<int, std::string> output_of(const std::string& command) {
    std::string text;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {-1, "cannot start a shell"};
    char buffer[4096];
    for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
    return {::pclose(pipe), text};
  }

  std::string python_;
};

// For a SetUp(). $THINPIPE_NEED_PYTHON_TORCH=1 requires it, so that these tests cannot be skipped unnoticed.
inline void require_python_torch() {
  if (PythonTorch::get().is_there()) return;
  const char* needed = std::getenv("THINPIPE_NEED_PYTHON_TORCH");
  if (needed != nullptr && std::string_view(needed) == "1") {
    FAIL() << "THINPIPE_NEED_PYTHON_TORCH=1, but no python3 has PyTorch (Debian: python3-torch)";
  }
  GTEST_SKIP() << "no python3 has PyTorch (Debian: python3-torch)";
}

}  // namespace thinpipe::test
