// Commands in a shell, for tests that compare with other programs.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/files.h"
#include "support/scratch.h"

namespace thinpipe::test {

// The command's status and what it wrote to its standard output.
inline std::pair<int, std::string> output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "cannot start a shell"};
  char buffer[4096];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
  return {::pclose(pipe), text};
}

// The JSON that the command prints, or {"error": message} if it fails or prints something else.
inline nlohmann::json json_printed_by(const std::string& command) {
  const ScratchFolder scratch;
  const auto [status, output] = output_of(fmt::format("{} 2>'{}'", command, (scratch / "errors").string()));
  auto answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (status == 0 && !answer.is_discarded()) return answer;
  return {{"error", fmt::format("exit {}: {}", status, read_file(scratch / "errors").take())}};
}

}  // namespace thinpipe::test
