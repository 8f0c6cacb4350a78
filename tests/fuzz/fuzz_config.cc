// Parses any bytes as a config file and --set arguments, separated by zero bytes: gives a valid config that survives
// being written and read again, or a UserError of one line.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  for (size_t end = input.find('\0'); end != std::string_view::npos; end = input.find('\0')) {
    parts.emplace_back(input.substr(0, end));
    input.remove_prefix(end + 1);
  }
  parts.emplace_back(input);

  thinpipe::RunConfig config;
  try {
    config = thinpipe::parse_config(parts[0], "fuzz.toml", std::span(parts).subspan(1));
  } catch (const thinpipe::UserError& error) {
    const std::string_view message = error.what();
    TP_CHECK(!message.empty() && message.find('\n') == std::string_view::npos, "not one line: {}", message);
    return 0;
  }
  const std::string written = thinpipe::to_toml(config);
  TP_CHECK(thinpipe::parse_config(written, "written.toml") == config, "does not come back:\n{}", written);
  return 0;
}
