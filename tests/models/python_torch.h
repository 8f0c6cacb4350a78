// Runs scripts in Python's PyTorch, first of all the modeling file of exported folders. Tests run from the repository's
// root. They are skipped if no python3 has PyTorch, unless the environment says that they must run.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "support/scratch.h"
#include "support/shell.h"

namespace thinpipe::test {

class PythonTorch {
 public:
  static const PythonTorch& get() {
    static const PythonTorch instance;
    return instance;
  }

  bool is_there() const { return !python_.empty(); }
  const std::string& python() const { return python_; }

  // The answers of run_modeling.py to its tasks, which it describes. A failure is {"error": message}.
  nlohmann::json run(const nlohmann::json& tasks) const {
    const ScratchFolder scratch;
    std::ofstream(scratch / "tasks.json") << tasks.dump();
    return script("tests/models/modeling/run_modeling.py", scratch / "tasks.json");
  }

  // The JSON that a script prints for this argument. A failure is {"error": message}.
  nlohmann::json script(const std::string& path, const std::filesystem::path& argument) const {
    return json_printed_by(fmt::format("{} {} '{}'", python_, path, argument.string()));
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
