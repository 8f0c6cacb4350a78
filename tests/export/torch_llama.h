// A Hugging Face folder in PyTorch, by torch_llama.py. Debian's: the system's python3, not one of somebody's own. Tests
// run from the repository's root.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe::test {

// "" when it can be used, else why the test is to be skipped.
inline const std::string& why_no_torch() {
  static const std::string reason =
      std::system("/usr/bin/python3 tests/export/torch_llama.py --check >/dev/null 2>&1") == 0
          ? ""
          : "the system's python3 cannot import torch: apt-get install python3-torch";
  return reason;
}

// logits[n][t][v]: of the token after position t of sequence n. Throws UserError with what the script said.
inline std::vector<std::vector<std::vector<double>>> torch_logits(const std::filesystem::path& folder, int64_t vocab,
                                                                  const std::vector<std::vector<int32_t>>& sequences) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "ids.json") << nlohmann::json(sequences).dump();
  const auto command =
      fmt::format("/usr/bin/python3 tests/export/torch_llama.py '{}' '{}' '{}' 2>'{}'", folder.string(),
                  (scratch / "ids.json").string(), (scratch / "out").string(), (scratch / "errors").string());
  if (std::system(command.c_str()) != 0) throw UserError(read_file(scratch / "errors").take());
  const std::string bytes = read_file(scratch / "out").take();
  std::vector<std::vector<std::vector<double>>> all;
  size_t at = 0;
  for (const auto& ids : sequences) {
    all.emplace_back();
    for (size_t t = 0; t < ids.size(); ++t) {
      std::vector<double> row(static_cast<size_t>(vocab));
      const std::string_view raw = std::string_view(bytes).substr(at, row.size() * sizeof(double));
      TP_CHECK(raw.size() == row.size() * sizeof(double), "torch_llama.py wrote {} bytes", bytes.size());
      std::memcpy(row.data(), raw.data(), raw.size());
      at += raw.size();
      all.back().push_back(std::move(row));
    }
  }
  TP_CHECK(at == bytes.size(), "torch_llama.py wrote {} bytes, {} were expected", bytes.size(), at);
  return all;
}

}  // namespace thinpipe::test
